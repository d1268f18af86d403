"""What people see of jobs: lists with filters, and all of one job. Reads only.

Each takes a Session or an AsyncSession (then it is awaited). Every statement looks at a bounded number of rows: a list
goes on from window to window until it has what was asked for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast, overload

from sqlalchemy import Row
from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.errors import InvalidOption, UnknownJob
from sqla_jobs.operations.callers import flush
from sqla_jobs.operations.enqueue import run_on
from sqla_jobs.operations.listing_filter import ALL, LARGEST_ID, JobFilter, check_id, check_jobs
from sqla_jobs.operations.listing_windows import SEARCHED, WINDOW, Window, archived_windows, windows
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stored import instant, parsed
from sqla_jobs.rules.failure import headline, start_of
from sqla_jobs.rules.registry import check_number
from sqla_jobs.schema import listing as statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.tables import MappedTable

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

__all__ = [
    "ALL",
    "SEARCHED",
    "WINDOW",
    "FoundJob",
    "JobDetails",
    "JobFilter",
    "JobPage",
    "check_id",
    "check_jobs",
    "details_of",
    "find_archived_jobs",
    "find_jobs",
    "show_job",
    "windows",
]

LONGEST_PAGE = 10_000

LONGEST_LOOK = 100_000
"""Rows that are looked at for one page, where no index finds what is looked for."""

_LINE_BYTES = 300


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job as lists show it. A time is None where the row has none, or one that no datetime can hold.

    :ivar error: the line of its last error that names the error
    :ivar is_known: this registry has a handler for its type
    :ivar archived_at: when it was moved to the archive, where it is now
    """

    id: int
    type: str
    queue: str
    status: str
    run_at: datetime | None
    attempts: int
    max_attempts: int
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    locked_by: str | None
    locked_until: datetime | None
    error: str | None
    is_known: bool
    archived_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobPage:
    """A part of a list.

    :ivar after: for the next part: `find_jobs(…, after=page.after)`; None at the end
    :ivar looked_at: how many rows that took. After 100,000 in which a filter has not found enough, the page ends; it
        may be empty, and *after* goes on behind them
    """

    jobs: tuple[FoundJob, ...]
    after: str | None
    looked_at: int


@dataclass(frozen=True, slots=True)
class JobDetails(FoundJob):
    """All that the row has of ours. JSON that can't be read is None.

    :ivar errors: the failed attempts, oldest first: `attempt`, `started_at`, `worker`, `error`
    :ivar is_due: its time has come; a time that no datetime can hold is before it, or behind it
    :ivar is_lease_over: nobody holds it, or nobody has renewed it
    :ivar seen_at: when all that was so, by the database's clock
    """

    payload: Any
    last_error: str | None
    errors: Any
    result: Any
    idempotency_key: str | None
    refunds: int
    claims: int
    lease_expirations: int
    last_lease_expired_at: datetime | None
    schedule_id: int | None
    slot: datetime | None
    trace: Any
    is_due: bool
    is_lease_over: bool
    seen_at: datetime = field(compare=False)


@overload
def find_jobs(
    session: Session | scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter = ALL,
    /,
    *,
    limit: int = 50,
    after: str | None = None,
) -> JobPage: ...
@overload
def find_jobs(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter = ALL,
    /,
    *,
    limit: int = 50,
    after: str | None = None,
) -> Coroutine[Any, Any, JobPage]: ...
def find_jobs(
    session: Any, jobs: Jobs[Any], where: JobFilter = ALL, /, *, limit: int = 50, after: str | None = None
) -> Any:
    """Give up to *limit* jobs. Archived ones are not among them. Await it for an AsyncSession.

    The running ones come first, then the ready ones by queue, type and time, then the finished, newest first.

    :raises InvalidOption: *limit* is out of range, *after* is of no page of such a list, or there is no such column
    """
    check_jobs(jobs, where)
    _check_limit(limit)

    def look(sync: Session) -> JobPage:
        size, most = _reach(limit, is_found_by_index=where.is_plain)
        return _page(sync, jobs, windows(sync, jobs, where, after=after, limit=size, most=most), limit)

    return run_on(session, look)


@overload
def find_archived_jobs(
    session: Session | scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter = ALL,
    /,
    *,
    limit: int = 50,
    after: str | None = None,
) -> JobPage: ...
@overload
def find_archived_jobs(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter = ALL,
    /,
    *,
    limit: int = 50,
    after: str | None = None,
) -> Coroutine[Any, Any, JobPage]: ...
def find_archived_jobs(
    session: Any, jobs: Jobs[Any], where: JobFilter = ALL, /, *, limit: int = 50, after: str | None = None
) -> Any:
    """Give up to *limit* archived jobs; what was archived last comes first. Await it for an AsyncSession.

    :raises InvalidOption: there is no archive, or as for `find_jobs`
    """
    check_jobs(jobs, where)
    _check_limit(limit)
    archive = jobs.archive
    if archive is None:
        raise InvalidOption("there is no archive: Jobs(…, archive=ArchivedJob), a model with ArchivedJobMixin")

    def look(sync: Session) -> JobPage:
        size, most = _reach(limit, is_found_by_index=where.key is not None or where == ALL)
        return _page(sync, jobs, archived_windows(sync, archive, where, after=after, limit=size, most=most), limit)

    return run_on(session, look)


def _reach(limit: int, *, is_found_by_index: bool) -> tuple[int, int]:
    """Give how many rows a window has, and how many all of them together."""
    return (limit, LARGEST_ID) if is_found_by_index else (SEARCHED, LONGEST_LOOK)


def _check_limit(limit: int) -> None:
    check_number("limit", limit, least=1)
    if limit > LONGEST_PAGE:
        raise InvalidOption(f"limit is from 1 to {LONGEST_PAGE}, and is {limit}: go on with after=page.after")


def _page(session: Session, jobs: Jobs[Any], parts: Iterable[Window], limit: int) -> JobPage:
    flush(session)
    found: list[Row[Any]] = []
    following: str | None = None
    looked_at = 0
    for rows in parts:
        is_cut = len(found) + len(rows.matching) > limit
        following = rows.behind(rows.matching[limit - len(found) - 1]) if is_cut else rows.after
        found += rows.matching[: limit - len(found)]
        looked_at += rows.looked_at
        if len(found) == limit:
            break
    return JobPage(tuple(FoundJob(**_facts(jobs, row)) for row in found), following, looked_at)


@overload
def show_job(session: Session | scoped_session[Any], jobs: Jobs[Any], job_id: int, /) -> JobDetails: ...
@overload
def show_job(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], job_id: int, /
) -> Coroutine[Any, Any, JobDetails]: ...
def show_job(session: Any, jobs: Jobs[Any], job_id: int, /) -> Any:
    """Give all of one job, also from the archive. Await it for an AsyncSession.

    :raises UnknownJob: there is none of that id
    """
    check_jobs(jobs)
    return run_on(session, lambda sync: details_of(sync, jobs, check_id(job_id)))


def details_of(session: Session, jobs: Jobs[Any], job_id: int) -> JobDetails:
    """Give all of one job, live or archived."""
    flush(session)
    for table in (jobs.table, jobs.archive):
        if table is not None and (row := _row(session, table, job_id)) is not None:
            return _details(jobs, row)
    raise UnknownJob(job_id)


def _row(session: Session, table: MappedTable, job_id: int) -> Row[Any] | None:
    statement = statements.details(table)
    return session.execute(statement, said({"of_id": job_id}), bind_arguments={"mapper": table.mapper}).one_or_none()


def _facts(jobs: Jobs[Any], row: Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "type": row.type,
        "queue": row.queue,
        "status": row.status,
        "run_at": instant(row.run_at),
        "attempts": row.attempts,
        "max_attempts": row.max_attempts,
        "created_at": instant(row.created_at),
        "started_at": instant(row.started_at),
        "finished_at": instant(row.finished_at),
        "locked_by": row.locked_by,
        "locked_until": instant(row.locked_until),
        "error": start_of(headline(row.last_error), _LINE_BYTES) if row.last_error else None,
        "is_known": row.type in jobs.handlers.names,
        "archived_at": instant(getattr(row, "archived_at", None)),
    }


def _details(jobs: Jobs[Any], row: Row[Any]) -> JobDetails:
    return JobDetails(
        **_facts(jobs, row),
        payload=parsed(row.payload),
        last_error=row.last_error,
        errors=parsed(row.errors),
        result=parsed(row.result),
        idempotency_key=row.idempotency_key,
        refunds=row.refunds,
        claims=row.claims,
        lease_expirations=row.lease_expirations,
        last_lease_expired_at=instant(row.last_lease_expired_at),
        schedule_id=row.schedule_id,
        slot=instant(row.slot),
        trace=parsed(row.trace),
        is_due=bool(row.is_due),
        is_lease_over=bool(row.is_lease_over),
        seen_at=cast("datetime", instant(row.now)),
    )
