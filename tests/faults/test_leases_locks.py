"""Workers that freeze with rows locked."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, update

from sqla_jobs import current_job
from tests.runtime.app import AT_ONCE, PATIENCE, App, Job, MakeEngine, wait_for
from tests.runtime.statements import HEARTBEAT

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from sqla_jobs import Worker

pytestmark = pytest.mark.slow

LEASE = timedelta(seconds=1)


class Freeze:
    """Stops the thread of a worker between its first statement with *text* in it and the commit."""

    def __init__(self, engine: Engine, text: str) -> None:
        self.has_come, self.is_over = threading.Event(), threading.Event()
        self._text = text
        event.listen(engine, "after_cursor_execute", self._freeze)

    def _freeze(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        if self._text in statement and not self.has_come.is_set():
            self.has_come.set()
            self.is_over.wait(4 * PATIENCE)  # longer than anybody here waits for what it holds


def test_f01_worker_that_freezes_with_rows_locked_keeps_them_from_nobody(
    postgresql_url: str, make_engine: MakeEngine
) -> None:
    """Between claim, beat or reap and its commit: the server ends its transaction, and others have the jobs soon."""
    app = App(make_engine(postgresql_url)).create()
    done = threading.Semaphore(0)
    may_end = threading.Event()

    @app.jobs.handler(backoff=AT_ONCE)
    def work(waits: bool) -> None:
        if waits and current_job().attempt == 1:
            wait_for(may_end)
        else:
            done.release()

    def frozen(stack: ExitStack, text: str, queue: str) -> Freeze:
        engine = make_engine(postgresql_url)
        freeze = Freeze(engine, text)
        stack.callback(freeze.is_over.set)
        worker: Worker = App(engine).worker(app.jobs, queues=[queue], lease=LEASE)
        stack.enter_context(worker)
        wait_for(freeze.has_come)
        return freeze

    reaped = app.add(work.using(queue="reap"), waits=False)
    with app.sessions.begin() as session:
        gone: dict[str, Any] = {"status": "running", "attempts": 1, "claims": 1, "locked_by": "gone"}
        session.execute(update(Job).values(locked_until=Job.created_at, **gone))
    with ExitStack() as stack:
        freezes = [frozen(stack, "lease_expirations=", "none")]
        claimed = app.add(work.using(queue="claim"), waits=False)
        freezes.append(frozen(stack, "attempts=", "claim"))
        beaten = app.add(work.using(queue="beat"), waits=True)
        freezes.append(frozen(stack, HEARTBEAT, "beat"))
        with app.worker(lease=LEASE):
            assert all(done.acquire(timeout=PATIENCE) for _ in range(3))
        may_end.set()
        for freeze in freezes:
            freeze.is_over.set()

    rows = [app.row(job) for job in (reaped, claimed, beaten)]
    assert [(row.status, row.attempts, row.lease_expirations) for row in rows] == [
        ("done", 2, 1),
        ("done", 1, 0),
        ("done", 2, 1),
    ]
