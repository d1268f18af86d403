"""Heartbeats that fail, break, or can't get through."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, event, func, select, update
from sqlalchemy.orm import Session

from sqla_jobs import WorkerError, current_job
from sqla_jobs.runtime import heartbeat
from tests.crash.app import hold_gil, speak
from tests.runtime.app import AT_ONCE, App, Job, Note, have_tick, wait_for
from tests.runtime.statements import HEARTBEAT, Statements

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.crash.scene import Scene
    from tests.runtime.app import Ear

LEASE = timedelta(seconds=1)

LONG_LEASE = timedelta(seconds=30)
"""So that a busy machine doesn't let it run out in a test that is about something else."""


def die(connection: Connection) -> None:
    """Have the server's end of a connection gone when it is next used."""
    driver: Any = connection.connection.driver_connection
    with connection.engine.connect() as other:
        other.execute(select(func.pg_terminate_backend(driver.info.backend_pid, 10_000)))


def deadlock(connection: Connection) -> None:
    """Have the server fail as it does for the victim of a deadlock."""
    connection.exec_driver_sql("DO $$ BEGIN RAISE 'deadlock detected' USING ERRCODE = 'deadlock_detected'; END $$")


@pytest.mark.parametrize("failure", [die, deadlock])
def test_f05_heartbeat_that_failed_once_goes_on(
    pg_app: App, ear: Ear, failure: Callable[[Connection], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat whose connection dies, or that a deadlock ends, is sent again: one warning, and the job runs once."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", 300)
    beats, is_over = Statements(pg_app.engine, HEARTBEAT), threading.Event()

    @pg_app.jobs.handler
    def slow() -> None:
        wait_for(is_over)

    job = pg_app.add(slow)

    with pg_app.worker(lease=LONG_LEASE):
        beats.wait_for(1)
        before = pg_app.row(job).locked_until
        beats.before_next(failure)
        beats.wait_for(3)
        after = pg_app.row(job).locked_until
        is_over.set()
        pg_app.hear("done")

    row = pg_app.row(job)
    assert before is not None
    assert after is not None
    assert before < after
    assert (row.status, row.claims, row.lease_expirations) == ("done", 1, 0)
    assert len(ear.lines("the database does not serve the heartbeat", level=30)) == 1
    assert len(ear.lines("the database is back")) == 1
    assert pg_app.heard() == []


def test_f05_lease_that_no_heartbeat_renews_is_lost(pg_app: App, ear: Ear) -> None:
    """When beats fail for longer than a lease, the handler is told, the job runs again, and the first end is void."""
    is_broken, runs_again = threading.Event(), threading.Event()
    told: list[bool] = []

    @pg_app.jobs.handler(backoff=AT_ONCE)
    def write(session: Session, number: int) -> None:
        if told:
            is_broken.clear()  # or its own lease would run out on a busy machine
            runs_again.set()
        else:
            told.append(current_job().cancelled)
            is_broken.set()
            wait_for(runs_again)
            told.append(current_job().cancelled)
        session.add(Note(text=f"job {number}, attempt {current_job().attempt}"))

    @event.listens_for(pg_app.engine, "before_cursor_execute")
    def break_beats(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if HEARTBEAT in statement and is_broken.is_set():
            deadlock(connection)

    job = pg_app.add(write, 1)
    with pg_app.worker(lease=LEASE):
        ends = sorted(pg_app.hear_any() for _ in range(4))
        after = pg_app.add(write, 2)
        assert pg_app.hear("done").job_id == after

    rows = [pg_app.row(each) for each in (job, after)]
    assert told == [False, True]
    assert ends == ["done", "lease_expired", "lease_lost", "retried"]
    assert [(row.status, row.attempts, row.lease_expirations) for row in rows] == [("done", 2, 1), ("done", 1, 0)]
    assert pg_app.notes() == ["job 1, attempt 2", "job 2, attempt 1"]
    assert len(ear.lines("the database does not serve the heartbeat", level=30)) == 1


def test_f05_worker_whose_heartbeat_breaks_ends(pg_app: App, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the heartbeat that is no database's ends the worker with an error: it never goes on without one."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", 300)

    @pg_app.jobs.handler
    async def endless() -> None:
        await asyncio.Event().wait()

    @event.listens_for(pg_app.engine, "before_cursor_execute")
    def broken_plugin(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if HEARTBEAT in statement:
            raise LookupError("broken plugin")

    job = pg_app.add(endless)

    with pytest.raises(WorkerError, match="can't go on: its heartbeat has failed: LookupError: broken plugin"):
        pg_app.run(lease=LONG_LEASE)

    row = pg_app.row(job)
    assert len(ear.lines("the heartbeat of worker", level=50)) == 1
    assert (row.status, row.attempts, row.locked_by) == ("ready", 0, None)


def test_f06_async_handler_that_blocks_its_event_loop_keeps_its_lease(pg_app: App) -> None:
    """A handler that sleeps on its event loop runs once, and so do those that it holds up: heartbeats go on."""
    blocks, is_over = threading.Event(), threading.Event()
    runs: list[str] = []

    @pg_app.jobs.handler
    async def block() -> None:
        runs.append("block")
        blocks.set()
        wait_for(is_over)

    @pg_app.jobs.handler
    async def behind() -> None:
        runs.append("behind")

    jobs = [pg_app.add(block), pg_app.add(behind)]

    with pg_app.worker() as worker:
        wait_for(blocks)
        with pg_app.sessions.begin() as session:  # the leases of both are over
            session.execute(update(Job).values(locked_until=Job.created_at))
        have_tick(worker, "heartbeat")
        reaped = worker.reap()
        is_over.set()
        for _ in jobs:
            pg_app.hear("done")

    rows = [pg_app.row(job) for job in jobs]
    assert (reaped, runs) == (0, ["block", "behind"])
    assert [(row.status, row.claims, row.lease_expirations) for row in rows] == [("done", 1, 0)] * 2


def test_f06_handler_that_holds_the_gil_is_run_again_and_fenced_out(scene: Scene, tmp_path: Path) -> None:
    """C code that lets no thread run stops the heartbeat, too: another has the job then, and the log says how long."""
    os.mkfifo(path := tmp_path / "gate")
    (job_id,) = scene.enqueue([hold_gil.job(path=str(path))])
    holder = scene.start(lease=1)
    holder.expect("started", job=job_id, attempt=1)
    other = scene.start(lease=1)
    other.expect("log", job=job_id, end="done")
    assert other.stopped() == 0
    before = scene.columns(job_id)

    path.write_text("let go")

    line = holder.expect("log", job=job_id, end="lease_lost").facts["message"]
    (next_id,) = scene.enqueue([speak.job()])
    holder.expect("log", job=next_id, end="done")
    holder.signal(signal.SIGTERM)
    assert holder.ended() == 0
    assert scene.columns(job_id) == before
    assert (before["status"], before["attempts"], before["lease_expirations"]) == ("done", 2, 1)
    assert re.search(r"job \d+ hold_gil lease_lost: .*silent for [\d.]+ s", line)
