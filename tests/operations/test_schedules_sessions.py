"""What holds of trigger, pause, resume, preview and backfill alike, and of each kind of session."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import event, make_url, select
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sqla_jobs.errors import InvalidModel, InvalidOption, UnknownSchedule
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.schedules import backfill, pause, preview, preview_backfill, resume, trigger
from tests.engines import build_async_engine, build_engine, fresh_database
from tests.operations.timetable import (
    HALF_PAST,
    HOUR,
    NOON,
    OPERATIONS,
    ArchivedJob,
    Base,
    Job,
    Note,
    Operation,
    Schedule,
    add_hourly,
    all_jobs,
    emptied,
    jobs,
    report,
    slots_of,
    starts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine

EVERY_OPERATION = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)

EVERY_ENQUEUING = pytest.mark.parametrize("operation", [OPERATIONS["trigger"], OPERATIONS["backfill"]])


@pytest.fixture(scope="module")
def shared_url(postgresql_server: str) -> Iterator[str]:
    """Give the URL of the one PostgreSQL database of this file."""
    with fresh_database(postgresql_server) as url:
        yield url


@pytest.fixture
def postgresql_url(shared_url: str) -> str:
    """Give it with empty tables."""
    return emptied(shared_url)


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    """Give a session factory where the tables of the timetable are."""
    Base.metadata.create_all(engine)
    return sessionmaker(engine)


@EVERY_OPERATION
def test_unknown_schedule_is_told_with_one_that_is_near(session: Session, operation: Operation) -> None:
    """A misspelt name is an error that says which was meant, and that changes nothing."""
    add_hourly(session)
    add_hourly(session, name="weekly")

    with pytest.raises(UnknownSchedule, match=r"no schedule named 'horly' \(did you mean 'hourly'\?\); "):
        operation(session, jobs, "horly")

    assert all_jobs(session) == []


def test_unknown_schedule_when_none_is_near_is_told_without_a_hint(session: Session) -> None:
    """No far-fetched name is offered, and the error says when those that code declares have a row."""
    with pytest.raises(UnknownSchedule, match=r"named 'hourly'; one that code declares has its row once a worker"):
        trigger(session, jobs, "hourly")

    add_hourly(session)
    with pytest.raises(LookupError, match=r"named 'x'; "):
        trigger(session, jobs, "x")


@EVERY_OPERATION
def test_registry_without_schedules_is_told_to_get_them(operation: Operation) -> None:
    """The error has the line to write, and comes before anything is asked of the database."""
    with (
        Session() as session,
        pytest.raises(InvalidModel, match=r"registry 'bare' has no schedules: .*Jobs\(Job, schedule=Schedule\)"),
    ):
        operation(session, Jobs(Job, name="bare"), "hourly")


@EVERY_OPERATION
def test_what_is_no_session_is_refused(operation: Operation) -> None:
    """The session comes first, as in `enqueue`."""
    with pytest.raises(InvalidOption, match="a Session or an AsyncSession is wanted first, and not a Jobs"):
        operation(jobs, jobs, "hourly")


@pytest.mark.parametrize("name", [None, 5, report, "a\x00b"], ids=["none", "number", "handler", "NUL"])
def test_what_is_no_name_is_refused(session: Session, name: Any) -> None:
    """It never reaches the database, where it would end the caller's transaction."""
    add_hourly(session)

    with pytest.raises(InvalidOption, match="name (is|has)"):
        trigger(session, jobs, name)

    assert all_jobs(session) == []


@EVERY_OPERATION
def test_operation_ends_no_transaction(session: Session, operation: Operation) -> None:
    """None commits, none rolls back, whether it succeeds or fails."""
    ends: list[str] = []

    def note(name: str, *_: object) -> None:
        ends.append(name)

    for name in ("after_commit", "after_rollback", "after_soft_rollback"):
        event.listen(session, name, functools.partial(note, name))
    add_hourly(session)

    operation(session, jobs, "hourly")
    with pytest.raises(UnknownSchedule):
        operation(session, jobs, "horly")

    assert ends == []
    assert session.in_transaction()


@EVERY_ENQUEUING
def test_jobs_exist_exactly_when_the_transaction_commits(sessions: sessionmaker[Session], operation: Operation) -> None:
    """A rollback leaves nothing, nor does a savepoint's; what is committed is there for everybody."""
    with sessions() as session:
        add_hourly(session)
        session.commit()
        operation(session, jobs, "hourly")
        session.rollback()
        with session.begin_nested() as savepoint:
            operation(session, jobs, "hourly")
            savepoint.rollback()
        session.commit()
        left = all_jobs(session)
        operation(session, jobs, "hourly")
        session.commit()

    with sessions() as session:
        assert (left, len(all_jobs(session))) == ([], 1)


@EVERY_ENQUEUING
def test_workers_elsewhere_hear_of_the_queue(postgresql_url: str, operation: Operation) -> None:
    """On PostgreSQL they are notified at the commit, as by an enqueue, and of a rollback they hear nothing."""
    engine = build_engine(postgresql_url)
    dsn = make_url(postgresql_url).set(drivername="postgresql").render_as_string(hide_password=False)
    channel = jobs.table.channel
    with psycopg.connect(dsn, autocommit=True) as listener, Session(engine) as session:
        listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        add_hourly(session, queue="slow")
        session.commit()
        operation(session, jobs, "hourly")
        session.rollback()
        operation(session, jobs, "hourly")
        session.commit()
        listener.execute("SELECT pg_notify(%s, 'the end')", [channel])
        heard = [each.payload for each in listener.notifies(timeout=20, stop_after=2)]
    engine.dispose()

    assert heard == ["slow", "the end"]


def test_schedule_that_the_session_has_just_added_is_found(session: Session) -> None:
    """Pending objects are flushed as by any statement of the session."""
    add_hourly(session)
    session.add(Schedule(name="weekly", job_type="report", payload={"title": "all"}, cron="@weekly"))

    assert trigger(session, jobs, "weekly").payload == {"title": "all"}


def test_scoped_session_is_taken(sessions: sessionmaker[Session]) -> None:
    """A `scoped_session` is the thread's session: commit and rollback are its own."""
    registry = scoped_session(sessions)
    with registry() as session:
        add_hourly(session)
        registry.commit()

        job = trigger(registry, jobs, "hourly")
        is_of_the_session = job in session
        backfill(registry, jobs, "hourly", NOON, HALF_PAST)
        pause(registry, jobs, "hourly")
        registry.commit()
        trigger(registry, jobs, "hourly")
        resume(registry, jobs, "hourly")
        registry.rollback()

        assert is_of_the_session
        assert slots_of(session) == [None, NOON]
        assert registry.scalars(select(Schedule.enabled)).one() is False
        assert starts(preview(registry, jobs, "hourly", count=1)) == [NOON + HOUR]
        assert [slot.job_id is None for slot in preview_backfill(registry, jobs, "hourly", NOON, HALF_PAST)] == [False]


def run_async(url: str, use: Callable[[async_sessionmaker[AsyncSession]], Any]) -> None:
    """Run *use* with an async session factory, on a database with the schedule `hourly`."""

    async def main() -> None:
        engine = build_async_engine(url)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            sessions = async_sessionmaker(engine, expire_on_commit=False)
            async with sessions.begin() as session:
                await session.run_sync(add_hourly)
            await use(sessions)
        finally:
            await engine.dispose()

    asyncio.run(main())


def test_async_session_enqueues(async_url: str) -> None:
    """The same names, awaited: jobs are there with the commit and gone with the rollback, on each async driver."""

    async def use(sessions: async_sessionmaker[AsyncSession]) -> None:
        async with sessions() as session:
            job = await trigger(session, jobs, "hourly")
            made = await backfill(session, jobs, "hourly", NOON - HOUR, HALF_PAST)
            await session.commit()
            assert (type(job), job in session, job.slot, job.status) == (Job, True, None, "ready")
            assert [slot.is_new for slot in made] == [True, True]

            await trigger(session, jobs, "hourly")
            await backfill(session, jobs, "hourly", NOON - 2 * HOUR, NOON)
            await session.rollback()
            looked_at = await preview_backfill(session, jobs, "hourly", NOON - 2 * HOUR, HALF_PAST)
            assert [slot.job_id for slot in looked_at] == [None, *(slot.job_id for slot in made)]
            assert sorted(map(str, await session.run_sync(slots_of))) == [str(NOON - HOUR), str(NOON), "None"]
            with pytest.raises(UnknownSchedule, match="did you mean 'hourly'"):
                await trigger(session, jobs, "horly")

    run_async(async_url, use)


def test_async_session_pauses_and_previews(async_url: str) -> None:
    """Pause and resume follow the transaction of an `AsyncSession`, and a preview is read in it."""

    async def use(sessions: async_sessionmaker[AsyncSession]) -> None:
        async with sessions() as session:
            enabled = select(Schedule.enabled)
            await pause(session, jobs, "hourly")
            await session.rollback()
            assert await session.scalar(enabled) is True
            await pause(session, jobs, "hourly")
            await session.commit()
            assert await session.scalar(enabled) is False
            await resume(session, jobs, "hourly")
            await session.commit()
            assert await session.scalar(enabled) is True
            assert starts(await preview(session, jobs, "hourly", count=2)) == [NOON + HOUR, NOON + 2 * HOUR]

    run_async(async_url, use)


def test_async_scoped_session_is_taken(async_url: str) -> None:
    """An `async_scoped_session` is the task's session."""

    async def use(sessions: async_sessionmaker[AsyncSession]) -> None:
        registry = async_scoped_session(sessions, scopefunc=asyncio.current_task)
        async with registry() as session:
            job = await trigger(registry, jobs, "hourly")
            is_of_the_session = job in session
            (made,) = await backfill(registry, jobs, "hourly", NOON, HALF_PAST)
            await pause(registry, jobs, "hourly")
            await registry.commit()
            await resume(registry, jobs, "hourly")
            await registry.rollback()

            assert is_of_the_session
            assert made.is_new
            (seen,) = await preview_backfill(registry, jobs, "hourly", NOON, HALF_PAST)
            assert seen.job_id == made.job_id
            assert await registry.scalar(select(Schedule.enabled)) is False
            assert starts(await preview(registry, jobs, "hourly", count=1)) == [NOON + HOUR]

    run_async(async_url, use)


@pytest.fixture
def other_engine(tmp_path: Path) -> Iterator[Engine]:
    """Give an engine on a database of its own, for the app's other models."""
    engine = build_engine(f"sqlite:///{tmp_path / 'other.sqlite'}")
    yield engine
    engine.dispose()


def test_operation_goes_to_the_bind_of_its_models(engine: Engine, other_engine: Engine) -> None:
    """With several binds each statement is sent where its model is bound, also those that name no entity."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        add_hourly(session)
    binds: dict[Any, Any] = {Job: engine, Schedule: engine, ArchivedJob: engine, Note: engine, Base: other_engine}

    with Session(binds=binds) as session:
        for operation in OPERATIONS.values():
            operation(session, jobs, "hourly")
            with pytest.raises(UnknownSchedule, match="did you mean 'hourly'"):
                operation(session, jobs, "horly")
        session.commit()

    with Session(engine) as session:
        assert slots_of(session) == [None, NOON]


def test_own_session_class_is_asked_for_the_bind_of_a_model(engine: Engine) -> None:
    """A subclass of Session that routes by itself is told the model of every statement, as by any of the ORM."""
    Base.metadata.create_all(engine)
    asked: list[object] = []

    class Routing(Session):
        def get_bind(self, mapper: Any = None, **arguments: Any) -> Any:
            asked.append(mapper)
            return engine

    with Session(engine) as session, session.begin():
        add_hourly(session)

    with Routing() as session:
        for operation in OPERATIONS.values():
            operation(session, jobs, "hourly")
            with pytest.raises(UnknownSchedule, match="did you mean 'hourly'"):
                operation(session, jobs, "horly")

    assert asked
    assert None not in asked
