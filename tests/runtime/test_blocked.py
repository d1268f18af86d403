"""One row, one error, one log filter that misbehaves, and all others go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text, update
from sqlalchemy.orm import Session

from sqla_jobs import Retry, current_job
from sqla_jobs.schema.constructs import db_now, later
from sqla_jobs.schema.dialects import stored_json
from tests.runtime.app import App, Job, Note, end_time, wait_for


class Awkward(Exception):
    """An error that can't be looked at."""

    hide_parameters = False
    exceptions = None

    def __getattr__(self, name: str) -> object:
        raise KeyError(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "hide_parameters":
            raise AttributeError(name)
        super().__setattr__(name, value)


class Rude(Retry):
    def __str__(self) -> str:
        raise SystemExit(3)


@contextmanager
def row_lock(app: App, job_id: int) -> Generator[None]:
    """Hold a job's row locked, as somebody's open transaction does."""
    with app.engine.connect() as connection, connection.begin():
        connection.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": job_id})
        yield


def test_completions_when_one_row_is_locked(pg_app: App) -> None:
    """A row that somebody has locked delays its own completion, and no other's."""
    started, go_on, others = threading.Event(), threading.Event(), threading.Event()

    @pg_app.jobs.handler
    def held() -> None:
        started.set()
        wait_for(go_on)

    @pg_app.jobs.handler
    def other(number: int) -> None: ...

    ended: list[int] = []

    @pg_app.jobs.on("done")
    def count(event: object) -> None:
        ended.append(1)
        if len(ended) == 5:
            others.set()

    job = pg_app.add(held)
    with pg_app.worker():
        wait_for(started)
        with row_lock(pg_app, job):
            go_on.set()
            for number in range(5):
                pg_app.add(other, number=number)
            wait_for(others)
            assert pg_app.statuses()[0] == "running"

    assert set(pg_app.statuses()) == {"done"}


def test_completions_when_a_handler_past_its_time_has_its_own_row_locked(pg_app: App) -> None:
    """A handler that has changed its own row and runs on past its timeout holds up no other job's end."""
    touched, is_waiting, is_over = (threading.Event() for _ in range(3))

    @pg_app.jobs.handler(timeout=timedelta(hours=1), max_attempts=1)
    def touch(session: Session) -> None:
        current_job().load(session).trace = {"touched": True}
        session.flush()
        touched.set()
        wait_for(is_over)

    @pg_app.jobs.handler(timeout=timedelta(hours=1), max_attempts=1)
    def later() -> None:
        is_waiting.set()
        wait_for(is_over)

    @pg_app.jobs.handler
    def other() -> None: ...

    first = pg_app.add(touch)
    with pg_app.worker() as worker:
        wait_for(touched)
        end_time(worker)
        second = pg_app.add(later)
        wait_for(is_waiting)
        end_time(worker)
        assert pg_app.hear("dead").job_id == second
        third = pg_app.add(other)
        assert pg_app.hear("done").job_id == third
        is_over.set()
        assert pg_app.hear("dead").job_id == first

    assert pg_app.row(first).trace is None


@pytest.mark.parametrize("error", [Awkward("x"), Rude()], ids=["attributes", "text"])
def test_handler_when_its_error_cannot_be_looked_at(app: App, error: Exception) -> None:
    """Whatever an error does when it is described, the attempt fails, and the slot is free again."""

    @app.jobs.handler(max_attempts=1)
    def awkward() -> None:
        raise error

    @app.jobs.handler
    def good() -> None: ...

    app.add(awkward)
    app.add(good)

    app.run(concurrency=1)

    assert app.statuses() == ["dead", "done"]


def test_handler_when_it_deletes_its_own_row(app: App) -> None:
    """A handler that deletes its job's row commits nothing, and its attempts are used up."""

    @app.jobs.handler(max_attempts=1)
    def delete(session: Session) -> None:
        session.add(Note(text="never"))
        session.delete(current_job().load(session))

    app.add(delete)

    app.run()

    assert app.statuses() == ["dead"]
    assert app.notes() == []


@pytest.mark.parametrize("payload", ["[" * 3000 + "]" * 3000, '{"number": ' + "9" * 5000 + "}"], ids=["deep", "huge"])
def test_claim_when_a_row_s_json_is_too_much_for_python(app: App, payload: str) -> None:
    """A row that Python can't read is a failed attempt of that job, and the end of no worker."""

    @app.jobs.handler(max_attempts=1)
    def work(number: int) -> None: ...

    bad, _ = app.add(work, number=1), app.add(work, number=2)
    with app.engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == bad).values(payload=stored_json(payload)))

    app.run()

    assert app.statuses() == ["dead", "done"]


def test_worker_when_a_log_filter_raises(app: App) -> None:
    """An app's own log filter that raises loses a line, and no job."""

    def refuse(record: logging.LogRecord) -> bool:
        if hasattr(record, "job_id"):
            raise ZeroDivisionError
        return True

    @app.jobs.handler
    def work() -> None: ...

    app.add(work)
    logger = logging.getLogger("sqla_jobs.worker")
    logger.addFilter(refuse)
    try:
        app.run()
    finally:
        logger.removeFilter(refuse)

    assert app.statuses() == ["done"]


def test_async_handler_when_it_is_registered_after_the_start(app: App) -> None:
    """A handler that comes later than its worker runs as any other, on the event loop."""
    with app.worker():

        @app.jobs.handler
        async def late() -> str:
            return "ran"

        job = app.add(late)
        app.hear("done")

    assert app.row(job).result == "ran"


def test_stray_when_its_type_is_unknown(app: App) -> None:
    """A running row that bears the worker's name and a type that nobody knows is left to the reaper."""

    @app.jobs.handler
    def work() -> None: ...

    strange = app.add(work)
    with app.engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == strange).values(queue="elsewhere"))
    worker = app.worker(queues=["default"])
    with app.engine.begin() as connection:
        values = {"status": "running", "type": "renamed", "locked_by": worker.name, "claims": 1}
        connection.execute(update(Job).where(Job.id == strange).values(locked_until=later(db_now(), 3600), **values))
    with worker:
        app.add(work)
        app.hear("done")
        assert worker.is_healthy

    assert app.statuses() == ["running", "done"]
