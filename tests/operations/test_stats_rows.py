"""Figures of rows that no code of ours has written, and in each kind of session, schema and transaction."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import MetaData, insert, text
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stats import LONGEST_AGE, ScheduleStats, Stats, stats
from sqla_jobs.schema.mixins import JobMixin, ScheduleMixin
from sqla_jobs.testing import Clock
from tests.engines import build_async_engine, build_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

HOUR = timedelta(hours=1)


class Base(DeclarativeBase):
    metadata = MetaData(schema="shop")


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


clock = Clock(Base.metadata)

jobs = Jobs(Job, schedule=Schedule, now=clock.now)


@jobs.handler
def send(order_id: int) -> None: ...


def translated(engine: Engine) -> Engine:
    """Give the engine, with the tables made: in their schema, or where there are none in what stands for it."""
    if engine.dialect.name == "sqlite":
        engine = engine.execution_options(schema_translate_map={"shop": None})
    else:
        with engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA shop"))
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """Give a session on the tables, on each kind of database in turn."""
    with Session(translated(engine)) as session:
        yield session


@pytest.fixture
def postgresql_session(postgresql_url: str) -> Iterator[Session]:
    """Give a session on PostgreSQL."""
    engine = build_engine(postgresql_url)
    with Session(translated(engine)) as session:
        yield session
    engine.dispose()


@pytest.fixture
def sqlite_session(sqlite_url: str) -> Iterator[Session]:
    """Give a session on SQLite."""
    engine = build_engine(sqlite_url)
    with Session(translated(engine)) as session:
        yield session
    engine.dispose()


def add(session: Session, /, **columns: Any) -> None:
    """Insert a row that is due for an hour, unless told otherwise."""
    usual = {"type": "send", "run_at": clock.read(session) - HOUR}
    session.execute(insert(Job), [usual | columns])


def spoil(session: Session, table: str = "job", /, **values: str) -> None:
    """Write text as SQL into columns of all rows that have the odd name."""
    named = f"shop.{table}" if session.get_bind().dialect.name == "postgresql" else table
    assignments = ", ".join(f"{column} = {value}" for column, value in values.items())
    name = "type" if table == "job" else "name"
    session.execute(text(f"UPDATE {named} SET {assignments} WHERE {name} = 'odd'"))


def lanes(found: Stats) -> dict[str, tuple[int, int, timedelta | None]]:
    """Give the counts of the lanes by type."""
    return {lane.type: (lane.due, lane.later, lane.oldest) for lane in found.lanes}


def is_an_hour(age: timedelta | None) -> bool:
    """Tell whether the age is that of a usual row."""
    return age is not None and HOUR <= age < HOUR + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("own", "due", "oldest"),
    [("-infinity", 1, LONGEST_AGE), ("infinity", 0, None), ("12000-01-01 00:00:00+00", 0, None)],
)
def test_due_time_that_no_driver_loads_breaks_no_lane(
    postgresql_session: Session, own: str, due: int, oldest: timedelta | None
) -> None:
    """Such a job is due for ever, or later for ever, and the other lanes are told as they are."""
    add(postgresql_session)
    add(postgresql_session, type="odd")
    spoil(postgresql_session, run_at=f"'{own}'")

    found = lanes(stats(postgresql_session, jobs))

    assert found["odd"] == (due, 1 - due, oldest)
    assert found["send"][:2] == (1, 0)
    assert is_an_hour(found["send"][2])


@pytest.mark.parametrize(
    ("own", "due"), [("''", 1), ("'0'", 1), ("0", 1), ("'yesterday'", 0), ("'-infinity'", 1), ("x'00'", 0)]
)
def test_due_time_that_is_no_time_breaks_no_lane(sqlite_session: Session, own: str, due: int) -> None:
    """On SQLite a time is what somebody has written: it counts as due or later by how it sorts, as in a claim."""
    add(sqlite_session)
    add(sqlite_session, type="odd")
    spoil(sqlite_session, run_at=own)

    found = lanes(stats(sqlite_session, jobs))

    assert found["odd"] == (due, 1 - due, LONGEST_AGE if due else None)
    assert is_an_hour(found["send"][2])


@pytest.mark.parametrize("own", ["'-infinity'", "'infinity'", "'12000-01-01 00:00:00+00'"])
def test_other_times_that_no_driver_loads_break_no_figure(postgresql_session: Session, own: str) -> None:
    """Neither do such times of running, expired, dead and retired rows, and each row is counted all the same."""
    for status in ("running", "dead"):
        add(postgresql_session, type="odd", status=status)
    postgresql_session.add(Schedule(name="odd", job_type="send", cron="0 * * * *"))
    postgresql_session.flush()
    times = ("started_at", "locked_until", "finished_at", "last_lease_expired_at", "created_at")
    spoil(postgresql_session, **dict.fromkeys(times, own))
    spoil(postgresql_session, "schedule", retired_at=own, next_run_at=own)

    found = stats(postgresql_session, jobs)

    assert (found.running, found.dead, found.expired_last_hour) == (1, {"odd": 1}, 0)
    assert found.oldest_running is not None
    assert (found.oldest_running.started_at, found.oldest_running.locked_until) == (None, None)
    assert found.oldest_running.age == (LONGEST_AGE if own == "'-infinity'" else timedelta(0))
    assert found.schedules == ScheduleStats(0, 0, 1, 0, 0, 0, capped=False)


def test_columns_of_any_type_break_no_figure(sqlite_session: Session) -> None:
    """On SQLite each column may hold anything: text for numbers, numbers for text, and numbers without end."""
    for status in ("ready", "running", "dead"):
        add(sqlite_session, type="odd", status=status)
    add(sqlite_session, status="running", started_at=clock.read(sqlite_session) - HOUR)
    for name in ("odd", "good"):
        sqlite_session.add(Schedule(name=name, job_type="send", cron="0 * * * *", slots_missed=2**62))
    sqlite_session.flush()
    spoil(sqlite_session, attempts="'many'", queue="x'61'", locked_by="x'61'", started_at="'now and then'", type="7")
    spoil(sqlite_session, "schedule", enabled="'perhaps'", slots_missed="9e999", overlaps_skipped="'some'", name="3")

    found = stats(sqlite_session, jobs)

    assert [(lane.queue, lane.type, lane.due, lane.running) for lane in found.lanes] == [
        ("a", "7", 1, 1),
        ("default", "send", 0, 1),
    ]
    assert (found.attempts, found.dead) == ({0: 3}, {"7": 1})
    assert found.oldest_running is not None
    assert (found.oldest_running.type, is_an_hour(found.oldest_running.age)) == ("send", True)
    assert found.schedules == ScheduleStats(2, 0, 0, 0, 2**62, 0, capped=False)


def test_empty_and_odd_names_are_names(session: Session) -> None:
    """A type or queue that is empty, or that no handler could have, is a lane and a key like any other."""
    names = ["", " ", "send ", "Ünï;--'\"", "x" * 255]
    for name in names:
        add(session, type=name, queue=name)
        add(session, type=name, status="dead")

    found = stats(session, jobs)

    assert [(lane.queue, lane.type, lane.is_known) for lane in found.lanes] == [
        (name, name, False) for name in sorted(names)
    ]
    assert found.dead == dict.fromkeys(names, 1)


def test_large_sums_of_slots_overflow_nothing(session: Session) -> None:
    """A schedule's count stops at 2**62, and many such counts are told as that."""
    for name in ("a", "b", "c"):
        session.add(Schedule(name=name, job_type="send", cron="0 * * * *", slots_missed=2**62, overlaps_skipped=2**62))

    found = stats(session, jobs).schedules

    assert found is not None
    assert (found.slots_missed, found.overlaps_skipped) == (2**62, 2**62)


def test_pending_objects_are_counted(session: Session) -> None:
    """What the session has not flushed yet is, as by any query, and a rollback takes it back."""
    session.commit()
    session.add(Schedule(name="hourly", job_type="send", cron="0 * * * *"))
    session.add(Job(type="send", run_at=datetime(2024, 1, 1, tzinfo=UTC)))

    with session.no_autoflush:
        found = stats(session, jobs)
    session.rollback()
    after = stats(session, jobs)

    assert (found.due, found.schedules) == (1, ScheduleStats(1, 0, 0, 0, 0, 0, capped=False))
    assert (after.due, after.schedules) == (0, ScheduleStats(0, 0, 0, 0, 0, 0, capped=False))


def test_scoped_session_is_taken(engine: Engine) -> None:
    """A `scoped_session` is the thread's session."""
    registry = scoped_session(sessionmaker(translated(engine)))
    add(registry())

    assert stats(registry, jobs).due == 1

    registry.remove()


def test_async_session_is_awaited(async_url: str) -> None:
    """The same figures, awaited, on each async driver, more often than a driver takes to prepare the statements."""

    async def main() -> None:
        engine = build_async_engine(async_url)
        try:
            async with engine.begin() as connection:
                if engine.dialect.name == "postgresql":
                    await connection.execute(text("CREATE SCHEMA shop"))
            if engine.dialect.name == "sqlite":
                engine = engine.execution_options(schema_translate_map={"shop": None})
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            sessions = async_sessionmaker(engine)
            async with sessions() as session:
                await session.run_sync(add)
                await session.run_sync(lambda sync: add(sync, status="running"))
                for _ in range(8):
                    found = await stats(session, jobs, cap=1)
                    assert (found.due, found.running, found.schedules is not None) == (1, 1, True)
                    assert is_an_hour(found.oldest_ready)
                await session.commit()
            registry = async_scoped_session(sessions, scopefunc=asyncio.current_task)
            assert (await stats(registry, jobs)).capped == frozenset()
            await registry.remove()
        finally:
            await engine.dispose()

    asyncio.run(main())
