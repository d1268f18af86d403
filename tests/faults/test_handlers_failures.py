"""Handlers that have spoiled their transaction, hold locks, or leave something open: the outcome is written."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from sqla_jobs import current_job
from tests.runtime.app import App, Job, Note


def test_f39_constraint_that_a_handler_breaks_is_its_own_failure(app: App) -> None:
    """Nothing of what it wrote stands, no attempt is refunded, and the row says which constraint it was."""

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.add(Note(text="first"))
        session.flush()
        session.add_all([Note(text="twice"), Note(text="twice")])
        session.flush()

    job = app.add(write)

    app.run()

    row = app.row(job)
    assert app.notes() == []
    assert (row.status, row.refunds) == ("dead", 0)
    assert "IntegrityError" in (row.last_error or "")
    assert "note.text" in (row.last_error or "") or "note_text_key" in (row.last_error or "")


@pytest.mark.parametrize(("ending", "error"), [("returns", "PendingRollbackError"), ("raises", "KeyError: 'next'")])
def test_f39_session_in_need_of_a_rollback_ends_the_attempt(app: App, ending: str, error: str) -> None:
    """It can't commit: the attempt fails, rather than be done without its writes, and its error is stored."""

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.add_all([Note(text="twice"), Note(text="twice")])
        with pytest.raises(IntegrityError):
            session.flush()
        if ending == "raises":
            raise KeyError("next")

    job = app.add(write)

    app.run()

    row = app.row(job)
    assert app.notes() == []
    assert (row.status, row.attempts) == ("dead", 1)
    assert error in (row.last_error or "")
    assert app.heard() == ["dead"]


def test_f39_error_that_a_handler_swallows_ends_the_attempt(pg_app: App) -> None:
    """Where a failed statement has ended the transaction there is nothing to commit: the handler has failed, too."""

    @pg_app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.add(Note(text="written"))
        session.flush()
        try:
            session.execute(text("SELECT 1/0"))
        except SQLAlchemyError:
            return

    job = pg_app.add(write)

    pg_app.run()

    row = pg_app.row(job)
    assert pg_app.notes() == []
    assert (row.status, row.attempts) == ("dead", 1)
    assert "current transaction is aborted" in (row.last_error or "")


def test_f39_error_that_a_handler_catches_in_a_savepoint_costs_nothing(app: App) -> None:
    """What SQLAlchemy says to do is right here, too: the job is done, and its other writes stand."""

    @app.jobs.handler
    def write(session: Session) -> None:
        session.add(Note(text="once"))
        session.flush()
        with pytest.raises(IntegrityError), session.begin_nested():
            session.add(Note(text="once"))
            session.flush()

    job = app.add(write)

    app.run()

    assert app.notes() == ["once"]
    assert app.row(job).status == "done"


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_f39_outcome_of_a_handler_that_has_locked_its_own_row_is_written(app: App, ending: str) -> None:
    """A handler may lock or change its own job's row: the outcome is written all the same."""

    @app.jobs.handler(max_attempts=1)
    def touch(session: Session) -> None:
        row: Job = current_job().load(session)
        row.trace = {"touched": True}
        session.flush()
        session.execute(select(Job).where(Job.id == row.id).with_for_update())
        if ending == "raises":
            raise RuntimeError("with the lock in hand")

    job = app.add(touch)

    app.run()

    row = app.row(job)
    expected = ("done", {"touched": True}) if ending == "returns" else ("dead", None)
    assert (row.status, row.trace) == expected


def test_f39_savepoint_that_a_handler_leaves_open_is_committed_with_the_rest(app: App) -> None:
    """A savepoint that a handler leaves open is committed with the rest, and its connection comes back clean."""

    @app.jobs.handler
    def write(session: Session) -> None:
        session.begin_nested()
        session.add(Note(text="inside"))

    job = app.add(write)

    app.run()

    assert app.notes() == ["inside"]
    assert app.row(job).status == "done"
    assert app.engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool


def test_f39_connection_comes_back_clean_however_its_handler_ends(app: App) -> None:
    """Each handler's connection comes back to the app's pool clean: no transaction, no lock, no setting."""

    @app.jobs.handler(max_attempts=1)
    def write(session: Session, how: str) -> None:
        session.add(Note(text=how))
        session.flush()
        if how == "raises":
            raise RuntimeError("no")
        if how == "locks":
            session.execute(select(Job).with_for_update())

    for how in ("raises", "returns", "locks"):
        app.add(write, how)

    app.run(concurrency=1)

    pool: Any = app.engine.pool
    assert pool.checkedout() == 0
    with app.sessions.begin() as session:
        session.execute(select(Job).with_for_update(nowait=True)).all()
        session.add(Note(text="after"))
    assert app.notes() == ["after", "locks", "returns"]
