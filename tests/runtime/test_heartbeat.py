from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from tests.engines import build_engine
from tests.runtime.app import PATIENCE, App, Job, MakeEngine, Note, wait_for
from tests.runtime.statements import HEARTBEAT, Statements

if TYPE_CHECKING:
    from collections.abc import Iterator


LEASE = timedelta(seconds=1)
LONGER = 3 * LEASE
"""So that a busy machine doesn't let it run out in a test that is about something else."""

THREE_LEASES = 3.4
"""Seconds. The handlers of these tests do take that long: a lease is a second at least."""


@pytest.fixture
def witness(database_url: str) -> Iterator[Engine]:
    """Give an engine for another worker, which takes no jobs, and reaps those whose lease is over."""
    engine = build_engine(database_url)
    yield engine
    engine.dispose()


def reaping(app: App, witness: Engine) -> Any:
    """Give a worker that serves a queue without jobs, with connections of its own."""
    return App(witness).worker(app.registry(), queues=["none"], lease=LEASE)


def take(seconds: float) -> None:
    """Be busy for so long."""
    threading.Event().wait(seconds)


@pytest.mark.slow
def test_lease_when_handlers_take_every_connection(database_url: str, witness: Engine, make_engine: MakeEngine) -> None:
    """Handlers that hold the app's whole pool for three leases stop no heartbeat: each job runs once."""
    engine = make_engine(database_url, pool_size=1, max_overflow=0)
    app = App(engine).create()
    runs: list[int] = []

    @app.jobs.handler
    def hold(session: Session, number: int) -> None:
        session.execute(select(Note.id))
        runs.append(number)
        if len(runs) == 1:
            take(THREE_LEASES)
        session.add(Note(text=f"{number}"))

    jobs = [app.add(hold, number) for number in range(3)]

    with reaping(app, witness):
        app.run(concurrency=3, lease=LEASE)

    rows = [app.row(job) for job in jobs]
    assert sorted(runs) == [0, 1, 2]
    assert [(row.status, row.claims, row.lease_expirations) for row in rows] == [("done", 1, 0)] * 3


def test_heartbeat_when_its_row_is_locked(pg_app: App) -> None:
    """A row that somebody has locked is passed over and still held; the others' leases are renewed meanwhile."""
    beats, is_over = Statements(pg_app.engine, HEARTBEAT), threading.Event()
    running = threading.Barrier(3)

    @pg_app.jobs.handler
    def slow() -> None:
        running.wait(PATIENCE)
        wait_for(is_over)

    locked, free = pg_app.add(slow), pg_app.add(slow)

    with pg_app.worker(lease=LONGER):
        running.wait(PATIENCE)
        with pg_app.sessions.begin() as session:
            # The lock; and a lease that no reaper finds expired when it ends.
            session.get_one(Job, locked).locked_until = pg_app.row(locked).run_at + timedelta(days=1)
            session.flush()
            before = pg_app.row(free).locked_until
            beats.wait_for(beats.answered + 2)
            after = pg_app.row(free).locked_until
        is_over.set()
        ends = [pg_app.hear("done").job_id for _ in range(2)]

    assert before is not None
    assert after is not None
    assert before < after
    assert sorted(ends) == [locked, free]
