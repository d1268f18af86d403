from __future__ import annotations

import pytest
from sqlalchemy import event, func, literal, select
from sqlalchemy.orm import Session

from tests.runtime.app import AT_ONCE, SOON, App, Note
from tests.runtime.commits import CutCommit

MISSING = 4711


def test_commit_when_a_deferred_constraint_breaks(app: App) -> None:
    """A commit that the database refuses leaves neither the writes nor the completion, but a failed attempt."""

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.add(Note(text="orphan", parent_id=MISSING))

    job = app.add(write)

    app.run()

    row = app.row(job)
    assert app.notes() == []
    assert (row.status, row.attempts, row.refunds) == ("dead", 1, 0)
    assert "IntegrityError" in (row.last_error or "")
    assert app.heard() == ["dead"]


def test_commit_when_a_deferred_constraint_breaks_once(app: App) -> None:
    """After a refused commit the whole job runs again: writes and completion of the second attempt stand, once."""
    attempts: list[None] = []

    @app.jobs.handler(backoff=AT_ONCE)
    def write(session: Session) -> None:
        attempts.append(None)
        session.add(Note(text="written", parent_id=MISSING if len(attempts) == 1 else None))

    job = app.add(write)

    app.run()

    row = app.row(job)
    assert app.notes() == ["written"]
    assert (row.status, row.attempts) == ("done", 2)
    assert app.heard() == ["retried", "done"]


@pytest.mark.parametrize("moment", ["before_flush", "before_commit"])
def test_commit_when_an_event_of_the_app_raises(app: App, moment: str) -> None:
    """An event of the app's that stops the commit stops the completion with it."""

    def refuse(*_: object) -> None:
        raise PermissionError("the auditor says no")

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.add(Note(text="written"))
        event.listen(session, moment, refuse)

    job = app.add(write)

    app.run()

    row = app.row(job)
    assert app.notes() == []
    assert row.status == "dead"
    assert "PermissionError: the auditor says no" in (row.last_error or "")
    assert app.heard() == ["dead"]


def test_commit_when_its_answer_is_lost(app: App) -> None:
    """A commit that went through and was never answered leaves writes and completion, once, and tells `done` once."""
    cut = CutCommit(app.engine, gets_through=True)
    runs: list[None] = []

    @app.jobs.handler
    def write(session: Session) -> int:
        runs.append(None)
        session.add(Note(text=f"run {len(runs)}"))
        cut.arm(session)
        return len(runs)

    job = app.add(write)

    app.run()

    row = app.row(job)
    assert cut.cuts == 1
    assert app.notes() == ["run 1"]
    assert (row.status, row.attempts, row.claims, row.refunds, row.result) == ("done", 1, 1, 0, 1)
    assert app.heard() == ["done"]


def test_commit_when_the_connection_breaks_before_it(app: App) -> None:
    """A commit that never got through leaves nothing; the job runs again, and the attempt is refunded."""
    cut = CutCommit(app.engine, gets_through=False)
    runs: list[None] = []

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        runs.append(None)
        session.add(Note(text=f"run {len(runs)}"))
        if len(runs) == 1:
            cut.arm(session)

    job = app.add(write)

    app.run(within=SOON)

    row = app.row(job)
    assert cut.cuts == 1
    assert app.notes() == ["run 2"]
    assert (row.status, row.attempts, row.claims, row.refunds) == ("done", 1, 2, 1)
    assert app.heard() == ["interrupted", "done"]


def test_session_when_its_connection_is_killed(pg_app: App) -> None:
    """A connection that dies under a handler is the database's fault: the attempt is refunded, and runs again."""
    runs: list[None] = []

    @pg_app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        runs.append(None)
        session.add(Note(text=f"run {len(runs)}"))
        session.flush()
        if len(runs) == 1:
            session.execute(select(func.pg_terminate_backend(func.pg_backend_pid())))

    job = pg_app.add(write)

    pg_app.run(within=SOON)

    row = pg_app.row(job)
    assert pg_app.notes() == ["run 2"]
    assert (row.status, row.attempts, row.refunds, row.errors) == ("done", 1, 1, [])
    assert pg_app.heard() == ["interrupted", "done"]


def test_rollback_when_the_handler_makes_it(app: App) -> None:
    """A handler that rolls back and returns is done, in a transaction of its own."""

    @app.jobs.handler
    def write(session: Session) -> None:
        session.add(Note(text="given up"))
        session.flush()
        session.rollback()

    job = app.add(write)

    app.run()

    assert app.notes() == []
    assert app.row(job).status == "done"


def test_commit_when_the_handler_makes_it(app: App) -> None:
    """What a handler commits by itself stands although it fails then: it has left the job's transaction."""

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.add(Note(text="by itself"))
        session.commit()
        session.add(Note(text="with the job"))
        session.flush()
        raise RuntimeError("later")

    job = app.add(write)

    app.run()

    assert app.notes() == ["by itself"]
    assert app.row(job).status == "dead"


def test_session_when_the_handler_closes_it(app: App) -> None:
    """A handler that closes its session has thrown away its writes, and is done."""

    @app.jobs.handler
    def write(session: Session) -> None:
        session.add(Note(text="thrown away"))
        session.flush()
        session.close()

    job = app.add(write)

    app.run()

    assert app.notes() == []
    assert app.row(job).status == "done"


def test_bulk_when_a_handler_writes_much(app: App) -> None:
    """One commit holds all that a handler wrote, flushed at whatever time, and the completion."""

    @app.jobs.handler
    def write(session: Session) -> int:
        for number in range(300):
            session.add(Note(text=f"{number:03}"))
            if number % 100 == 0:
                session.flush()
        return session.scalars(select(literal(300))).one()

    job = app.add(write)

    app.run()

    assert len(app.notes()) == 300
    assert app.row(job).result == 300
