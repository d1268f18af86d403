"""Why a job does not run, in words: as far as this registry and the rows can tell. Reads only."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.errors import UnknownHandler
from sqla_jobs.operations.enqueue import run_on
from sqla_jobs.operations.listing import JobDetails, check_id, check_jobs, details_of
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema import listing as statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.status import JobStatus

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

Reason = Literal[
    "due_later",
    "waits_for_retry",
    "unknown_type",
    "in_backlog",
    "running",
    "lease_expired",
    "done",
    "failed",
    "dead",
    "archived",
]

BACKLOG_CAP = 10_000
"""Jobs of one type that are counted before it."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is not running, or that it is. `str()` gives the text."""

    job_id: int
    status: str
    reason: Reason
    text: str

    def __str__(self) -> str:
        return self.text


@overload
def why(session: Session | scoped_session[Any], jobs: Jobs[Any], job_id: int, /) -> Why: ...
@overload
def why(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], job_id: int, /
) -> Coroutine[Any, Any, Why]: ...
def why(session: Any, jobs: Jobs[Any], job_id: int, /) -> Any:
    """Say why a job is not running: what it waits for, who has it, or how it ended. Await it for an AsyncSession.

    :raises UnknownJob: there is none of that id
    """
    check_jobs(jobs)

    def look(sync: Session) -> Why:
        job = details_of(sync, jobs, check_id(job_id))
        reason, words = _explained(sync, jobs, job)
        return Why(job.id, job.status, reason, f"job {job.id} ({job.type}, queue {job.queue}) {words}")

    return run_on(session, look)


def _explained(session: Session, jobs: Jobs[Any], job: JobDetails) -> tuple[Reason, str]:
    match job.status:
        case JobStatus.READY:
            reason, words = _ready(session, jobs, job)
        case JobStatus.RUNNING:
            reason, words = _running(job)
        case JobStatus.DONE:
            reason, words = "done", f"is done{_at(job.finished_at, job)}, at attempt {job.attempts}{_by(job)}"
        case JobStatus.FAILED:
            reason, words = (
                "failed",
                f"has failed for good{_at(job.finished_at, job)}{_error(job)}; requeue it to run it",
            )
        case _:
            words = (
                f"is dead{_at(job.finished_at, job)}, after attempt {job.attempts} of {job.max_attempts}{_error(job)}"
            )
            reason, words = "dead", f"{words}; requeue it to run it"
    if job.archived_at is None:
        return reason, words
    return (
        "archived",
        f"{words.removesuffix('; requeue it to run it')}; it is in the archive{_at(job.archived_at, job)}",
    )


def _ready(session: Session, jobs: Jobs[Any], job: JobDetails) -> tuple[Reason, str]:
    unknown = _unknown(jobs, job)
    if not job.is_due and job.last_error is not None and (job.attempts or job.refunds):
        words = f"waits for attempt {job.attempts + 1} of {job.max_attempts}, due{_at(job.run_at, job)}"
        return "waits_for_retry", f"{words}; the last error{_error(job)}{unknown}"
    if not job.is_due:
        return "due_later", f"is due later{_at(job.run_at, job)}{unknown}"
    if unknown:
        return "unknown_type", f"is due{_at(job.run_at, job)}{unknown}"
    return "in_backlog", f"is due{_at(job.run_at, job)}, and {_backlog(session, jobs, job)}"


def _unknown(jobs: Jobs[Any], job: JobDetails) -> str:
    try:
        jobs.handlers.find(job.type)
    except UnknownHandler as error:
        return f"; {error} in registry {jobs.name!r}: a worker that has one will take it"
    return ""


def _backlog(session: Session, jobs: Jobs[Any], job: JobDetails) -> str:
    parameters = {"of_id": job.id, "of_queue": job.queue, "cap": BACKLOG_CAP}
    found = session.execute(
        statements.ahead(jobs.table), said(parameters), bind_arguments={"mapper": jobs.table.mapper}
    ).all()
    counts = [row.ahead for row in found if row.type in jobs.handlers.names]
    before = sum(counts)
    if not before:
        return f"the first in its queue: the next worker that serves queue {job.queue!r} takes it; does one run?"
    least = "at least " if BACKLOG_CAP in counts else ""
    return (
        f"{least}{before} due jobs of its queue go before it" if before > 1 else "one job of its queue goes before it"
    )


def _running(job: JobDetails) -> tuple[Reason, str]:
    attempt, worker = f"attempt {job.attempts} of {job.max_attempts}", job.locked_by or "a worker that it doesn't name"
    if job.is_lease_over:
        words = f"had {attempt} running at {worker}, whose lease ran out{_at(job.locked_until, job)}"
        return "lease_expired", f"{words}: a worker's reaper gives it back; does one run?"
    words = f"is running, {attempt}: the lease is held by {worker} until {_text(job.locked_until)}"
    return "running", f"{words}, and was claimed{_at(job.started_at, job)}"


def _by(job: JobDetails) -> str:
    return f" by {job.locked_by}" if job.locked_by else ""


def _error(job: JobDetails) -> str:
    return f": {job.error}" if job.error else ""


def _at(instant: datetime | None, job: JobDetails) -> str:
    """Say when, and how far that is from now."""
    if instant is None:
        return ""
    distance = instant - job.seen_at
    words = f"in {_rough(distance)}" if distance > timedelta(0) else f"{_rough(-distance)} ago"
    return f" at {_text(instant)} ({words})"


def _text(instant: datetime | None) -> str:
    # strftime's %Y has no zeros before a short year on all systems.
    return f"{instant.replace(tzinfo=None).isoformat(' ', 'seconds')} UTC" if instant else "a time out of range"


def _rough(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
