from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs import GiveUp, JobMixin, Jobs, PayloadError, WorkerError, current_job, enqueue
from sqla_jobs.testing import Clock, drain, enqueued
from tests.engines import build_async_engine, build_engine


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


clock = Clock(Base.metadata)
jobs = Jobs(Job, now=clock.now)


@jobs.handler
def write(session: Session, text: str, times: int = 1) -> None:
    session.add_all(Note(text=text) for _ in range(times))


@jobs.handler(max_attempts=2)
def fail_after_writing(session: Session) -> None:
    session.add(Note(text="never"))
    session.flush()
    raise LookupError(f"attempt {current_job().attempt}")


@jobs.handler
def write_and_go_on(session: Session, text: str) -> None:
    session.add(Note(text=text))
    enqueue(session, write, text + "!")


@jobs.handler
def give_up() -> None:
    raise GiveUp("no use")


@jobs.handler
async def double(number: int) -> int:
    return number * 2


@jobs.handler
async def write_async(session: AsyncSession, text: str) -> None:
    session.add(Note(text=text))


@pytest.fixture
def outer(engine: Engine) -> Iterator[Session]:
    """A session inside a transaction that the test rolls back, as apps' test suites have it."""
    Base.metadata.create_all(engine)
    with engine.connect() as connection, connection.begin() as transaction:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        transaction.rollback()
    with Session(engine) as session:
        assert session.scalars(select(Note)).all() == []
        assert session.scalars(select(Job)).all() == []


def texts(session: Session) -> list[str]:
    return list(session.scalars(select(Note.text).order_by(Note.id)))


def test_drain_runs_due_jobs_in_the_session_s_transaction(outer: Session) -> None:
    """What handlers write is there for the test, and gone with the test's rollback."""
    job = enqueue(outer, write, "a")
    outer.commit()

    events = drain(outer, jobs)

    assert [(event.name, event.type, event.attempt) for event in events] == [("done", "write", 1)]
    assert texts(outer) == ["a"]
    assert (job.status, job.attempts) == ("done", 1)


def test_drain_of_a_failing_job_keeps_nothing_that_it_wrote(outer: Session) -> None:
    """A failed handler is rolled back to its own beginning, and its row says why; others go on."""
    failing = enqueue(outer, fail_after_writing)
    enqueue(outer, write, "b")

    events = drain(outer, jobs)

    assert [event.name for event in events] == ["retried", "done"]
    assert texts(outer) == ["b"]
    assert failing.status == "ready"
    assert "LookupError: attempt 1" in str(failing.last_error)


def test_drain_after_the_clock_was_moved_runs_what_became_due(outer: Session) -> None:
    """A later job and a retry run when the test has moved the clock past them, and not before."""
    enqueue(outer, write.using(delay=timedelta(days=1)), "later")
    enqueue(outer, fail_after_writing)
    drain(outer, jobs)
    before = clock.read(outer)

    clock.advance(outer, timedelta(days=1))
    events = drain(outer, jobs)

    assert clock.read(outer) - before >= timedelta(days=1)
    assert sorted(event.name for event in events) == ["dead", "done"]
    assert texts(outer) == ["later"]


def test_clock_when_it_is_moved_twice_adds_up(outer: Session) -> None:
    """Moves add up, also backwards."""
    start = clock.read(outer)

    clock.advance(outer, timedelta(hours=3))
    clock.advance(outer, timedelta(hours=-1))

    assert timedelta(hours=2) <= clock.read(outer) - start < timedelta(hours=2, minutes=1)


def test_drain_goes_on_with_jobs_that_jobs_enqueue(outer: Session) -> None:
    """A chain of jobs runs to its end in one call."""
    enqueue(outer, write_and_go_on, "c")

    events = drain(outer, jobs)

    assert [event.type for event in events] == ["write_and_go_on", "write"]
    assert texts(outer) == ["c", "c!"]


def test_drain_of_some_queues_leaves_the_others(outer: Session) -> None:
    """Only the queues named are served."""
    enqueue(outer, write.using(queue="slow"), "slow")
    enqueue(outer, write, "fast")

    drain(outer, jobs, queues=["default"])

    assert texts(outer) == ["fast"]
    assert len(enqueued(outer, write, text="slow")) == 1


def test_drain_keeps_changes_of_the_test_that_are_not_flushed(outer: Session) -> None:
    """An object that the test has changed is flushed before anything is expired."""
    note = Note(text="old")
    outer.add(note)
    outer.flush()
    note.text = "new"

    drain(outer, jobs)

    assert note.text == "new"


def test_drain_runs_plain_async_handlers(outer: Session) -> None:
    """An async handler without a session runs on a loop of its own."""
    job = enqueue(outer, double, 21)

    drain(outer, jobs)

    assert (job.status, job.result) == ("done", 42)


def test_drain_tells_every_kind_of_end(outer: Session) -> None:
    """GiveUp ends a job as failed, with its reason."""
    job = enqueue(outer, give_up)

    (event,) = drain(outer, jobs)

    assert (event.name, job.status) == ("failed", "failed")
    assert "no use" in str(event.error)


def test_drain_of_an_async_session_handler_from_a_session_says_what_to_await(outer: Session) -> None:
    """A plain Session can't carry an AsyncSession: the error shows the call that can."""
    enqueue(outer, write_async, "d")

    with pytest.raises(WorkerError, match=r"await drain\(async_session, jobs\)"):
        drain(outer, jobs)


def test_drain_awaited_runs_sync_and_async_handlers(async_url: str) -> None:
    """An AsyncSession drains handlers of every kind, inside its own transaction."""

    async def scenario() -> tuple[list[str], list[str], list[str]]:
        engine = build_async_engine(async_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(engine) as session:
            await enqueue(session, write_async, "async")
            await enqueue(session, write, "sync")
            await enqueue(session, fail_after_writing)
            await enqueue(session, double, 1)
            names: list[str] = [event.name for event in await drain(session, jobs)]
            found = await session.run_sync(texts)
            await session.rollback()
            left = await session.run_sync(texts)
        await engine.dispose()
        return names, found, left

    names, found, left = asyncio.run(scenario())

    assert names == ["done", "done", "retried", "done"]
    assert found == ["async", "sync"]
    assert left == []


def test_enqueued_finds_jobs_by_some_of_their_arguments(outer: Session) -> None:
    """Arguments that are not named are not asked for."""
    once = enqueue(outer, write, "e")
    twice = enqueue(outer, write, "e", times=2)
    enqueue(outer, write, "f")

    assert enqueued(outer, write, text="e") == [once, twice]
    assert enqueued(outer, write, text="e", times=2) == [twice]
    assert enqueued(outer, double) == []


def test_enqueued_with_an_argument_that_the_handler_has_not_is_an_error(outer: Session) -> None:
    """A typing mistake in an assertion does not look like a job that was not enqueued."""
    with pytest.raises(PayloadError, match="txet"):
        enqueued(outer, write, txet="e")


def test_clock_is_seen_by_every_connection(engine: Engine, database_url: str) -> None:
    """The moved time is the database's, so all processes of a test share it."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        clock.advance(session, timedelta(days=400))
        moved = clock.read(session)

    other = build_engine(database_url)
    with Session(other) as session:
        seen = clock.read(session)
    other.dispose()

    assert timedelta(0) <= seen - moved < timedelta(minutes=1)
