"""The databases that tests ask for.

====================  ==================================================================================================
`database_url`        the test runs twice, on PostgreSQL and on SQLite; ids `postgresql`, `sqlite`
`engine`              an engine on `database_url`
`postgresql_url`      an empty PostgreSQL database, dropped after the test
`sqlite_url`          an SQLite file that does not exist yet
`async_url`           the test runs once per async driver; ids `psycopg`, `asyncpg`, `aiosqlite`
`make_database`       a function that gives the URL of one more empty PostgreSQL database at each call
`postgresql_server`   URL of the server that they are on: the one of SQLA_JOBS_TEST_URL, else one of our own
`private_server`      a PostgreSQL for this test alone, to stop and start
====================  ==================================================================================================

All URLs are strings for `create_engine`, with psycopg or pysqlite where nothing else is said; `tests.engines` builds
engines on them, and gives the async URL of the same database.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.engines import ASYNC_DRIVERS, async_url_of, build_engine, fresh_database
from tests.servers import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine

# Far from UTC, and not the zone of the PostgreSQL either: local time taken for UTC shows on every machine.
os.environ["TZ"] = "America/St_Johns"
time.tzset()

# Children inherit what is ignored, as Ctrl-C is in the background of a shell.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: a busy machine is no failure. In CI the same examples at every run: it judges the change, not its luck.
settings.register_profile("sqla_jobs", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("sqla_jobs")

SERVER = pytest.StashKey[PostgresServer]()


def server_url(config: pytest.Config) -> str:
    """Return the URL of the one PostgreSQL of this run, starting it for the first who asks."""
    if url := os.environ.get("SQLA_JOBS_TEST_URL"):
        return url
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is not None:
        return worker["postgresql_server"]
    if SERVER not in config.stash:
        config.stash[SERVER] = PostgresServer()
    return config.stash[SERVER].url


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give xdist's workers the server of the process that controls them."""
    node.workerinput["postgresql_server"] = server_url(node.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server, if one was started."""
    if server := config.stash.get(SERVER, None):
        server.close()


@pytest.fixture(scope="session")
def postgresql_server(request: pytest.FixtureRequest) -> str:
    """Give the URL of the server that all tests share; make databases on it, don't stop it."""
    return server_url(request.config)


@pytest.fixture
def make_database(postgresql_server: str) -> Iterator[Callable[[], str]]:
    """Give a function that makes an empty PostgreSQL database and returns its URL."""
    with ExitStack() as databases:
        yield lambda: databases.enter_context(fresh_database(postgresql_server))


@pytest.fixture
def postgresql_url(make_database: Callable[[], str]) -> str:
    """Give the URL of an empty PostgreSQL database."""
    return make_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Give the URL of an SQLite file."""
    return f"sqlite+pysqlite:///{tmp_path / 'jobs.sqlite'}"


@pytest.fixture(params=["postgresql", "sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Give the URL of an empty database, of each kind in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """Give an engine on an empty database, of each kind in turn."""
    engine = build_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture(params=list(ASYNC_DRIVERS))
def async_url(request: pytest.FixtureRequest) -> str:
    """Give the URL of an empty database for each async driver in turn."""
    backend = ASYNC_DRIVERS[request.param].partition("+")[0]
    return async_url_of(request.getfixturevalue(f"{backend}_url"), request.param)


@pytest.fixture
def private_server() -> Iterator[PostgresServer]:
    """Give a PostgreSQL that the test may stop and start."""
    with PostgresServer() as server:
        yield server
