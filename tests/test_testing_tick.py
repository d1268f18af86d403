from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Engine, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from sqla_jobs import (
    ArchivedJobMixin,
    InvalidModel,
    InvalidOption,
    JobMixin,
    Jobs,
    ScheduleMixin,
    backfill,
    current_job,
    pause,
    trigger,
)
from sqla_jobs.operations.scheduling import Fired
from sqla_jobs.testing import Clock, drain, tick
from tests.engines import build_async_engine, fresh_database


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"
    __table_args__ = (CheckConstraint("queue <> 'closed'"),)


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


class Report(Base):
    """What handlers write."""

    __tablename__ = "report"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


clock = Clock(Base.metadata)

HOUR = timedelta(hours=1)
NOON = datetime(2027, 5, 3, 12, tzinfo=UTC)


def registry() -> Jobs[Job]:
    return Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="shop", now=clock.now)


jobs = registry()


@jobs.handler
def report(session: Session, title: str) -> None:
    session.add(Report(text=f"{title} of {current_job().slot:%d %H:%M}"))


@jobs.handler
async def report_async(session: AsyncSession) -> None:
    session.add(Report(text=f"async of {current_job().slot:%d %H:%M}"))


jobs.schedule("sales", report.job("sales"), cron="0 * * * *", offset=timedelta(0))


@pytest.fixture(scope="module")
def shared_url(postgresql_server: str) -> Iterator[str]:
    """Give the URL of the one PostgreSQL database of this file, which no test commits to."""
    with fresh_database(postgresql_server) as url:
        yield url


@pytest.fixture
def postgresql_url(shared_url: str) -> str:
    return shared_url


@pytest.fixture
def outer(engine: Engine) -> Iterator[Session]:
    """A session inside a transaction that the test rolls back, as apps' test suites have it, at half past eleven."""
    Base.metadata.create_all(engine)
    with engine.connect() as connection, connection.begin() as transaction:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            clock.advance(session, NOON - HOUR / 2 - clock.read(session))
            yield session
        transaction.rollback()
    with Session(engine) as session:
        assert counts(session) == [0] * len(Base.metadata.tables)


def counts(session: Session) -> list[int]:
    """Count the rows of every table."""
    tables = Base.metadata.tables.values()
    return [session.execute(select(func.count()).select_from(table)).scalar_one() for table in tables]


def sales(session: Session) -> Schedule:
    return session.scalars(select(Schedule).where(Schedule.name == "sales")).one()


def texts(session: Session) -> list[str]:
    return list(session.scalars(select(Report.text).order_by(Report.id)))


def test_tick_declares_and_plans_and_then_fires_what_is_due(outer: Session) -> None:
    """The first tick makes the row of what the code has, and each later one gives the jobs of the slots since."""
    planned = tick(outer, jobs)
    schedule = sales(outer)
    assert (planned, schedule.declared_by, schedule.next_run_at) == ([], "shop", NOON)

    clock.advance(outer, HOUR)
    fired = tick(outer, jobs)

    job = outer.scalars(select(Job)).one()
    assert fired == [Fired("sales", slot=NOON, job_id=job.id)]
    assert (job.type, job.payload, job.schedule_id) == ("report", {"title": "sales"}, schedule.id)
    assert (job.slot, job.run_at, job.status) == (NOON, NOON, "ready")
    assert tick(outer, jobs) == []


def test_drain_after_a_tick_runs_the_job_of_the_slot(outer: Session) -> None:
    """The handler is told which slot it stands for, hours later too."""
    tick(outer, jobs)
    clock.advance(outer, HOUR)
    tick(outer, jobs)
    clock.advance(outer, 5 * HOUR)

    events = drain(outer, jobs)

    assert [(event.name, event.type) for event in events] == [("done", "report")]
    assert texts(outer) == ["sales of 03 12:00"]


def test_tick_keeps_to_the_transaction_of_the_session(outer: Session) -> None:
    """A rollback of the test's undoes declaration, plan and jobs: the next tick begins anew."""
    outer.commit()
    tick(outer, jobs)
    outer.rollback()
    assert outer.scalars(select(Schedule)).all() == []

    clock.advance(outer, HOUR)
    fired = tick(outer, jobs)
    outer.commit()

    assert (fired, sales(outer).next_run_at) == ([], NOON + HOUR)


def test_tick_shows_what_it_wrote_in_objects_that_are_loaded(outer: Session) -> None:
    """A schedule that the test holds is read anew."""
    tick(outer, jobs)
    schedule = sales(outer)
    clock.advance(outer, HOUR)

    tick(outer, jobs)

    assert (schedule.next_run_at, schedule.last_slot) == (NOON + HOUR, NOON)


def test_tick_sees_what_the_test_has_not_flushed(engine: Engine) -> None:
    """A row that was added is planned, and a change of one that is loaded is gone by."""
    Base.metadata.create_all(engine)
    with Session(engine, autoflush=False) as session:
        clock.advance(session, NOON - HOUR / 2 - clock.read(session))
        schedule = Schedule(name="other", job_type="report", payload={"title": "other"}, cron="0 * * * *")
        session.add(schedule)
        tick(session, jobs)
        assert schedule.next_run_at == NOON

        schedule.cron = "15 * * * *"
        tick(session, jobs)
        assert (schedule.cron, schedule.next_run_at) == ("15 * * * *", NOON + HOUR / 4)


def test_tick_after_days_fires_as_the_schedule_says(outer: Session) -> None:
    """Slots that no tick was there for are caught up, oldest first, or counted, as with a worker that was down."""
    for catch_up in ("latest", "all", "skip"):
        outer.add(Schedule(name=catch_up, job_type="report", cron="@daily", catch_up=catch_up, catch_up_limit=2))
    tick(outer, jobs)
    pause(outer, jobs, "sales")

    clock.advance(outer, timedelta(days=3))
    fired = tick(outer, jobs)

    midnight = NOON.replace(hour=0)
    slots = [(each.name, (each.slot - midnight).days) for each in fired]
    assert [slot for name, slot in slots if name == "all"] == [2, 3]
    assert sorted(slots) == [("all", 2), ("all", 3), ("latest", 3)]
    missed = outer.execute(select(Schedule.name, Schedule.slots_missed).where(Schedule.name != "sales")).all()
    assert sorted(missed) == [("all", 1), ("latest", 2), ("skip", 3)]


def test_tick_after_years_of_minutes_ends_with_the_newest(outer: Session) -> None:
    """However much there is to count, one tick does it all."""
    outer.add(Schedule(name="minutely", job_type="report", cron="* * * * *"))
    tick(outer, jobs)
    pause(outer, jobs, "sales")

    clock.advance(outer, timedelta(days=2500))
    fired = tick(outer, jobs)

    last = NOON - HOUR / 2 + timedelta(days=2500)
    assert [(each.name, each.slot) for each in fired] == [("minutely", last)]
    assert outer.scalars(select(Schedule.slots_missed).where(Schedule.name == "minutely")).one() == 2500 * 24 * 60 - 1


def test_tick_fires_more_schedules_than_it_looks_at_once(outer: Session) -> None:
    """A tick is over when nothing is due, and not before."""
    row: dict[str, Any] = {"job_type": "report", "payload": {"title": "a"}, "cron": "@hourly"}
    outer.execute(insert(Schedule), [row | {"name": f"s{number}"} for number in range(520)])
    assert tick(outer, jobs) == []
    clock.advance(outer, HOUR)

    fired = tick(outer, jobs)

    assert len({each.name for each in fired}) == len(fired) == 521
    assert {each.slot for each in fired} == {NOON}
    assert {each.job_id for each in fired} == set(outer.scalars(select(Job.id)))


def test_tick_marks_what_is_broken_and_fires_the_rest(outer: Session) -> None:
    """Bad rows get their error, a test's tick ends all the same, and a repaired row is planned anew."""
    for name in ("cron", "type"):
        outer.add(Schedule(name=name, job_type="report", payload={"title": name}, cron="0 * * * *"))
    tick(outer, jobs)
    outer.execute(update(Schedule).where(Schedule.name == "cron").values(cron="no cron"))
    outer.execute(update(Schedule).where(Schedule.name == "type").values(job_type="gone"))
    clock.advance(outer, HOUR)

    fired = tick(outer, jobs)

    assert [each.name for each in fired] == ["sales"]
    errors = {row.name: row.last_error for row in outer.execute(select(Schedule.name, Schedule.last_error))}
    assert "no cron" in str(errors["cron"])
    assert "'gone'" in str(errors["type"])
    assert errors["sales"] is None


def test_tick_when_a_job_can_not_be_stored_fires_the_rest(outer: Session) -> None:
    """What the app's own table refuses breaks no transaction: its row is marked, and tried again in a minute."""
    tick(outer, jobs)
    outer.add(Schedule(name="closed", job_type="report", cron="0 * * * *", queue="closed"))
    tick(outer, jobs)
    clock.advance(outer, HOUR)

    fired = tick(outer, jobs)

    assert [each.name for each in fired] == ["sales"]
    closed = outer.scalars(select(Schedule).where(Schedule.name == "closed")).one()
    assert "IntegrityError" in str(closed.last_error)
    assert closed.next_run_at is not None
    assert timedelta(0) < closed.next_run_at - clock.read(outer) < timedelta(seconds=61)


def test_tick_retires_what_the_code_has_no_more(outer: Session) -> None:
    """A registry of the same name without the declaration is the next release: its tick fires the schedule no more."""
    tick(outer, jobs)
    clock.advance(outer, HOUR)

    fired = tick(outer, registry())
    assert (fired, sales(outer).retired_at is None) == ([], False)

    assert [each.slot for each in tick(outer, jobs)] == [NOON]
    assert sales(outer).retired_at is None


def test_tick_brings_the_declaration_up_to_date(outer: Session) -> None:
    """What the code says now is what is stored, but `enabled` stays the person's."""
    tick(outer, jobs)
    sales(outer).enabled = False
    newer = registry()
    handler = newer.handler(name="report")(report.spec.function)
    newer.schedule("sales", handler.job(title="all"), cron="30 * * * *")

    tick(outer, newer)

    schedule = sales(outer)
    assert (schedule.cron, schedule.payload, schedule.enabled) == ("30 * * * *", {"title": "all"}, False)


def test_tick_gives_no_id_for_a_job_that_was_there(outer: Session) -> None:
    """A slot that was backfilled before a tick came by has its job."""
    tick(outer, jobs)
    clock.advance(outer, HOUR)
    (slot,) = backfill(outer, jobs, "sales", NOON, NOON + timedelta(minutes=1))

    assert tick(outer, jobs) == [Fired("sales", slot=NOON, job_id=None)]
    assert list(outer.scalars(select(Job.id))) == [slot.job_id]


def test_tick_takes_a_scoped_session(outer: Session) -> None:
    """What the app has as its session goes in as it is."""
    scoped = scoped_session(sessionmaker(outer.connection(), join_transaction_mode="create_savepoint"))
    tick(scoped, jobs)
    clock.advance(scoped(), HOUR)

    assert [fired.slot for fired in tick(scoped, jobs)] == [NOON]
    scoped.remove()


def test_tick_of_a_registry_without_schedules_is_an_error(outer: Session) -> None:
    """The error has the lines to write; and what is no session is told so."""
    with pytest.raises(InvalidModel, match=r"Jobs\(Job, schedule=Schedule\)"):
        tick(outer, Jobs(Job, now=clock.now))
    nothing: Any = None
    with pytest.raises(InvalidOption, match="a Session or an AsyncSession is wanted first"):
        tick(nothing, jobs)


def test_tick_awaited_plans_fires_and_runs(async_url: str) -> None:
    """An AsyncSession in a transaction that is rolled back does all of it, and leaves nothing."""

    async def scenario() -> tuple[list[Fired], list[str], list[str], list[int]]:
        engine = build_async_engine(async_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with engine.connect() as connection:
            transaction = await connection.begin()
            async with AsyncSession(bind=connection, join_transaction_mode="create_savepoint") as session:
                await session.run_sync(lambda sync: clock.advance(sync, NOON - HOUR / 2 - clock.read(sync)))
                session.add(Schedule(name="async", job_type="report_async", cron="0 * * * *", offset=timedelta(0)))
                fired = await tick(session, jobs)
                await session.run_sync(lambda sync: clock.advance(sync, HOUR))
                fired += await tick(session, jobs)
                await session.commit()
                names: list[str] = [event.name for event in await drain(session, jobs)]
                found = await session.run_sync(texts)
                await trigger(session, jobs, "sales")
                await session.commit()
            await transaction.rollback()
        async with AsyncSession(engine) as session:
            left = await session.run_sync(counts)
        await engine.dispose()
        return fired, names, found, left

    fired, names, found, left = asyncio.run(scenario())

    assert sorted((each.name, each.slot) for each in fired) == [("async", NOON), ("sales", NOON)]
    assert names == ["done", "done"]
    assert sorted(found) == ["async of 03 12:00", "sales of 03 12:00"]
    assert left == [0] * len(Base.metadata.tables)


def test_tick_awaited_of_a_registry_without_schedules_is_an_error(sqlite_url: str) -> None:
    """With an AsyncSession it is told where the tick is awaited."""

    async def scenario() -> None:
        engine = build_async_engine(sqlite_url)
        async with AsyncSession(engine) as session:
            waiting = tick(session, Jobs(Job))
            with pytest.raises(InvalidModel):
                await waiting
        await engine.dispose()

    asyncio.run(scenario())
