from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import OperationalError

from tests.engines import build_async_engine, build_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import PostgresServer, StopMode


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_private_server_keeps_what_was_committed_over_stop_and_start(
    private_server: PostgresServer, mode: StopMode
) -> None:
    """A server that was stopped, even by force, comes back under its URL with its data; connections to it are dead."""
    engine = build_engine(private_server.url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kept AS SELECT 7 AS number"))
    lost = engine.connect()
    lost.execute(text("SELECT 1"))

    private_server.stop(mode)

    with pytest.raises(OperationalError):
        lost.execute(text("SELECT 1"))
    lost.close()
    with pytest.raises(OperationalError):
        engine.connect()
    private_server.start()
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT number FROM kept")) == 7
    engine.dispose()


def test_server_is_gone_when_its_process_is_killed() -> None:
    """A run of the tests that dies without cleaning up leaves no server and no folder behind."""
    program = (
        "import os, signal\n"
        "from tests.servers import PostgresServer\n"
        "server = PostgresServer()\n"
        "print(server.url, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    died = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    # The guard holds the program's stderr, so `run` returned after the guard's end too.
    folder = Path(str(make_url(died.stdout.strip()).query["host"]))
    assert folder.name.startswith("sqla_jobs_pg_")
    assert not folder.exists()


def test_databases_of_one_test_are_apart(make_database: Callable[[], str]) -> None:
    """What one database of a test holds, another doesn't."""
    first, second = build_engine(make_database()), build_engine(make_database())

    with first.begin() as connection:
        connection.execute(text("CREATE TABLE only_here ()"))

    with second.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('only_here')")) is None
    first.dispose()
    second.dispose()


def test_engine_rolls_back_what_a_savepoint_released(engine: Engine) -> None:
    """With the documented settings a savepoint belongs to its transaction on every database."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number INTEGER)"))

    with engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(text("INSERT INTO numbers VALUES (1)"))
        connection.rollback()

    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM numbers")) == 0


def test_async_engine_connects_with_each_driver(async_url: str) -> None:
    """Each async driver reaches a database of its own."""

    async def ask() -> int | None:
        engine = build_async_engine(async_url)
        async with engine.begin() as connection:
            answer: int | None = await connection.scalar(text("SELECT 42"))
        await engine.dispose()
        return answer

    assert asyncio.run(ask()) == 42
