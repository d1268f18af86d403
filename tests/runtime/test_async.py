from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session

from sqla_jobs import GiveUp, InvalidSessions, Retry, Snooze, current_job, enqueue
from tests.engines import build_async_engine
from tests.runtime.app import AT_ONCE, PATIENCE, SOON, App, Job, Note
from tests.runtime.commits import CutCommit


def test_handlers_when_the_engine_is_async_only(async_app: App) -> None:
    """An app with nothing but an async engine runs async handlers, with a session and without, and plain sync ones."""
    threads: dict[str, str] = {}

    @async_app.jobs.handler
    async def writing(session: AsyncSession, text: str) -> str:
        threads["writing"] = threading.current_thread().name
        session.add(Note(text=text))
        await session.flush()
        return text.upper()

    @async_app.jobs.handler
    async def awaited(number: int) -> int:
        threads["awaited"] = threading.current_thread().name
        return number + 1

    @async_app.jobs.handler
    def plain(number: int) -> int:
        threads["plain"] = threading.current_thread().name
        return number + 2

    jobs = [async_app.add(writing, "note"), async_app.add(awaited, 1), async_app.add(plain, 1)]

    async_app.run()

    rows = [async_app.row(job) for job in jobs]
    assert async_app.notes() == ["note"]
    assert [(row.status, row.result) for row in rows] == [("done", "NOTE"), ("done", 2), ("done", 3)]
    assert threads["writing"] == threads["awaited"] != threads["plain"]


def test_async_handler_when_it_raises_after_writing(async_app: App) -> None:
    """An async handler that raises leaves none of its writes, and its retry starts afresh."""
    attempts: list[None] = []

    @async_app.jobs.handler(backoff=AT_ONCE)
    async def write(session: AsyncSession) -> None:
        attempts.append(None)
        session.add(Note(text=f"attempt {len(attempts)}"))
        await session.flush()
        if len(attempts) == 1:
            raise RuntimeError("once")

    job = async_app.add(write)

    async_app.run()

    row = async_app.row(job)
    assert async_app.notes() == ["attempt 2"]
    assert (row.status, row.attempts) == ("done", 2)
    assert "RuntimeError: once" in (row.last_error or "")
    assert async_app.heard() == ["retried", "done"]


def test_async_commit_when_a_deferred_constraint_breaks(async_app: App) -> None:
    """A commit that the database refuses leaves neither the writes nor the completion, on async drivers too."""

    @async_app.jobs.handler(max_attempts=1)
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="orphan", parent_id=4711))

    job = async_app.add(write)

    async_app.run()

    assert async_app.notes() == []
    assert async_app.row(job).status == "dead"
    assert "IntegrityError" in (async_app.row(job).last_error or "")
    assert async_app.heard() == ["dead"]


@pytest.mark.parametrize("gets_through", [True, False])
def test_async_commit_when_its_answer_is_lost(async_app: App, gets_through: bool) -> None:
    """Of a commit that was never answered both stand, once, if it went through; else the job runs again, refunded."""
    assert async_app.async_sessions is not None
    cut = CutCommit(async_app.async_sessions.kw["bind"].sync_engine, gets_through=gets_through)
    runs: list[None] = []

    @async_app.jobs.handler(max_attempts=1)
    async def write(session: AsyncSession) -> None:
        runs.append(None)
        session.add(Note(text=f"run {len(runs)}"))
        if len(runs) == 1:
            await session.run_sync(cut.arm)

    job = async_app.add(write)

    async_app.run(within=SOON)

    row = async_app.row(job)
    assert cut.cuts == 1
    assert async_app.notes() == [f"run {len(runs)}"]
    assert (row.status, row.attempts, row.refunds) == ("done", 1, 0 if gets_through else 1)
    assert async_app.heard() == (["done"] if gets_through else ["interrupted", "done"])


def test_signals_when_async_handlers_raise_them(async_app: App) -> None:
    """`Retry`, `Snooze` and `GiveUp` mean the same to async handlers."""

    @async_app.jobs.handler
    async def steer(session: AsyncSession, how: str) -> None:
        session.add(Note(text=how))
        await session.flush()
        if how == "retry":
            raise Retry("busy", delay=timedelta(hours=1))
        if how == "snooze":
            raise Snooze(delay=timedelta(hours=1))
        raise GiveUp("gone")

    jobs = [async_app.add(steer, how) for how in ("retry", "snooze", "give up")]

    async_app.run()

    rows = [async_app.row(job) for job in jobs]
    assert async_app.notes() == []
    assert [(row.status, row.attempts) for row in rows] == [("ready", 1), ("ready", 0), ("failed", 1)]


def test_session_handler_when_there_are_async_sessions_only(async_app: App) -> None:
    """A handler that wants a Session is refused at the start, by name, where no factory makes one."""

    @async_app.jobs.handler
    def write(session: Session) -> None: ...

    worker = async_app.worker()

    with pytest.raises(InvalidSessions, match=r"'write' takes a Session: give the worker sessions=…"):
        worker.start()


def test_async_handlers_when_there_are_both_factories(async_app: App) -> None:
    """One worker serves Session and AsyncSession handlers, each with its own kind of engine on the same database."""

    @async_app.jobs.handler
    def sync_write(session: Session) -> None:
        session.add(Note(text="sync"))

    @async_app.jobs.handler
    async def async_write(session: AsyncSession) -> None:
        session.add(Note(text="async"))

    async_app.add(sync_write)
    async_app.add(async_write)

    async_app.run(sessions=async_app.sessions)

    assert async_app.notes() == ["async", "sync"]
    assert async_app.statuses() == ["done", "done"]


def test_async_handler_when_it_enqueues_and_loads(async_app: App) -> None:
    """In an async handler `enqueue` and `current_job().load` are awaited, and share the job's transaction."""
    loaded: list[str] = []

    @async_app.jobs.handler
    async def child(parent: int) -> None: ...

    @async_app.jobs.handler
    async def parent(session: AsyncSession) -> None:
        row: Job = await current_job().load(session)
        loaded.append(row.status)
        await enqueue(session, child, parent=row.id)

    job = async_app.add(parent)

    async_app.run()

    assert loaded == ["running"]
    assert async_app.statuses() == ["done", "done"]
    assert async_app.row(job + 1).payload == {"parent": job}


def test_async_handlers_when_they_wait_for_each_other(async_app: App) -> None:
    """Async handlers run at the same time on one loop, as many as there are slots."""
    barrier = asyncio.Barrier(4)

    @async_app.jobs.handler(timeout=timedelta(seconds=PATIENCE))
    async def meet() -> None:
        await barrier.wait()

    for _ in range(8):
        async_app.add(meet)

    async_app.run(concurrency=4)

    assert async_app.statuses() == ["done"] * 8
    assert async_app.heard() == ["done"] * 8


def test_async_scoped_session_when_it_is_the_factory(async_url: str, async_app: App) -> None:
    """An async_scoped_session is looked through: each job has a session of its own."""
    scoped = async_scoped_session(async_sessionmaker(build_async_engine(async_url)), scopefunc=lambda: 1)
    sessions: list[AsyncSession] = []

    @async_app.jobs.handler
    async def write(session: AsyncSession) -> None:
        sessions.append(session)
        session.add(Note(text=f"note {len(sessions)}"))

    async_app.add(write)
    async_app.add(write)

    async_app.run(async_sessions=scoped)

    assert async_app.notes() == ["note 1", "note 2"]
    assert sessions[0] is not sessions[1]
    assert not scoped.registry.has()


def test_worker_when_an_event_loop_embeds_it(async_url: str, async_app: App) -> None:
    """An async app enqueues with its own AsyncSession, on its own loop, beside a worker that it has entered."""
    ran = threading.Event()

    @async_app.jobs.handler
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="written"))
        ran.set()

    async def main() -> list[str]:
        engine = build_async_engine(async_url)
        sessions = async_sessionmaker(engine)
        with async_app.worker(async_sessions=sessions):
            async with sessions.begin() as session:
                await enqueue(session, write)
            await asyncio.to_thread(async_app.hear, "done")
        async with sessions() as session:
            notes = [*await session.scalars(select(Note.text))]
        await engine.dispose()
        return notes

    assert asyncio.run(main()) == ["written"]
    assert ran.is_set()
