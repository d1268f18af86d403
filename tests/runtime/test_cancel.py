from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqla_jobs import cancel_jobs, current_job, requeue_batch, requeue_jobs
from sqla_jobs.operations.listing import JobFilter
from tests.runtime.app import LONG, App, Job, Note, have_tick, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqla_jobs import Jobs
    from tests.runtime.app import Ear


class Stage:
    """A handler that waits until its job has been ended by somebody, and then writes, and returns or raises."""

    def __init__(self, jobs: Jobs[Job], kind: str, ending: str = "returns") -> None:
        self.started, self.is_over = threading.Event(), threading.Event()
        self.told: list[bool] = []
        self._ending = ending
        kinds: dict[str, Any] = {"plain": self._plain, "session": self._with_session, "async": self._async}
        self.handler = jobs.handler(name=kind)(kinds[kind])

    def _plain(self) -> str:
        return self._linger(lambda: None)

    def _with_session(self, session: Session) -> str:
        return self._linger(lambda: session.add(Note(text="too late")))

    async def _async(self, session: AsyncSession) -> str:
        return self._linger(lambda: session.add(Note(text="too late")))

    def _linger(self, write: Callable[[], None]) -> str:
        self.told.append(current_job().cancelled)
        self.started.set()
        wait_for(self.is_over)
        self.told.append(current_job().cancelled)
        write()
        if self._ending == "raises":
            raise RuntimeError("late")
        return "too late"


def cancel(app: App, job: int) -> None:
    """Cancel it, as a person does."""
    with app.sessions.begin() as session:
        (answer,) = cancel_jobs(session, app.jobs, job, reason="the order was withdrawn")
        assert (answer.is_changed, answer.status) == (True, "failed")


def end_by_hand(app: App, job: int) -> None:
    """End it at a console."""
    with app.sessions.begin() as session:
        session.execute(text("UPDATE job SET status = 'dead', last_error = 'the order was withdrawn'"))


def delete(app: App, job: int) -> None:
    """Delete it at a console."""
    with app.sessions.begin() as session:
        session.execute(text("DELETE FROM job"))


FATES = {"cancelled": (cancel, "failed"), "ended by hand": (end_by_hand, "dead"), "deleted": (delete, None)}


@pytest.mark.parametrize(
    ("fate", "kind", "ending"),
    [
        ("cancelled", "session", "returns"),
        ("cancelled", "plain", "raises"),
        ("ended by hand", "plain", "returns"),
        ("deleted", "session", "raises"),
    ],
)
def test_running_job_that_is_ended_by_somebody(app: App, ear: Ear, fate: str, kind: str, ending: str) -> None:
    """Its handler sees it at a heartbeat, nothing of it is committed, one line is logged, and the worker goes on."""
    stage = Stage(app.jobs, kind, ending)
    end, status = FATES[fate]

    @app.jobs.handler
    def following() -> None: ...

    job = app.add(stage.handler)

    with app.worker(concurrency=1) as worker:
        wait_for(stage.started)
        end(app, job)
        have_tick(worker, "heartbeat")
        event = app.hear("lease_lost")
        before = None if status is None else columns(app, job)
        stage.is_over.set()
        app.add(following)
        assert app.hear("done").type == "following"
        assert app.heard() == []

    assert stage.told == [False, True]
    assert (event.job_id, event.type, event.attempt) == (job, kind, 1)
    assert app.notes() == []
    assert len(ear.lines(f"job {job} ", level=20)) == len(ear.lines(f"job {job} {kind} lease_lost", level=30)) == 1
    if before is None:
        assert app.statuses() == ["done"]
    else:
        assert columns(app, job) == before
        assert (before["status"], before["last_error"], before["result"]) == (status, "the order was withdrawn", None)
        assert (before["attempts"], before["claims"], before["errors"]) == (1, 1, [])


def columns(app: App, job: int) -> dict[str, Any]:
    row = app.row(job)
    return {column.key: getattr(row, column.key) for column in Job.__table__.columns}


def test_running_job_of_an_async_session_when_it_is_cancelled(async_app: App) -> None:
    """The same for an async handler: what it wrote in its session goes with it."""
    stage = Stage(async_app.jobs, "async")
    job = async_app.add(stage.handler)

    with async_app.worker() as worker:
        wait_for(stage.started)
        cancel(async_app, job)
        have_tick(worker, "heartbeat")
        async_app.hear("lease_lost")
        stage.is_over.set()

    assert stage.told == [False, True]
    assert async_app.notes() == []
    assert (async_app.row(job).status, async_app.row(job).last_error) == ("failed", "the order was withdrawn")
    assert async_app.heard() == []


def test_handler_that_ends_before_it_is_told_commits_nothing(pg_app: App, ear: Ear) -> None:
    """Between a cancel and the next heartbeat the fence alone holds: writes from before it are rolled back, too."""

    @pg_app.jobs.handler
    def write(session: Session) -> None:
        session.add(Note(text="before"))
        session.flush()
        cancel(pg_app, current_job().id)
        session.add(Note(text="after"))

    job = pg_app.add(write)

    pg_app.run()

    assert pg_app.heard() == ["lease_lost"]
    assert pg_app.notes() == []
    assert (pg_app.row(job).status, pg_app.row(job).last_error) == ("failed", "the order was withdrawn")
    assert len(ear.lines("lease_lost")) == 1


def test_ready_job_when_it_is_cancelled_never_runs(app: App) -> None:
    """It ends as `failed` before a worker sees it, and the others run."""
    ran: list[int] = []

    @app.jobs.handler
    def run(number: int) -> None:
        ran.append(number)

    first, _ = app.add(run, 1), app.add(run, 2)
    cancel(app, first)

    app.run()

    assert ran == [2]
    assert app.statuses() == ["failed", "done"]


@pytest.mark.parametrize("form", ["by id", "batch"])
def test_requeue_when_a_worker_is_in_the_process(app: App, form: str) -> None:
    """The commit of a requeue wakes it: a dead letter runs again at once, whatever the poll interval."""
    is_mended = threading.Event()

    @app.jobs.handler(max_attempts=1)
    def work() -> None:
        if not is_mended.is_set():
            raise RuntimeError("broken")

    with app.worker(poll_interval=LONG):
        job = app.add(work)
        app.hear("dead")
        is_mended.set()
        for _ in range(3):  # until whatever a start looks for has been looked for
            app.add(work)
            app.hear("done")
        with app.sessions.begin() as session:
            if form == "by id":
                requeue_jobs(session, app.jobs, job)
            else:
                requeue_batch(session, app.jobs, JobFilter())
        assert app.hear("done").job_id == job

    assert (app.row(job).attempts, app.row(job).claims) == (1, 2)
