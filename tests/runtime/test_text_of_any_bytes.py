"""Text on SQLite whose bytes are none in its encoding."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.orm import sessionmaker

from sqla_jobs import enqueue_many, find_jobs, list_schedules, show_job, stats
from sqla_jobs.operations import leases
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.testing import tick
from tests.engines import build_async_engine, build_engine
from tests.operations import leasing, timetable
from tests.runtime.app import App

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.orm import Session

DRIVERS = ["pysqlite", "aiosqlite"]

GARBLED = "CAST(x'7b227469746c65223a22ff227d' AS TEXT)"
"""`{"title":"…"}`, whose text is a byte that starts no character."""

COLUMNS = ("queue", "payload", "type", "locked_by", "last_error", "errors", "idempotency_key", "result", "trace")
"""Each of them in a row of its own; ids are places in here, from 1 on."""

JOBS = timetable.jobs


@contextmanager
def engines_of(url: str, driver: str) -> Generator[tuple[Engine, AsyncEngine | None]]:
    """Give the app's engine for its own use, and its async one where the app has one."""
    engine = build_engine(url)
    try:
        yield engine, build_async_engine(url) if driver == "aiosqlite" else None
    finally:
        engine.dispose()


def garble(session: Session, table: str, columns: Iterable[str]) -> None:
    for number, column in enumerate(columns, 1):
        session.execute(text(f"UPDATE {table} SET {column} = {GARBLED} WHERE id = {number}"))


@contextmanager
def machinery(url: str, driver: str) -> Generator[tuple[Engine, Connector]]:
    """Give the app's engine, with the tables, and a connection of a worker's own."""
    with engines_of(url, driver) as (engine, async_engine):
        timetable.Base.metadata.create_all(engine)
        apps = engine if async_engine is None else async_engine.sync_engine
        connector = Connector.of_app(apps, Opening(apps))
        try:
            yield engine, connector
        finally:
            connector.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_job_of_garbled_text_stops_no_other(sqlite_url: str, driver: str) -> None:
    """Lists, figures, claims and reaps read such a row, and all others, on a worker's own connections."""
    ids = set(range(1, len(COLUMNS) + 2))
    served = ids - {COLUMNS.index("type") + 1}
    demand = leases.Demand(("report",), None)

    def use(session: Session) -> None:
        # Lanes are told by their text, and no text is equal to one that can't be read.
        lanes = {COLUMNS.index("queue") + 1, COLUMNS.index("type") + 1}
        assert {found.id for found in find_jobs(session, JOBS).jobs} >= ids - lanes
        assert {show_job(session, JOBS, each).id for each in ids} == ids
        assert stats(session, JOBS).lanes

        claimed = leases.claim(session, JOBS.table, demand, limit=100, locked_by="w", lease=leasing.HOUR)
        assert {lease.id for lease in claimed} == served
        assert [lease.id for lease in claimed if lease.payload is None] == [COLUMNS.index("payload") + 1]

        session.execute(text("UPDATE job SET locked_until = created_at"))
        garble(session, "job", COLUMNS)
        reaped = leases.reap(session, JOBS.table, leasing.vanish, limit=100)
        assert {settlement.lease.id for settlement in reaped} == served - {COLUMNS.index("locked_by") + 1}

    with machinery(sqlite_url, driver) as (engine, connector):
        with sessionmaker(engine).begin() as session:
            enqueue_many(session, [timetable.report.job(str(number)) for number in ids])
            garble(session, "job", COLUMNS)
        connector.run(use)


@pytest.mark.parametrize("driver", DRIVERS)
def test_schedule_of_garbled_text_stops_no_other(sqlite_url: str, driver: str) -> None:
    """The scheduler fires the other schedules, and they are listed, whichever column of one can't be read."""
    columns = ("name", "job_type", "cron", "timezone", "queue", "payload", "catch_up", "overlap", "last_error")
    names = [f"s{number}" for number in range(1, len(columns) + 2)]

    with machinery(sqlite_url, driver) as (engine, connector):
        with sessionmaker(engine).begin() as session:
            for name in names:
                timetable.add_hourly(session, name=name)
        connector.run(lambda session: tick(session, JOBS))
        with sessionmaker(engine).begin() as session:
            garble(session, "schedule", columns)
            timetable.clock.advance(session, timetable.HOUR)

        fired = connector.run(lambda session: {fired.name for fired in tick(session, JOBS)})
        listed = connector.run(lambda session: list_schedules(session, JOBS))

    assert names[-1] in fired
    assert len(listed) == len(names)


@pytest.mark.parametrize("driver", DRIVERS)
def test_payload_of_garbled_text_is_a_failed_attempt(sqlite_url: str, driver: str) -> None:
    """A worker says in the row that its payload is to be repaired, and runs the others."""
    with engines_of(sqlite_url, driver) as (engine, async_engine):
        app = App(engine, async_engine=async_engine).create()

        @app.jobs.handler(max_attempts=1)
        def work(title: str = "") -> None: ...

        job_ids = [app.add(work) for _ in range(3)]
        with app.sessions.begin() as session:
            garble(session, "job", ["payload", "queue"])
        app.run()

        assert app.statuses() == ["dead", "done", "done"]
        with app.sessions() as session:
            error = session.execute(text("SELECT last_error FROM job WHERE id = :id"), {"id": job_ids[0]}).scalar_one()
        assert "PayloadError: the payload of handler 'work'" in error
        assert "repair the row" in error
