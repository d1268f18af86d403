"""The same as `operations.dead_letters`, to all jobs that a filter names: one bounded batch a call.

.. code-block:: python

    after = None
    while True:
        with Session.begin() as session:
            batch = requeue_batch(session, jobs, JobFilter(status="dead", type="send_receipt"), after=after)
        if (after := batch.after) is None:
            break
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.callers import flush
from sqla_jobs.operations.dead_letters import CANCEL, DELETE, REQUEUE, Verb, check_attempts, check_reason, moved_of
from sqla_jobs.operations.enqueue import run_on
from sqla_jobs.operations.listing import ALL, SEARCHED, WINDOW, JobFilter, check_jobs, windows
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.registry import check_number

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

LARGEST_BATCH = 10_000

COUNT_CAP = 10_000


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call has done.

    :ivar changed: rows that were moved
    :ivar skipped: rows that the filter names, and that were not: locked by somebody, of another status by now, or
        referred to by rows of yours
    :ivar after: where the next call goes on; None when all has been seen
    """

    changed: int
    skipped: int
    after: str | None


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs a filter names; at least so many if it *is_capped*."""

    count: int
    is_capped: bool


@overload
def requeue_batch(
    session: Session | scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter,
    /,
    *,
    after: str | None = None,
    limit: int = WINDOW,
    max_attempts: int | None = None,
) -> Batch: ...
@overload
def requeue_batch(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter,
    /,
    *,
    after: str | None = None,
    limit: int = WINDOW,
    max_attempts: int | None = None,
) -> Coroutine[Any, Any, Batch]: ...
def requeue_batch(
    session: Any,
    jobs: Jobs[Any],
    where: JobFilter,
    /,
    *,
    after: str | None = None,
    limit: int = WINDOW,
    max_attempts: int | None = None,
) -> Any:
    """Look at the next *limit* failed and dead jobs, and requeue those that *where* names; pass over locked ones.

    :raises InvalidOption: the filter names a status that is not requeued, or a number is out of range
    """
    more = {"new_max_attempts": check_attempts(max_attempts)}
    return _by_filter(session, jobs, REQUEUE, where, more, after=after, limit=limit)


@overload
def cancel_batch(
    session: Session | scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter,
    /,
    *,
    after: str | None = None,
    limit: int = WINDOW,
    reason: str = ...,
) -> Batch: ...
@overload
def cancel_batch(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter,
    /,
    *,
    after: str | None = None,
    limit: int = WINDOW,
    reason: str = ...,
) -> Coroutine[Any, Any, Batch]: ...
def cancel_batch(
    session: Any,
    jobs: Jobs[Any],
    where: JobFilter,
    /,
    *,
    after: str | None = None,
    limit: int = WINDOW,
    reason: str = "cancelled",
) -> Any:
    """Look at the next *limit* ready and running jobs, and cancel those that *where* names; pass over locked ones.

    :raises InvalidOption: the filter names a status that is not cancelled, or a number is out of range
    """
    return _by_filter(session, jobs, CANCEL, where, {"reason": check_reason(reason)}, after=after, limit=limit)


@overload
def delete_batch(
    session: Session | scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter,
    /,
    *,
    after: str | None = None,
    limit: int = WINDOW,
) -> Batch: ...
@overload
def delete_batch(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter,
    /,
    *,
    after: str | None = None,
    limit: int = WINDOW,
) -> Coroutine[Any, Any, Batch]: ...
def delete_batch(
    session: Any, jobs: Jobs[Any], where: JobFilter, /, *, after: str | None = None, limit: int = WINDOW
) -> Any:
    """Look at the next *limit* done, failed and dead jobs, and delete those that *where* names; pass over locked ones.

    Those that rows of yours refer to stay, and count as skipped.

    :raises InvalidOption: the filter names a status that is not deleted, or a number is out of range
    """
    return _by_filter(session, jobs, DELETE, where, {}, after=after, limit=limit)


@overload
def count_jobs(
    session: Session | scoped_session[Any], jobs: Jobs[Any], where: JobFilter = ALL, /, *, cap: int = COUNT_CAP
) -> Count: ...
@overload
def count_jobs(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter = ALL,
    /,
    *,
    cap: int = COUNT_CAP,
) -> Coroutine[Any, Any, Count]: ...
def count_jobs(session: Any, jobs: Jobs[Any], where: JobFilter = ALL, /, *, cap: int = COUNT_CAP) -> Any:
    """Count the jobs that *where* names, up to *cap*: what a batch form would move. Reads only.

    :raises InvalidOption: *cap* is no number
    """
    check_jobs(jobs, where)
    check_number("cap", cap, least=1)

    def count(sync: Session) -> Count:
        flush(sync)
        found = 0
        for rows in windows(sync, jobs, where, after=None, limit=SEARCHED):
            found += len(rows.matching)
            if found >= cap:
                return Count(cap, is_capped=found > cap or rows.after is not None)
        return Count(found, is_capped=False)

    return run_on(session, count)


def _by_filter(
    session: Any, jobs: Jobs[Any], verb: Verb, where: JobFilter, more: dict[str, Any], *, after: str | None, limit: int
) -> Any:
    check_jobs(jobs, where)
    check_number("limit", limit, least=1)
    if limit > LARGEST_BATCH:
        raise InvalidOption(f"limit is from 1 to {LARGEST_BATCH}, and is {limit}: call it again with after=batch.after")
    narrowed = _narrowed(where, verb)

    def move(sync: Session) -> Batch:
        flush(sync)
        ids: list[int] = []
        following = after
        for rows in windows(sync, jobs, narrowed, after=after, limit=limit, most=limit):
            ids += [row.id for row in rows.matching]
            following = rows.after
        # In the statuses of the filter, not of the verb: a row may have gone on since it was looked at.
        statuses = narrowed.statuses
        moved = moved_of(sync, jobs, verb, ids, more, statuses=statuses, skip_locked=True) if ids else set[int]()
        return Batch(len(moved), len(ids) - len(moved), following)

    return run_on(session, move)


def _narrowed(where: JobFilter, verb: Verb) -> JobFilter:
    """Give the filter for the statuses that the verb moves: all of them, where none is named."""
    wrong = [status for status in where.statuses if status not in verb.statuses]
    if where.status is not None and wrong:
        raise InvalidOption(f"jobs that are {wrong[0]} are not {verb.past}: {verb.advice}")
    statuses = where.statuses if where.status is not None else tuple(sorted(verb.statuses))
    return replace(where, status=statuses)
