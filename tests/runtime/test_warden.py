from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqla_jobs import WorkerError, current_job
from sqla_jobs.runtime import warden
from tests.runtime.app import AT_ONCE, PATIENCE, App, Note, end_time, wait_for

if TYPE_CHECKING:
    from tests.runtime.app import Ear

SHORT = timedelta(milliseconds=100)

HOUR = timedelta(hours=1)
"""Over when the test says so, and not before: `end_time`."""


@pytest.mark.parametrize("kind", ["plain", "session"])
def test_sync_handler_when_its_time_is_up(app: App, kind: str) -> None:
    """A sync handler past its timeout has failed: it is told to stop, and what it still does changes nothing."""
    started, is_over = threading.Event(), threading.Event()
    told: list[bool] = []

    def linger() -> None:
        told.append(current_job().cancelled)
        started.set()
        wait_for(is_over)
        told.append(current_job().cancelled)

    @app.jobs.handler(timeout=HOUR, backoff=AT_ONCE)
    def plain() -> str:
        linger()
        return "too late"

    @app.jobs.handler(timeout=HOUR, backoff=AT_ONCE)
    def writing(session: Session) -> str:
        linger()
        session.add(Note(text="too late"))
        session.flush()
        return "too late"

    job = app.add(plain if kind == "plain" else writing)
    lease = timedelta(minutes=5)

    with app.worker(concurrency=2, lease=lease) as worker:
        wait_for(started)
        end_time(worker)
        event = app.hear("retried")
        fenced = app.row(job)
        is_over.set()

    row = app.row(job)
    assert told == [False, True]
    assert (fenced.status, fenced.attempts, fenced.locked_by) == ("ready", 1, None)
    assert "TimeoutError" in (event.error or "")
    assert "1:00:00" in (event.error or "")
    # Its thread may still be at it: nobody runs the job again before a lease has passed, whatever its backoff.
    assert fenced.started_at is not None
    assert fenced.run_at - fenced.started_at >= lease
    assert (row.status, row.attempts, row.result, row.run_at) == ("ready", 1, None, fenced.run_at)
    assert (app.notes(), app.heard()) == ([], [])


def test_sync_handler_when_its_time_is_up_keeps_its_slot(app: App) -> None:
    """A handler past its timeout holds its slot: no more run at once than the concurrency says."""
    is_over, running = threading.Event(), threading.Event()

    @app.jobs.handler(timeout=SHORT, max_attempts=1)
    def stuck() -> None:
        wait_for(is_over)

    @app.jobs.handler
    def work() -> None:
        running.set()
        assert not is_over.is_set()

    app.add(stuck)

    with app.worker(concurrency=2) as worker:
        app.hear("dead")
        for _ in range(3):
            app.add(work)
            app.hear("done")
        assert worker.is_healthy
        is_over.set()

    assert app.statuses() == ["dead", "done", "done", "done"]


def test_sync_handler_when_its_time_is_up_at_its_last_attempt(app: App) -> None:
    """A timeout at the last attempt ends the job as dead, with the timeout as its error."""
    is_over = threading.Event()

    @app.jobs.handler(timeout=SHORT, max_attempts=1)
    def linger() -> None:
        wait_for(is_over)

    job = app.add(linger)

    with app.worker(concurrency=2):
        app.hear("dead")
        is_over.set()

    assert (app.row(job).status, app.row(job).attempts) == ("dead", 1)
    assert (app.row(job).last_error or "").startswith("TimeoutError: handler 'linger' ran longer than its timeout")


def test_async_handler_when_its_time_is_up(async_app: App) -> None:
    """An async handler past its timeout is cancelled, its writes are rolled back, and it has failed."""
    ended: list[str] = []

    @async_app.jobs.handler(timeout=SHORT, max_attempts=1)
    async def write(session: AsyncSession) -> None:
        try:  # around all of it: on a busy machine its time may be up at any point
            session.add(Note(text="written"))
            await session.flush()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @async_app.jobs.handler
    async def other(session: AsyncSession) -> None:
        await session.execute(select(Note.id))

    first, job, last = async_app.add(other), async_app.add(write), async_app.add(other)

    async_app.run(concurrency=1)

    assert ended == ["cancelled"]
    assert async_app.notes() == []
    assert [async_app.row(each).status for each in (first, job, last)] == ["done", "dead", "done"]
    assert (async_app.row(job).last_error or "").startswith("TimeoutError: handler 'write' ran longer than its timeout")


def test_async_handler_when_it_ends_in_time(app: App) -> None:
    """A timeout that is not reached changes nothing, and no cancellation comes after the end."""

    @app.jobs.handler(timeout=timedelta(seconds=PATIENCE))
    async def work() -> str:
        return "in time"

    job = app.add(work)

    app.run()

    assert (app.row(job).status, app.row(job).result) == ("done", "in time")


def test_async_handler_when_it_blocks_the_loop_past_its_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """An async handler that blocks its loop can't be cancelled; it is fenced out like a sync one."""
    monkeypatch.setattr(warden, "ASYNC_PATIENCE", 0.1)
    is_over = threading.Event()

    @app.jobs.handler(timeout=SHORT, max_attempts=1)
    async def block() -> str:
        wait_for(is_over)
        return "too late"

    job = app.add(block)

    with app.worker(concurrency=2):
        app.hear("dead")
        is_over.set()

    assert (app.row(job).status, app.row(job).result) == ("dead", None)
    assert app.heard() == []


def test_worker_when_overdue_handlers_hold_every_slot(app: App, ear: Ear) -> None:
    """A worker whose slots are all stuck says so, is not healthy, and can't go on."""
    is_over = threading.Event()

    @app.jobs.handler(timeout=SHORT, max_attempts=1)
    def stuck() -> None:
        wait_for(is_over)

    for _ in range(2):
        app.add(stuck)
    worker = app.worker(concurrency=2)

    with pytest.raises(
        WorkerError, match=r"every slot is held by a handler that ran past its timeout: stuck \(job 1\)"
    ):
        worker.run_until_idle()

    is_over.set()
    assert not worker.is_healthy
    assert app.statuses() == ["dead", "dead"]
    assert any("every slot of worker" in line for line in ear.lines(level=50))


def test_timeout_when_the_handler_is_in_its_commit(pg_app: App) -> None:
    """A timeout that comes while the handler's own commit is under way changes nothing: the commit decides."""
    committing, is_over = threading.Event(), threading.Event()

    def linger(_: Session) -> None:
        committing.set()
        wait_for(is_over)

    @pg_app.jobs.handler(timeout=HOUR, max_attempts=1)
    def write(session: Session) -> None:
        session.add(Note(text="written"))
        event.listen(session, "before_commit", linger)

    job = pg_app.add(write)

    with pg_app.worker(concurrency=3) as worker:
        wait_for(committing)
        end_time(worker)
        is_over.set()
        assert pg_app.hear("done").job_id == job

    assert pg_app.notes() == ["written"]
    assert pg_app.row(job).status == "done"
