"""Move finished jobs out of the job table, and old ones out of the archive: one bounded batch a call.

Each takes a session and one short transaction of its caller, who commits. On a database without row locks that
transaction must hold the write lock from its first statement. A batch that fails for one row's sake is the caller's to
try again in smaller parts: `runtime.archiver` does.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Select
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.base import Executable

from sqla_jobs.errors import InvalidModel, InvalidOption
from sqla_jobs.operations.batches import COUNT_CAP, Batch, Count
from sqla_jobs.operations.callers import flush
from sqla_jobs.operations.enqueue import capabilities_of, run_on
from sqla_jobs.operations.listing import check_jobs
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.registry import check_duration, check_number
from sqla_jobs.rules.retention import LARGEST_BATCH, LONGEST_RETENTION, Retention
from sqla_jobs.schema import archiving as statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import as_rows
from sqla_jobs.schema.tables import ArchiveTable, MappedTable
from sqla_jobs.status import FINISHED, JobStatus

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session


class Work(Enum):
    """What is done to the rows of a step."""

    DATE = "date"
    """Say that the job has ended now: somebody has ended it by plain SQL, and its age counts from now on."""
    MOVE = "move"
    """Into the archive; where there is none, delete."""
    DELETE = "delete"
    """Out of the archive."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of what a retention asks for.

    :ivar status: of the jobs; None for those in the archive
    :ivar age: how long ago they ended, or were archived; None where they have no age yet
    """

    work: Work
    status: JobStatus | None
    age: timedelta | None


@dataclass(frozen=True, slots=True)
class Place:
    """A row, and where it stands among those of its step."""

    at: str | None
    id: int

    def __str__(self) -> str:
        return f"{self.id} {self.at or ''}"

    @classmethod
    def read(cls, text: str) -> Place:
        """Read what `str` has written.

        :raises InvalidOption: it is something else
        """
        id_, _, at = text.partition(" ")
        if not id_.removeprefix("-").isdecimal():
            raise InvalidOption(f"after is what the batch before gave as Batch.after, and is {text!r}")
        return cls(at or None, int(id_))


class RowsKept(Exception):
    """The database did not delete what it was told to: a trigger or a policy of the app's keeps rows."""


def steps(retention: Retention) -> Iterator[Step]:
    """Give what a pass has to do, in order."""
    for status, age in retention.ages():
        yield Step(Work.DATE, status, None)
        yield Step(Work.MOVE, status, age)
    if retention.archived is not None:
        yield Step(Work.DELETE, None, retention.archived)


@overload
def archive_batch(
    session: Session | scoped_session[Any],
    jobs: Jobs[Any],
    status: JobStatus | str,
    older_than: timedelta,
    /,
    *,
    after: str | None = None,
    limit: int = LARGEST_BATCH,
) -> Batch: ...
@overload
def archive_batch(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    status: JobStatus | str,
    older_than: timedelta,
    /,
    *,
    after: str | None = None,
    limit: int = LARGEST_BATCH,
) -> Coroutine[Any, Any, Batch]: ...
def archive_batch(
    session: Any,
    jobs: Jobs[Any],
    status: JobStatus | str,
    older_than: timedelta,
    /,
    *,
    after: str | None = None,
    limit: int = LARGEST_BATCH,
) -> Any:
    """Move up to *limit* jobs of *status* that ended longer ago than that into the archive, oldest first.

    Without an archive they are deleted. Passes over locked rows. The rows stay locked until the transaction ends. Await
    it for an AsyncSession. `Worker(…, retention=…)` does this by itself.

    :raises InvalidOption: the status is none of a finished job, or a number is out of range
    :raises sqlalchemy.exc.IntegrityError: rows of yours refer to a job, or the archive can't take it; none is moved
    """
    check_jobs(jobs)
    check_duration("older_than", older_than, most=LONGEST_RETENTION)
    if status not in FINISHED:
        raise InvalidOption(f"jobs that are done, failed or dead are archived, and not those that are {status}")
    step = Step(Work.MOVE, JobStatus(status), older_than)
    return run_on(session, lambda sync: _batch(sync, jobs, step, after=after, limit=limit))


@overload
def delete_archived_batch(
    session: Session | scoped_session[Any],
    jobs: Jobs[Any],
    older_than: timedelta,
    /,
    *,
    after: str | None = None,
    limit: int = LARGEST_BATCH,
) -> Batch: ...
@overload
def delete_archived_batch(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    older_than: timedelta,
    /,
    *,
    after: str | None = None,
    limit: int = LARGEST_BATCH,
) -> Coroutine[Any, Any, Batch]: ...
def delete_archived_batch(
    session: Any,
    jobs: Jobs[Any],
    older_than: timedelta,
    /,
    *,
    after: str | None = None,
    limit: int = LARGEST_BATCH,
) -> Any:
    """Delete up to *limit* jobs that were archived longer ago than that, oldest first. Passes over locked rows.

    :raises InvalidModel: there is no archive
    :raises InvalidOption: a number is out of range
    :raises sqlalchemy.exc.IntegrityError: rows of yours refer to an archived job; none is deleted
    """
    check_jobs(jobs)
    check_duration("older_than", older_than, most=LONGEST_RETENTION)
    step = Step(Work.DELETE, None, older_than)
    return run_on(session, lambda sync: _batch(sync, jobs, step, after=after, limit=limit))


def preview(
    session: Session, jobs: Jobs[Any], retention: Retention, *, cap: int = COUNT_CAP
) -> dict[JobStatus | None, Count]:
    """Count the jobs that a pass would move now, up to *cap* of each status. Reads only.

    None stands for those that it would delete from the archive.

    :raises InvalidModel: the retention has `archived`, and there is no archive
    :raises InvalidOption: *cap* is no number
    """
    check_number("cap", cap, least=1)
    counts: dict[JobStatus | None, Count] = {}
    for step in steps(retention):
        if step.age is not None:
            counted = statements.counted(_rows(jobs, step, is_first=True))
            found = _execute(session, jobs, counted, {"age": step.age.total_seconds(), "limit": cap + 1}).scalar_one()
            counts[step.status] = Count(min(cap, found), is_capped=found > cap)
    return counts


def has_rows(session: Session, jobs: Jobs[Any], step: Step) -> bool:
    """Tell whether a step has anything to do now. Reads only."""
    return bool(_places(session, jobs, step, _rows(jobs, step, is_first=True), after=None, limit=1))


def lock(session: Session, jobs: Jobs[Any], step: Step, *, after: Place | None, limit: int) -> list[Place]:
    """Lock the next rows of a step, passing over those that others have locked."""
    rows = _rows(jobs, step, is_first=after is None)
    return _places(session, jobs, step, statements.locked(rows, _table(jobs, step)), after=after, limit=limit)


def carry_out(session: Session, jobs: Jobs[Any], step: Step, places: Sequence[Place]) -> None:
    """Do what a step does to rows that this transaction has locked.

    :raises RowsKept: the database does not delete some of them
    """
    if not places:
        return
    can = capabilities_of(session, jobs)
    rows = {"rows": as_rows([{"id": place.id} for place in places])}
    if step.work is Work.DATE:
        _execute(session, jobs, statements.date(jobs.table, can), rows)
        return
    if step.work is Work.MOVE and jobs.archive is not None:
        _execute(session, jobs, statements.copy(jobs.table, jobs.archive, can), rows)
    deleted = len(_execute(session, jobs, statements.remove(_table(jobs, step), can), rows).all())
    if deleted != len(places):
        raise RowsKept(f"of {len(places)} rows {deleted} were deleted: does a trigger or a policy of yours keep them?")


def bound(session: Session, jobs: Jobs[Any]) -> None:
    """Bound what the open transaction waits for, and how long it holds its locks if this process freezes."""
    if (bounded := capabilities_of(session, jobs).bounded) is not None:
        session.execute(bounded, bind_arguments={"mapper": jobs.table.mapper})


def _batch(session: Session, jobs: Jobs[Any], step: Step, *, after: str | None, limit: int) -> Batch:
    check_number("limit", limit, least=1)
    flush(session)
    places = lock(session, jobs, step, after=None if after is None else Place.read(after), limit=limit)
    carry_out(session, jobs, step, places)
    return Batch(len(places), 0, str(places[-1]) if len(places) == limit else None)


def _rows(jobs: Jobs[Any], step: Step, *, is_first: bool) -> Select[Any]:
    if step.status is None:
        return statements.archived(_archive(jobs), is_first=is_first)
    build = statements.undated if step.age is None else statements.finished
    return build(jobs.table, step.status, is_first=is_first)


def _places(
    session: Session, jobs: Jobs[Any], step: Step, statement: Executable, *, after: Place | None, limit: int
) -> list[Place]:
    parameters: dict[str, Any] = {"limit": limit}
    if step.age is not None:
        parameters["age"] = step.age.total_seconds()
    if after is not None:
        parameters |= {"after_id": after.id} if step.age is None else {"after_id": after.id, "after_at": after.at}
    return [Place(row.at, row.id) for row in _execute(session, jobs, statement, parameters)]


def _table(jobs: Jobs[Any], step: Step) -> MappedTable:
    return jobs.table if step.status is not None else _archive(jobs)


def _archive(jobs: Jobs[Any]) -> ArchiveTable:
    if jobs.archive is None:
        raise InvalidModel(
            f"registry {jobs.name!r} has no archive: `class ArchivedJob(ArchivedJobMixin, Base)`, and "
            f"Jobs({jobs.model.__name__}, archive=ArchivedJob)"
        )
    return jobs.archive


def _execute(session: Session, jobs: Jobs[Any], statement: Executable, parameters: dict[str, Any]) -> Any:
    return session.execute(statement, said(parameters), bind_arguments={"mapper": jobs.table.mapper})
