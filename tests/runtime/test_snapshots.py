from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqla_jobs import current_job, enqueue_many
from sqla_jobs.runtime import snapshots
from tests.engines import build_async_engine, build_engine
from tests.runtime.app import SOON, App, MakeEngine, Note, have_tick, wait_for
from tests.runtime.statements import HEARTBEAT, Statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.runtime.app import Ear

LEVELS = ["REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture(params=LEVELS)
def strict_app(request: pytest.FixtureRequest, postgresql_url: str) -> Iterator[App]:
    """Give an app whose engine is stricter than READ COMMITTED."""
    engine = build_engine(postgresql_url, isolation_level=request.param)
    yield App(engine).create()
    engine.dispose()


def test_lease_when_a_snapshot_is_taken(strict_app: App) -> None:
    """Before a handler's snapshot its lease is renewed to its timeout and one lease more."""
    seen: list[timedelta] = []

    @strict_app.jobs.handler(timeout=timedelta(minutes=30))
    def look(session: Session) -> None:
        row = current_job().load(session)
        seen.append(row.locked_until - row.started_at)

    strict_app.add(look)

    strict_app.run(lease=timedelta(minutes=1))

    assert timedelta(minutes=31) <= seen[0] < timedelta(minutes=32)
    assert strict_app.heard() == ["done"]


def test_handler_when_it_has_no_timeout(strict_app: App, ear: Ear) -> None:
    """Where snapshots are taken, session handlers without a timeout get ten minutes, and the log says so."""
    seen: list[timedelta | None] = []

    @strict_app.jobs.handler
    def endless(session: Session) -> None:
        seen.append(current_job().remaining)

    @strict_app.jobs.handler
    def plain() -> None:
        seen.append(current_job().remaining)

    strict_app.add(endless)
    strict_app.add(plain)

    strict_app.run(concurrency=1)

    assert seen[0] is not None
    assert timedelta(minutes=9) < seen[0] <= timedelta(minutes=10)
    assert seen[1] is None
    warnings = ear.lines("needs a timeout", level=30)
    assert len(warnings) == 1
    assert "endless got 0:10:00" in warnings[0]
    assert "plain" not in warnings[0]


def test_backlog_when_sessions_take_snapshots(strict_app: App) -> None:
    """Two workers over a backlog do each job once; a write that the database can't serialize is refunded."""
    runs: Counter[str] = Counter()

    @strict_app.jobs.handler(timeout=timedelta(minutes=1))
    def write(session: Session, number: int) -> None:
        session.execute(select(Note.id).limit(1))
        session.add(Note(text=f"{number:03}"))
        runs[f"{number:03}"] += 1

    with strict_app.sessions.begin() as session:
        enqueue_many(session, [write.job(number) for number in range(40)])

    with strict_app.worker(), strict_app.worker():
        names: list[str] = []
        while names.count("done") < 40:
            names.append(strict_app.hear_any())

    rows = [strict_app.row(job) for job in range(1, 41)]
    assert strict_app.notes() == sorted(runs)
    assert len(runs) == 40
    assert {(row.status, row.attempts) for row in rows} == {("done", 1)}
    # Released: claimed ahead of the slots, and given back after a second's wait for one on a slow machine.
    assert set(names) <= {"done", "interrupted", "released"}
    interrupted = names.count("interrupted")
    assert interrupted == sum(row.refunds for row in rows)
    assert 40 <= runs.total() <= 40 + interrupted


def test_serialization_failure_when_handlers_conflict(strict_app: App) -> None:
    """A handler that loses to a concurrent commit is interrupted, refunded, and runs again on a new snapshot."""
    runs: list[None] = []

    @strict_app.jobs.handler(max_attempts=1, timeout=timedelta(minutes=1))
    def change(session: Session) -> None:
        runs.append(None)
        note = session.scalars(select(Note)).one()
        if len(runs) == 1:
            with strict_app.sessions.begin() as other:
                other.scalars(select(Note)).one().text = "by another"
        note.text = f"{note.text}, then run {len(runs)}"

    with strict_app.sessions.begin() as session:
        session.add(Note(text="fresh"))
    job = strict_app.add(change)

    strict_app.run(within=SOON)

    row = strict_app.row(job)
    assert strict_app.notes() == ["by another, then run 2"]
    assert (row.status, row.attempts, row.refunds) == ("done", 1, 1)
    assert strict_app.heard() == ["interrupted", "done"]


@pytest.mark.parametrize("level", LEVELS)
def test_async_handler_when_a_snapshot_is_taken(postgresql_url: str, level: str, make_engine: MakeEngine) -> None:
    """Async sessions above READ COMMITTED settle after heartbeats of others have come and gone."""
    engine = make_engine(postgresql_url)
    app = App(engine, async_engine=build_async_engine(postgresql_url, isolation_level=level)).create()
    runs, is_over = threading.Event(), threading.Event()

    @app.jobs.handler(timeout=timedelta(minutes=1))
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="written"))
        await session.flush()
        await asyncio.to_thread(beat)

    @app.jobs.handler
    def other() -> None:
        runs.set()
        wait_for(is_over)

    def beat() -> None:
        wait_for(runs)
        have_tick(worker, "heartbeat")

    job = app.add(write)
    app.add(other)
    worker = app.worker()

    with worker:
        assert app.hear("done").job_id == job
        is_over.set()
        app.hear("done")

    assert app.notes() == ["written"]


@pytest.mark.parametrize("level", [*LEVELS, "REPEATABLE_READ"])
def test_handler_when_it_raises_its_own_level(pg_app: App, level: str, ear: Ear) -> None:
    """A handler that raises its session's isolation level, and runs longer than a heartbeat, commits at its end."""
    beats = Statements(pg_app.engine, HEARTBEAT)
    runs, is_over = threading.Event(), threading.Event()
    seen: list[timedelta | None] = []

    @pg_app.jobs.handler
    def write(session: Session) -> None:
        session.connection(execution_options={"isolation_level": level})
        assert session.scalars(select(Note)).all() == []
        wait_for(runs)
        before = beats.answered
        for _ in range(2):
            have_tick(worker, "heartbeat")
        assert beats.answered >= before + 2
        session.add(Note(text="written"))
        seen.append(current_job().remaining)

    @pg_app.jobs.handler
    def other() -> None:
        runs.set()
        wait_for(is_over)

    job = pg_app.add(write)
    pg_app.add(other)
    worker = pg_app.worker()

    with worker:
        assert pg_app.hear("done").job_id == job
        is_over.set()
        pg_app.hear("done")

    assert pg_app.notes() == ["written"]
    assert seen[0] is not None
    assert timedelta(minutes=9) < seen[0] <= timedelta(minutes=10)
    assert len(ear.lines("write raises its session's isolation level", level=30)) == 1


def test_async_handler_when_it_raises_its_own_level(async_app: App) -> None:
    """The same for an async handler: the event loop goes on while the lease is renewed. A file has no such levels."""
    assert async_app.async_sessions is not None
    beats = Statements(async_app.async_sessions.kw["bind"].sync_engine, HEARTBEAT)
    runs, is_over = threading.Event(), threading.Event()

    @async_app.jobs.handler(timeout=timedelta(minutes=1))
    async def write(session: AsyncSession) -> None:
        await session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
        assert (await session.scalars(select(Note))).all() == []
        if async_app.engine.dialect.name == "postgresql":
            await asyncio.to_thread(beat)
        session.add(Note(text="written"))

    @async_app.jobs.handler
    async def other() -> None:
        runs.set()
        await asyncio.to_thread(wait_for, is_over)

    def beat() -> None:
        wait_for(runs)
        before = beats.answered
        for _ in range(2):
            have_tick(worker, "heartbeat")
        assert beats.answered >= before + 2

    job = async_app.add(write)
    async_app.add(other)
    worker = async_app.worker()

    with worker:
        assert async_app.hear("done").job_id == job
        is_over.set()
        async_app.hear("done")

    assert async_app.notes() == ["written"]


def test_async_handler_when_the_level_it_raises_brings_a_timeout(
    postgresql_url: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An async handler that gets its timeout while it runs is cancelled at its end, told once, and frees its slot."""
    monkeypatch.setattr(snapshots, "DEFAULT_TIMEOUT", timedelta(milliseconds=100))
    app = App(make_engine(postgresql_url), async_engine=build_async_engine(postgresql_url)).create()
    ended: list[str] = []

    @app.jobs.handler(max_attempts=1)
    async def write(session: AsyncSession) -> None:
        try:
            await session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @app.jobs.handler
    async def other() -> None: ...

    job, second = app.add(write), app.add(other)

    app.run(concurrency=1)

    assert ended == ["cancelled"]
    assert (app.row(job).status, app.row(second).status) == ("dead", "done")
    assert (app.row(job).last_error or "").startswith("TimeoutError: handler 'write' ran longer than its timeout")
    assert sorted(app.heard()) == ["dead", "done"]


def test_level_when_a_session_has_no_job(pg_app: App) -> None:
    """Sessions of the app's own begin at any level while a worker runs, and other sessions of a handler's do."""
    notes: list[str] = []

    @pg_app.jobs.handler
    def write(session: Session) -> None:
        with pg_app.sessions() as own:
            own.connection(execution_options={"isolation_level": "SERIALIZABLE"})
            notes.extend(own.scalars(select(Note.text)))
        row = current_job().load(session)
        assert row.locked_until - row.started_at < timedelta(minutes=2)

    job = pg_app.add(write)

    pg_app.run(lease=timedelta(minutes=1))

    assert pg_app.row(job).status == "done"
