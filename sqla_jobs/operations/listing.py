"""What people see of jobs: lists with filters, and all of one job. Reads only.

Each takes a Session or an AsyncSession (then it is awaited). Every statement looks at a bounded number of rows: a list
goes on from window to window until it has what was asked for.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast, overload

from sqlalchemy import Row
from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.errors import InvalidOption, UnknownJob
from sqla_jobs.operations.enqueue import run_on
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stored import instant, parsed
from sqla_jobs.rules.failure import headline, start_of
from sqla_jobs.rules.groups import failure_in
from sqla_jobs.rules.registry import check_duration, check_number, check_text
from sqla_jobs.schema import listing as statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.listing import Condition, Stretch
from sqla_jobs.schema.tables import MappedTable
from sqla_jobs.status import FINISHED, JobStatus

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

WINDOW, SEARCHED = 500, 2000
"""Rows that one statement looks at; and where most of them may not be what is looked for."""

LONGEST_PAGE = 10_000

LARGEST_ID = 2**63 - 1

_LINE_BYTES = 300

_OLDEST = timedelta(days=36500)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs. What is not given is not looked at.

    :ivar status: one, or several; `("failed", "dead")` are the dead letters
    :ivar older_than: it has had its status longer: since it finished; a ready one, since it was due; a running one,
        since it was claimed
    :ivar newer_than: it has had its status for less time
    :ivar error: text in its last error, upper or lower case
    :ivar group: the `key` of a `FailureGroup`
    :raises InvalidOption: a value is none that there is
    """

    status: str | Iterable[str] | None = None
    type: str | None = None
    queue: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    error: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", _statuses(self.status))
        for name in ("type", "queue", "group", "error"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        for name in ("older_than", "newer_than"):
            if getattr(self, name) is not None:
                check_duration(name, getattr(self, name), most=_OLDEST)

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """The statuses that are looked at."""
        return cast("tuple[JobStatus, ...]", self.status) or tuple(JobStatus)

    @property
    def is_plain(self) -> bool:
        """Whether an index finds all that is looked for."""
        return self.type is None and self.queue is None and self.error is None and self.group is None

    @property
    def condition(self) -> Condition:
        """What the statements look at."""
        return Condition(
            type=self.type,
            queue=self.queue,
            older_than=None if self.older_than is None else self.older_than.total_seconds(),
            newer_than=None if self.newer_than is None else self.newer_than.total_seconds(),
            error=self.error,
        )


def _statuses(given: object) -> tuple[JobStatus, ...] | None:
    if given is None:
        return None
    names: Iterable[object] = [given] if isinstance(given, str) else cast("Iterable[object]", given)
    try:
        statuses = tuple(dict.fromkeys(JobStatus(cast("str", name)) for name in names))
    except (TypeError, ValueError):
        raise InvalidOption(f"status is one of {', '.join(JobStatus)}, or several, and is {given!r}") from None
    if not statuses:
        raise InvalidOption("status is empty; leave it out for jobs of every status")
    return statuses


ALL = JobFilter()


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job as lists show it. A time is None where the row has none, or one that no datetime can hold.

    :ivar error: the line of its last error that names the error
    :ivar is_known: this registry has a handler for its type
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


@dataclass(frozen=True, slots=True)
class JobPage:
    """A part of a list.

    :ivar after: for the next part: `find_jobs(…, after=page.after)`; None at the end
    """

    jobs: tuple[FoundJob, ...]
    after: str | None


@dataclass(frozen=True, slots=True)
class JobDetails(FoundJob):
    """All that the row has of ours. JSON that can't be read is None.

    :ivar errors: the failed attempts, oldest first: `attempt`, `started_at`, `worker`, `error`
    :ivar archived_at: when it was moved to the archive, where it is now
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
    archived_at: datetime | None
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

    :raises InvalidOption: *limit* is out of range, or *after* comes from no page of such a filter
    """
    check_jobs(jobs, where)
    check_number("limit", limit, least=1)
    if limit > LONGEST_PAGE:
        raise InvalidOption(f"limit is from 1 to {LONGEST_PAGE}, and is {limit}: go on with after=page.after")

    def look(sync: Session) -> JobPage:
        sync.flush()
        found: list[Any] = []
        following = after
        for rows in windows(sync, jobs, where, after=after, limit=limit if where.is_plain else SEARCHED):
            is_cut = len(found) + len(rows.matching) > limit
            following = rows.behind(rows.matching[limit - len(found) - 1]) if is_cut else rows.after
            found += rows.matching[: limit - len(found)]
            if len(found) == limit:
                break
        return JobPage(tuple(_found(jobs, row) for row in found), following)

    return run_on(session, look)


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
    session.flush()
    for table in (jobs.table, jobs.archive):
        if table is not None and (row := _row(session, table, job_id)) is not None:
            return _details(jobs, row)
    raise UnknownJob(job_id)


def _row(session: Session, table: MappedTable, job_id: int) -> Row[Any] | None:
    statement = statements.details(table)
    return session.execute(statement, said({"of_id": job_id}), bind_arguments={"mapper": table.mapper}).one_or_none()


def check_jobs(jobs: object, where: object = ALL) -> None:
    """Refuse what comes in the wrong place."""
    if not isinstance(jobs, Jobs):
        raise InvalidOption(f"a Jobs comes second, and this is a {type(jobs).__name__}")
    if not isinstance(where, JobFilter):
        raise InvalidOption(f"a JobFilter(status=…, type=…) comes third, and this is a {type(where).__name__}")


def check_id(job_id: object) -> int:
    """Give *job_id* if it is one that a row can have.

    :raises InvalidOption: it is not
    """
    if isinstance(job_id, bool) or not isinstance(job_id, int):
        raise InvalidOption(f"a job's id is an int, and this is a {type(job_id).__name__}")
    if not -LARGEST_ID <= job_id <= LARGEST_ID:
        raise InvalidOption(f"a job's id has 64 bits, and this is {job_id}")
    return job_id


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that one statement has looked at.

    :ivar matching: those that the filter is true of
    :ivar looked_at: how many it were
    :ivar after: the place behind all of them; None at the end of the list
    """

    matching: list[Row[Any]]
    looked_at: int
    after: str | None
    stretch: Stretch

    def behind(self, row: Row[Any]) -> str:
        """Give the place behind *row*, one of these."""
        return _token(self.stretch, str(row.at), row.id)


def windows(
    session: Session, jobs: Jobs[Any], where: JobFilter, *, after: str | None, limit: int, most: int = LARGEST_ID
) -> Iterator[Window]:
    """Go over the jobs of *where* in order, *limit* rows at a time, and *most* rows altogether."""
    stretches = _stretches(session, jobs, where)
    began, place = (None, None) if after is None else _read_token(after)
    if began is not None:
        stretches = [stretch for stretch in stretches if stretch.place >= began]
    if not stretches:
        yield Window([], 0, None, Stretch((), "run_at"))
    for number, stretch in enumerate(stretches):
        place = place if stretch.place == began else None
        following = _token(stretches[number + 1]) if number + 1 < len(stretches) else None
        is_end = False
        while not is_end and most:
            statement = statements.window(jobs.table, stretch, where.condition, after=place)
            size = min(limit, most)
            rows = session.execute(statement, said({"limit": size}), bind_arguments={"mapper": jobs.table.mapper}).all()
            is_end, most = len(rows) < size, most - len(rows)
            place = None if is_end else (str(rows[-1].at), rows[-1].id)
            matching = [row for row in rows if row.matches and _is_of_group(row, where)]
            yield Window(matching, len(rows), following if place is None else _token(stretch, *place), stretch)


def _stretches(session: Session, jobs: Jobs[Any], where: JobFilter) -> list[Stretch]:
    """Give the parts of the table that may have such jobs, in order."""
    stretches: list[Stretch] = []
    finished = tuple(status for status in where.statuses if status in FINISHED)
    for statuses, key in (((JobStatus.RUNNING,), "locked_by"), (finished, "finished_at")):
        if statuses and set(statuses) <= set(where.statuses):
            stretches += [Stretch(statuses, key, is_empty=True), Stretch(statuses, key)]
    if JobStatus.READY in where.statuses:
        lanes = session.execute(statements.lanes_of(jobs.table), bind_arguments={"mapper": jobs.table.mapper})
        stretches += [
            Stretch((JobStatus.READY,), "run_at", queue=lane.queue, type=lane.type)
            for lane in lanes
            if where.queue in {None, lane.queue} and where.type in {None, lane.type}
        ]
    return sorted(stretches, key=lambda stretch: stretch.place)


def _is_of_group(row: Row[Any], where: JobFilter) -> bool:
    return where.group is None or failure_in(row.last_error or "", row.type).key == where.group


def _token(stretch: Stretch, at: str | None = None, id_: int | None = None) -> str:
    text = json.dumps([*stretch.place, at, id_])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[tuple[int, str, str, bool], tuple[str, int] | None]:
    try:
        text = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
        rank, queue, type_, is_filled, at, id_ = json.loads(text)
        place = (int(rank), str(queue), str(type_), bool(is_filled))
        return place, None if id_ is None else (str(at), check_id(int(id_)))
    except (binascii.Error, ValueError, TypeError, AttributeError, OverflowError):
        raise InvalidOption(f"after is {token!r}, and no page of a list gave that: leave it out to begin") from None


def _found(jobs: Jobs[Any], row: Row[Any]) -> FoundJob:
    return FoundJob(**_facts(jobs, row))


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
        archived_at=instant(getattr(row, "archived_at", None)),
        is_due=bool(row.is_due),
        is_lease_over=bool(row.is_lease_over),
        seen_at=cast("datetime", instant(row.now)),
    )
