from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from sqla_jobs import WorkerError, current_job
from tests.runtime.app import AT_ONCE, App, Job, have_tick, wait_for


def test_current_job_when_no_job_runs() -> None:
    """Outside of a job `current_job()` says that it is for handlers."""
    with pytest.raises(WorkerError, match="no job runs here"):
        current_job()


@pytest.mark.parametrize("kind", ["plain", "session", "async"])
def test_current_job_when_a_handler_asks(app: App, kind: str) -> None:
    """A handler of each kind learns which job it runs, at which attempt, and how long it may."""
    told: list[dict[str, Any]] = []

    def tell() -> None:
        names = ("id", "type", "queue", "attempt", "max_attempts", "slot", "cancelled", "deadline", "remaining")
        told.append({name: getattr(current_job(), name) for name in names} | {"repr": repr(current_job())})
        if len(told) == 1:
            raise RuntimeError("once")

    options: dict[str, Any] = {"queue": "mail", "max_attempts": 3, "backoff": AT_ONCE, "timeout": timedelta(minutes=1)}

    @app.jobs.handler(**options)
    def plain() -> None:
        tell()

    @app.jobs.handler(name="session", **options)
    def with_session(session: Session) -> None:
        tell()

    @app.jobs.handler(name="async", **options)
    async def awaited() -> None:
        tell()

    before = time.monotonic()
    handlers: dict[str, Any] = {"plain": plain, "session": with_session, "async": awaited}
    job = app.add(handlers[kind])

    app.run()

    first, second = told
    assert [(seen["id"], seen["type"], seen["queue"]) for seen in told] == [(job, kind, "mail")] * 2
    assert [(seen["attempt"], seen["max_attempts"]) for seen in told] == [(1, 3), (2, 3)]
    assert (first["slot"], first["cancelled"]) == (None, False)
    assert before + 60 <= first["deadline"] <= second["deadline"] <= time.monotonic() + 60
    assert timedelta(0) < first["remaining"] <= timedelta(minutes=1)
    assert second["repr"] == f"<CurrentJob {job} {kind!r} attempt 2 of 3>"


def test_current_job_when_there_is_no_timeout(app: App) -> None:
    """Without a timeout there is no deadline, and no end of the time that remains."""
    told: list[object] = []

    @app.jobs.handler
    def ask() -> None:
        told.extend([current_job().deadline, current_job().remaining])

    app.add(ask)

    app.run()

    assert told == [None, None]


def test_current_job_when_it_has_a_slot(app: App) -> None:
    """A job of a schedule knows the instant that it stands for, in UTC and exactly."""
    told: list[datetime | None] = []
    slot = datetime(2026, 3, 29, 6, 20, tzinfo=UTC)

    @app.jobs.handler
    def ask() -> None:
        told.append(current_job().slot)

    job = app.add(ask)
    with app.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job).values(slot=slot))

    app.run()

    assert told == [slot]


def test_load_when_a_handler_asks_for_its_row(app: App) -> None:
    """`load` gives the job as an object of the handler's session, as the claim has left it."""
    told: list[tuple[int, str, dict[str, Any], bool]] = []

    @app.jobs.handler
    def ask(session: Session, name: str) -> None:
        row: Job = current_job().load(session)
        told.append((row.id, row.status, row.payload, row in session))

    job = app.add(ask, "Ada")

    app.run()

    assert told == [(job, "running", {"name": "Ada"}, True)]


def test_load_when_the_row_is_gone(pg_app: App) -> None:
    """A row that somebody has deleted is said to be missing, and the worker goes on."""

    @pg_app.jobs.handler
    def ask(session: Session) -> None:
        with pg_app.sessions.begin() as other:
            other.delete(other.get_one(Job, current_job().id))
        with pytest.raises(NoResultFound):
            current_job().load(session)

    pg_app.add(ask)

    pg_app.run()

    assert pg_app.heard() == ["lease_lost"]
    assert pg_app.statuses() == []


def test_cancelled_when_somebody_else_has_the_job(app: App) -> None:
    """A heartbeat that finds another's claim tells the handler; its late end writes nothing, and is no error."""
    started, is_over = threading.Event(), threading.Event()
    told: list[bool] = []

    @app.jobs.handler
    def ask() -> str:
        told.append(current_job().cancelled)
        started.set()
        wait_for(is_over)
        told.append(current_job().cancelled)
        return "too late"

    job = app.add(ask)

    with app.worker() as worker:
        wait_for(started)
        with app.sessions.begin() as session:
            leased = {"locked_by": "another", "locked_until": app.row(job).run_at + timedelta(days=1)}
            session.execute(update(Job).values(claims=Job.claims + 1, **leased))
        have_tick(worker, "heartbeat")
        event = app.hear("lease_lost")
        is_over.set()

    row = app.row(job)
    assert told == [False, True]
    assert (event.job_id, event.attempt) == (job, 1)
    assert (row.status, row.locked_by, row.claims, row.result) == ("running", "another", 2, None)
    assert app.heard() == []
