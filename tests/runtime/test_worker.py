from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.orm import Session

from sqla_jobs import WorkerError, current_job, enqueue
from tests.runtime.app import PATIENCE, SOON, App, Base, Ear, Job, Note, ended, wait_for

if TYPE_CHECKING:
    from tests.runtime.app import Ear

ROOT = Path(__file__).parents[2]

NO_TIME = timedelta(0)


def our_threads() -> list[threading.Thread]:
    """Return the threads that workers have started and that live."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("sqla_jobs")]


def test_worker_when_it_is_embedded(app: App) -> None:
    """Inside of `with` a worker runs beside the app; after it, nothing runs, and what waits stays ready."""

    @app.jobs.handler
    def work() -> None: ...

    worker = app.worker(queues=["default"], name="web")
    assert not worker.is_healthy

    with worker as entered:
        assert entered is worker
        assert worker.is_healthy
        assert worker.name.startswith("web:")
        first = app.add(work)
        app.hear("done")
    second = app.add(work)

    assert not worker.is_healthy
    assert (app.row(first).status, app.row(second).status) == ("done", "ready")


def test_worker_when_it_is_started_twice(app: App) -> None:
    """A worker is for one start: the second says to make a new one, before and after the first has ended."""
    worker = app.worker()

    with worker, pytest.raises(WorkerError, match="this worker was started before: make a new Worker for each start"):
        worker.start()
    with pytest.raises(WorkerError, match="started before"):
        worker.start()


def test_worker_when_it_was_never_started(app: App) -> None:
    """Stopping a worker that was never started is no error; reaping with it is one that says what to do."""
    worker = app.worker()

    worker.stop()

    with pytest.raises(WorkerError, match=r"not started: enter it, `with Worker\(…\) as worker`"):
        worker.reap()


def test_names_when_workers_share_one(app: App) -> None:
    """Two workers of one name are told apart in `locked_by`, so that none passes for the other."""
    first, second = app.worker(name="shop"), app.worker(name="shop")

    assert first.name != second.name
    assert [worker.name.split(":")[0] for worker in (first, second)] == ["shop", "shop"]
    assert str(os.getpid()) in first.name.split(":")


def test_stop_when_a_handler_runs(app: App, ear: Ear) -> None:
    """`stop` waits for what runs, claims no more, and comes back when it has been settled."""
    started, is_over = threading.Event(), threading.Event()

    @app.jobs.handler
    def slow(session: Session) -> None:
        session.add(Note(text="written"))
        started.set()
        wait_for(is_over)

    @app.jobs.handler
    def other() -> None: ...

    job = app.add(slow)
    worker = app.worker()
    worker.start()
    wait_for(started)

    with ended(threading.Thread(target=worker.stop)):
        ear.wait_for("claims no more")
        late = app.add(other)
        is_over.set()

    assert (app.row(job).status, app.row(late).status) == ("done", "ready")
    assert app.notes() == ["written"]
    worker.stop()


def test_stop_when_a_sync_handler_outlasts_the_grace(app: App, ear: Ear) -> None:
    """Embedded, a sync handler that outlasts the grace is left running: its row and lease stay as they are."""
    started, is_over, is_done = threading.Event(), threading.Event(), threading.Event()
    told: list[bool] = []

    @app.jobs.handler
    def slow() -> None:
        started.set()
        wait_for(is_over)
        told.append(current_job().cancelled)
        is_done.set()

    job = app.add(slow)

    with app.worker(grace=NO_TIME):
        wait_for(started)
    row = app.row(job)
    is_over.set()
    wait_for(is_done)

    assert (row.status, row.attempts) == ("running", 1)
    assert row.locked_until is not None
    assert row.locked_until > row.run_at
    assert told == [True]
    assert len(ear.lines("leaves 1 handlers running", level=30)) == 1


def test_stop_when_an_async_handler_outlasts_the_grace(app: App) -> None:
    """An async handler that outlasts the grace is cancelled and given back: no attempt used, ready for others."""
    started = threading.Event()
    ended_by: list[str] = []

    @app.jobs.handler
    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended_by.append("cancelled" if current_job().cancelled else "?")
            raise

    job = app.add(slow)

    with app.worker(grace=NO_TIME):
        wait_for(started)

    row = app.row(job)
    assert ended_by == ["cancelled"]
    assert (row.status, row.attempts, row.locked_by, row.last_error) == ("ready", 0, None, None)
    assert row.run_at == app.row(job).created_at
    assert app.heard() == ["released"]


def test_run_when_it_is_stopped_by_a_signal(app: App) -> None:
    """`run` blocks until SIGTERM, lets the running handler end, returns, and puts the signal handlers back."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    @app.jobs.handler
    def last(session: Session) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        session.add(Note(text="after the signal"))

    app.add(last)

    app.worker().run()

    assert app.notes() == ["after the signal"]
    assert app.statuses() == ["done"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_run_when_a_signal_hits_another_thread(app: App) -> None:
    """A signal ends the wait whichever thread it hits, and however close to the wait; the app's own signals don't."""
    usr1: list[int] = []
    former = signal.signal(signal.SIGUSR1, lambda number, _frame: usr1.append(number))

    @app.jobs.handler
    def first() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    @app.jobs.handler
    def last() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    app.add(first)
    app.add(last.using(delay=timedelta(milliseconds=200)))

    app.worker().run()

    signal.signal(signal.SIGUSR1, former)
    assert app.statuses() == ["done", "done"]
    assert usr1 == [signal.SIGUSR1]


def test_run_when_it_is_stopped_from_another_thread(app: App) -> None:
    """`stop` from a handler or another thread makes `run` return, also when `run` is not in the main thread."""

    @app.jobs.handler
    def leave() -> None:
        worker.stop()

    worker = app.worker()
    app.add(leave)

    with ended(threading.Thread(target=worker.run)):
        pass

    assert app.statuses() == ["done"]


def test_run_when_it_was_stopped_before(app: App) -> None:
    """A worker that was stopped before it ran returns at once."""
    before, worker = our_threads(), app.worker()
    worker.stop()

    worker.run()

    assert set(our_threads()) <= set(before)  # what the test before has left may end just now


def test_run_until_idle_when_there_is_nothing_to_do(app: App) -> None:
    """On an empty table `run_until_idle` returns."""
    app.run()

    assert app.statuses() == []


def test_run_until_idle_when_jobs_enqueue_jobs(app: App) -> None:
    """It runs what the jobs that it runs enqueue, to the last."""

    @app.jobs.handler
    def grow(session: Session, depth: int) -> None:
        session.add(Note(text=f"{current_job().id:03}"))
        if depth:
            enqueue(session, grow, depth=depth - 1)
            enqueue(session, grow, depth=depth - 1)

    app.add(grow, 4)

    app.run()

    assert len(app.notes()) == 31
    assert set(app.statuses()) == {"done"}


def test_run_until_idle_when_jobs_become_due_within(app: App) -> None:
    """With *within* it waits for jobs that become due in that time, and leaves those that come later."""
    attempts: list[None] = []

    @app.jobs.handler(backoff=lambda _: timedelta(milliseconds=200))
    def fail_once() -> None:
        attempts.append(None)
        if len(attempts) == 1:
            raise RuntimeError("once")

    @app.jobs.handler
    def later() -> None: ...

    app.add(fail_once)
    soon, late = app.add(later.using(delay=timedelta(milliseconds=400))), app.add(later.using(delay=timedelta(hours=1)))

    app.run(within=SOON)

    assert len(attempts) == 2
    assert [app.row(job).status for job in (soon, late)] == ["done", "ready"]


def test_run_until_idle_when_jobs_are_for_others(app: App) -> None:
    """Jobs of other queues, unknown types, and those that run elsewhere don't keep it from its end."""
    others = app.registry()

    @others.handler
    def unknown() -> None: ...

    @app.jobs.handler
    def work() -> None: ...

    app.add(unknown)
    app.add(work.using(queue="other"))
    app.add(work)

    app.run(queues=["default"])

    assert app.statuses() == ["ready", "ready", "done"]


def test_run_until_idle_when_the_worker_fails(pg_app: App, ear: Ear) -> None:
    """An error that is no database's ends the worker with its cause, rather than leave it half alive."""

    @pg_app.jobs.handler
    def work() -> None: ...

    @event.listens_for(pg_app.engine, "before_cursor_execute")
    def broken_plugin(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "SKIP LOCKED" in statement and "attempts=" in statement:
            raise LookupError("broken plugin")

    pg_app.add(work)
    worker = pg_app.worker()

    with pytest.raises(WorkerError, match="can't go on: its dispatcher has failed: LookupError: broken plugin"):
        worker.run_until_idle()

    assert not worker.is_healthy
    assert len(ear.lines("the dispatcher of worker", level=50)) == 1
    assert pg_app.statuses() == ["ready"]


def test_jobs_are_given_back_when_a_claim_comes_after_the_stop(pg_app: App, ear: Ear) -> None:
    """What a claim brings that was under way at the stop is released, and waits for no lease to run out."""
    is_claimed = threading.Event()

    @pg_app.jobs.handler
    def work() -> None: ...

    @event.listens_for(pg_app.engine, "after_cursor_execute")
    def late(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "SKIP LOCKED" in statement and "attempts=" in statement:
            is_claimed.set()
            ear.wait_for("claims no more")

    ids = [pg_app.add(work) for _ in range(3)]

    with pg_app.worker():
        wait_for(is_claimed)

    assert [(pg_app.row(id_).status, pg_app.row(id_).attempts) for id_ in ids] == [("ready", 0)] * 3


def test_threads_when_the_worker_has_stopped(app: App) -> None:
    """A worker that has stopped leaves no thread behind."""
    seen: set[str] = set()
    awaited_runs = threading.Event()

    @app.jobs.handler
    def plain() -> None:
        wait_for(awaited_runs)  # the loop is made for the first async job
        seen.update(thread.name for thread in our_threads())

    @app.jobs.handler
    async def awaited() -> None:
        awaited_runs.set()

    app.add(plain)
    app.add(awaited)

    app.run(listen=None, concurrency=3)

    for thread in our_threads():
        thread.join(PATIENCE)
    assert {"sqla_jobs heartbeat", "sqla_jobs loop", "sqla_jobs events"} <= seen
    assert our_threads() == []


def test_worker_when_it_is_dropped_unstarted(app: App) -> None:
    """A worker that is made and never started holds nothing open."""

    @app.jobs.handler
    async def awaited() -> None: ...

    before = our_threads()
    for _ in range(3):
        app.worker()

    assert set(our_threads()) <= set(before)
    assert not app.jobs.has_wakers


def test_exit_when_every_slot_is_stuck(engine: Engine, database_url: str) -> None:
    """A worker process whose slots are all stuck ends with a status that is not zero, and its jobs are not lost."""
    Base.metadata.create_all(engine)
    program = [sys.executable, "-W", "ignore", "-m", "tests.runtime.stuck", database_url]

    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "every slot" in done.stderr
    with Session(engine) as session:
        assert session.scalars(select(Job.status)).all() == ["ready"]
