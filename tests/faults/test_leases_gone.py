"""Rows that somebody ends or removes while their jobs run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from sqla_jobs import cancel_jobs
from tests.runtime.app import App, Job, Note, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.runtime.app import Ear


def delete(session: Session, _app: App, job_id: int) -> None:
    session.execute(text("DELETE FROM job WHERE id = :id"), {"id": job_id})


def cancel(session: Session, app: App, job_id: int) -> None:
    assert cancel_jobs(session, app.jobs, job_id, reason="the order was withdrawn")[0].is_changed


def mark_dead(session: Session, _app: App, job_id: int) -> None:
    session.execute(text("UPDATE job SET status = 'dead' WHERE id = :id"), {"id": job_id})


@pytest.mark.parametrize(
    ("kind", "ending"), [("session", "returns"), ("plain", "raises"), ("plain", "returns"), ("session", "raises")]
)
@pytest.mark.parametrize("fate", [delete, cancel, mark_dead])
def test_f10_job_that_is_ended_from_outside_while_it_runs_stays_so(
    app: App, ear: Ear, fate: Callable[[Session, App, int], None], kind: str, ending: str
) -> None:
    """Whatever its handler does then, the row is what the operator left, one line says so, and the next job runs."""
    started, is_over = threading.Event(), threading.Event()

    def linger() -> None:
        started.set()
        wait_for(is_over)

    def end() -> None:
        if ending == "raises":
            raise RuntimeError("late")

    @app.jobs.handler
    def plain() -> None:
        linger()
        end()

    @app.jobs.handler(name="session")
    def in_session(session: Session) -> None:
        linger()
        session.add(Note(text="late"))
        session.flush()
        end()

    @app.jobs.handler
    def following() -> None: ...

    def rows() -> list[Any]:
        with app.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(select(Job.__table__).where(Job.type != "following"))]

    job = app.add(plain if kind == "plain" else in_session)

    with app.worker() as worker:
        wait_for(started)
        with app.sessions.begin() as session:
            fate(session, app, job)
        left = rows()
        is_over.set()
        assert app.hear("lease_lost").job_id == job
        app.add(following)
        app.hear("done")

    assert rows() == left
    assert [row[0] for row in left] == ([] if fate is delete else [job])
    assert app.notes() == []
    assert worker.counters.ends == {("lease_lost", kind): 1, ("done", "following"): 1}
    assert len(ear.lines(f"job {job} ")) == 1
