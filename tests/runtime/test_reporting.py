from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from sqla_jobs import GiveUp, InvalidHandler, InvalidOption, JobEvent, Snooze
from tests.runtime.app import AT_ONCE, App, Job, Note, wait_for

if TYPE_CHECKING:
    from tests.runtime.app import Ear

SECRET = "hunter2-is-no-password"  # noqa: S105  # it is looked for where it must not be


def test_log_when_a_job_is_done(app: App, ear: Ear) -> None:
    """The end of a job is one INFO line, with what a log search needs as fields of the record."""

    @app.jobs.handler(max_attempts=7)
    def work() -> None: ...

    job = app.add(work)

    app.run()

    (record,) = [record for record in ear.records if hasattr(record, "job_id")]
    fields = {name: getattr(record, name) for name in ("job_id", "job_type", "job_event", "attempt")}
    assert (record.name, record.levelno) == ("sqla_jobs.worker", logging.INFO)
    assert fields == {"job_id": job, "job_type": "work", "job_event": "done", "attempt": 1}
    assert record.__dict__["ms"] >= 0
    assert record.getMessage().startswith(f"job {job} work done: attempt 1 of 7, ")


def test_log_when_attempts_fail(app: App, ear: Ear) -> None:
    """Each failed attempt is one WARNING line that ends with the error's own line; a Snooze is none."""
    runs: list[None] = []

    @app.jobs.handler(max_attempts=3, backoff=AT_ONCE)
    def fail() -> None:
        runs.append(None)
        if len(runs) == 1:
            raise Snooze(delay=timedelta(0))
        if len(runs) < 4:
            raise RuntimeError(f"at run {len(runs)}")
        raise GiveUp("no more")

    app.add(fail)

    app.run()

    lines = [(record.levelno, record.__dict__["job_event"]) for record in ear.records if hasattr(record, "job_id")]
    warnings = ear.lines(level=logging.WARNING)
    assert lines == [
        (logging.INFO, "snoozed"),
        (logging.WARNING, "retried"),
        (logging.WARNING, "retried"),
        (logging.WARNING, "failed"),
    ]
    assert [line.rpartition(", ")[2] for line in warnings] == [
        "RuntimeError: at run 2",
        "RuntimeError: at run 3",
        "GiveUp: no more",
    ]


def test_event_when_it_is_told_the_row_says_so(app: App) -> None:
    """Callbacks run after the commit: what the event tells, another session can read."""
    told: list[tuple[JobEvent, str, list[str]]] = []

    @app.jobs.on("done", "dead")
    def look(event: JobEvent) -> None:
        told.append((event, app.row(event.job_id).status, app.notes()))

    @app.jobs.handler(queue="mail", max_attempts=1)
    def write(session: Session, text: str) -> None:
        session.add(Note(text=text))
        session.flush()
        if text == "bad":
            raise RuntimeError("bad")

    app.add(write, "good")
    app.add(write, "bad")

    app.run(concurrency=1)

    (done, done_status, done_notes), (dead, dead_status, _) = told
    assert (done.name, done_status, done_notes) == ("done", "done", ["good"])
    assert (dead.name, dead_status) == ("dead", "dead")
    assert (done.type, done.queue, done.attempt, done.max_attempts, done.error) == ("write", "mail", 1, 1, None)
    assert done.ms is not None
    assert (dead.error or "").endswith("RuntimeError: bad")


def test_event_when_a_callback_raises(app: App, ear: Ear) -> None:
    """A callback that raises is logged; the job is done, and the other callbacks are called."""
    called: list[str] = []

    @app.jobs.on("done")
    def broken(event: JobEvent) -> None:
        called.append("broken")
        raise LookupError("nobody to page")

    @app.jobs.on("done")
    def whole(event: JobEvent) -> None:
        called.append("whole")

    @app.jobs.handler
    def work() -> None: ...

    for _ in range(2):
        app.add(work)

    app.run()

    assert called == ["broken", "whole"] * 2
    assert app.statuses() == ["done"] * 2
    assert len(ear.lines("a callback for 'done' raised", level=logging.WARNING)) == 2


def test_event_when_a_callback_exits(app: App) -> None:
    """A callback that calls `sys.exit` ends neither the worker nor the telling of events."""
    called: list[int] = []

    @app.jobs.on("done")
    def leave(event: JobEvent) -> None:
        called.append(event.job_id)
        raise SystemExit(1)

    @app.jobs.handler
    def work() -> None: ...

    jobs = [app.add(work), app.add(work)]

    app.run(concurrency=1)

    assert called == jobs


def test_event_when_a_callback_is_slow(app: App) -> None:
    """A callback that takes its time delays no job."""
    is_over = threading.Event()

    @app.jobs.handler
    def work() -> None: ...

    @app.jobs.on("done")
    def slow(event: JobEvent) -> None:
        wait_for(is_over)

    @app.jobs.handler
    def last() -> None:
        is_over.set()

    app.add(work)
    app.add(work)
    app.add(last)

    app.run(concurrency=1)

    assert app.statuses() == ["done"] * 3


def test_event_when_the_worker_stops_is_told_before(app: App) -> None:
    """A worker that has stopped has told all its events."""
    told: list[int] = []

    @app.jobs.on("done")
    def note(event: JobEvent) -> None:
        told.append(event.job_id)

    @app.jobs.handler
    def work() -> None: ...

    jobs = [app.add(work) for _ in range(50)]

    app.run()

    assert sorted(told) == jobs


def vanish(app: App, job: int, **columns: object) -> None:
    """Make the row look as if its worker had vanished."""
    row = app.row(job)
    vanished = {"status": "running", "locked_by": "vanished:1", "attempts": 1, "claims": 1, "started_at": row.run_at}
    with app.sessions.begin() as session:
        late = {"locked_until": row.run_at - timedelta(seconds=1)}
        session.execute(update(Job).where(Job.id == job).values(**(vanished | late | columns)))


def test_event_when_a_lease_has_expired(app: App, ear: Ear) -> None:
    """The reaper tells that a lease has expired, and what became of the job."""

    @app.jobs.handler(max_attempts=1)
    def work() -> None: ...

    job = app.add(work)
    vanish(app, job)

    with app.worker() as worker:
        assert worker.reap() == 1
        events = [app.hear("lease_expired"), app.hear("dead")]

    row = app.row(job)
    assert [(event.job_id, event.attempt, event.ms) for event in events] == [(job, 1, None)] * 2
    assert (row.status, row.lease_expirations) == ("dead", 1)
    assert "the worker vanished:1 vanished" in (row.last_error or "")
    assert len(ear.lines("vanished:1", level=logging.WARNING)) == 2


@pytest.mark.parametrize("odd", [{"started_at": None}, {"errors": {"a": 1}}, {"locked_by": None}, {"payload": [1]}])
def test_reaper_when_a_row_was_broken_by_hand(app: App, odd: dict[str, object]) -> None:
    """A running row that somebody has written by hand is reaped like any other, and stops no worker."""

    @app.jobs.handler
    def work() -> None: ...

    broken, whole = app.add(work), app.add(work)
    vanish(app, broken, **odd)
    vanish(app, whole)

    with app.worker() as worker:
        worker.reap()
        assert worker.is_healthy

    assert app.row(whole).lease_expirations == 1
    assert odd.get("locked_by", "") is None or app.row(broken).lease_expirations == 1


def test_callback_when_it_is_async(app: App) -> None:
    """An async callback is refused where it is registered."""

    async def page(event: JobEvent) -> None: ...

    with pytest.raises(InvalidHandler, match="page is async, and events are told from a thread with no loop"):
        app.jobs.on("dead")(page)  # type: ignore[type-var]  # refused at run time, too


def test_callback_when_its_event_does_not_exist(app: App) -> None:
    """An event that is never told is refused, with the names of those that are."""
    with pytest.raises(InvalidOption, match="no event is called 'finished'; there are dead, done, failed"):
        app.jobs.on("finished")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "message",
    ["nul \x00 nul", "lone \ud800 surrogate", "x" * 100_000, "ünïcödé " * 3000],
    ids=["nul", "lone", "x", "ü"],
)
def test_error_text_when_it_is_awkward(app: App, message: str) -> None:
    """Any error text can be stored, bounded, with the end of it kept."""

    @app.jobs.handler(max_attempts=2, backoff=AT_ONCE)
    def fail() -> None:
        raise RuntimeError(message + " the end")

    job = app.add(fail)

    app.run()

    row = app.row(job)
    assert row.status == "dead"
    assert (row.last_error or "").endswith(" the end")
    assert len((row.last_error or "").encode()) <= 8192
    assert all(len(error["error"].encode()) <= 2048 for error in row.errors)


def test_error_when_it_cannot_be_written_as_text(app: App) -> None:
    """An exception that fails to say what it is, is still a failed attempt with its class's name."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise TypeError("no words")

        __repr__ = __str__

    @app.jobs.handler(max_attempts=1)
    def fail() -> None:
        raise Mute

    job = app.add(fail)

    app.run()

    assert app.row(job).status == "dead"
    assert "Mute" in (app.row(job).last_error or "")
