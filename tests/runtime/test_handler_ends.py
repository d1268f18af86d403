from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqla_jobs import GiveUp, Retry, Snooze
from tests.engines import build_async_engine
from tests.runtime.app import SOON, App, MakeEngine, Note, wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

HOUR = timedelta(hours=1)

SIGNALS: dict[str, tuple[BaseException, tuple[str, int]]] = {
    "snooze": (Snooze(delay=HOUR), ("ready", 0)),
    "retry": (Retry("busy", delay=HOUR), ("ready", 1)),
    "give up": (GiveUp("gone"), ("failed", 1)),
    "nested": (ExceptionGroup("inner", [GiveUp("gone")]), ("failed", 1)),
    "two": (ExceptionGroup("inner", [Snooze(delay=HOUR), GiveUp("gone")]), ("dead", 1)),
    "beside an error": (ExceptionGroup("inner", [Snooze(delay=HOUR), ValueError("no")]), ("dead", 1)),
    "error": (ValueError("no"), ("dead", 1)),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_signal_when_a_group_has_it(app: App, name: str) -> None:
    """A signal that a `TaskGroup` has put in a group means what it means alone; beside anything, the attempt failed."""
    error, expected = SIGNALS[name]

    @app.jobs.handler(max_attempts=1 if expected[0] == "dead" else 2)
    async def steer() -> None:
        async def one() -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(one())

    job = app.add(steer)

    app.run()

    row = app.row(job)
    assert (row.status, row.attempts) == expected
    assert ("Traceback" in (row.last_error or "")) == (expected[0] == "dead")  # what a signal says is its text alone


@pytest.mark.parametrize("is_alone", [True, False])
def test_outage_when_a_group_has_it(pg_app: App, is_alone: bool) -> None:
    """A group of nothing but the database's faults costs no attempt; with any other error in it, it does."""
    runs: list[None] = []

    @pg_app.jobs.handler(max_attempts=1)
    def conflict(session: Session) -> None:
        errors: list[Exception] = []
        runs.append(None)
        try:
            if len(runs) == 1:
                session.execute(text("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$"))
        except DBAPIError as error:
            rest = [] if is_alone else [ValueError("no")]
            errors += [ExceptionGroup("inner", [error, *rest]), error]
        if errors:
            raise ExceptionGroup("outer", errors)

    job = pg_app.add(conflict)

    pg_app.run(within=SOON)

    row = pg_app.row(job)
    assert (row.status, row.attempts, row.refunds) == (("done", 1, 1) if is_alone else ("dead", 1, 0))


def steps(session: Session | None) -> Iterator[int]:
    if session is not None:
        session.add(Note(text="written"))
    yield 1


async def async_steps() -> AsyncIterator[int]:
    yield 1


def test_handler_when_it_returns_what_is_still_to_be_run(app: App) -> None:
    """A generator or a future is work that is not done: a failed attempt, in which nothing of it runs."""
    registered: list[Any] = []

    @registered.append
    @app.jobs.handler(max_attempts=1)
    def generator() -> Any:
        return steps(None)

    @registered.append
    @app.jobs.handler(max_attempts=1)
    def session_generator(session: Session) -> Any:
        return steps(session)

    @registered.append
    @app.jobs.handler(max_attempts=1)
    def async_generator() -> Any:
        return async_steps()

    @registered.append
    @app.jobs.handler(max_attempts=1)
    async def future() -> Any:
        return asyncio.get_running_loop().create_future()

    jobs = [app.add(handler) for handler in registered]

    app.run()

    rows = [app.row(job) for job in jobs]
    assert [(row.type, row.status, row.attempts) for row in rows] == [
        ("generator", "dead", 1),
        ("session_generator", "dead", 1),
        ("async_generator", "dead", 1),
        ("future", "dead", 1),
    ]
    assert all("run it in the handler, and return a list, or nothing" in (row.last_error or "") for row in rows)
    assert app.notes() == []


@pytest.mark.parametrize("raised_by", ["engine", "handler"])
def test_snapshot_when_handlers_use_all_threads_of_the_loop(
    postgresql_url: str, raised_by: str, make_engine: MakeEngine
) -> None:
    """A session that takes snapshots is prepared although other handlers hold all threads of `asyncio.to_thread`."""
    level: dict[str, Any] = {"isolation_level": "REPEATABLE READ"}
    engine = build_async_engine(postgresql_url, **(level if raised_by == "engine" else {}))
    app = App(make_engine(postgresql_url), async_engine=engine).create()
    is_full, is_over = threading.Event(), threading.Event()

    @app.jobs.handler
    async def fill() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.to_thread(hold)

    def hold() -> None:
        is_full.set()
        wait_for(is_over)

    @app.jobs.handler(timeout=HOUR)
    async def write(session: AsyncSession) -> None:
        if raised_by == "handler":
            await session.connection(execution_options=level)
        session.add(Note(text="written"))

    app.add(fill)
    with app.worker():
        wait_for(is_full)
        job = app.add(write)
        try:
            assert app.hear("done").job_id == job
        finally:
            is_over.set()
        app.hear("done")

    assert app.notes() == ["written"]
