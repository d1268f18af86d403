"""Failures, grouped by the kind of error and the place in the code. Reads only."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Row
from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.operations.callers import flush
from sqla_jobs.operations.enqueue import run_on
from sqla_jobs.operations.listing import ALL, SEARCHED, WINDOW, JobFilter, check_jobs, windows
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stored import instant
from sqla_jobs.rules.groups import Failure, failure_in
from sqla_jobs.rules.registry import check_number
from sqla_jobs.status import DEAD_LETTERS

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

GROUPS_CAP = 10_000


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one kind at one place.

    :ivar key: the same on every host, for `JobFilter(group=key)`; a deploy that moves the line makes another
    :ivar error: the exception's class, or the text that there is instead, its numbers as `#`
    :ivar place: `file.py:123 in function`, the innermost frame of the app's own code
    :ivar types: of the jobs
    :ivar first_seen: when the first of them ended, among those that were looked at
    :ivar sample_id: the newest
    """

    key: str
    error: str
    place: str | None
    types: tuple[str, ...]
    count: int
    first_seen: datetime | None
    last_seen: datetime | None
    sample_id: int


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """Groups, the largest first.

    :ivar is_capped: there are more jobs than were looked at
    """

    groups: tuple[FailureGroup, ...]
    is_capped: bool


@overload
def failure_groups(
    session: Session | scoped_session[Any], jobs: Jobs[Any], where: JobFilter = ALL, /, *, cap: int = GROUPS_CAP
) -> FailureGroups: ...
@overload
def failure_groups(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    where: JobFilter = ALL,
    /,
    *,
    cap: int = GROUPS_CAP,
) -> Coroutine[Any, Any, FailureGroups]: ...
def failure_groups(session: Any, jobs: Jobs[Any], where: JobFilter = ALL, /, *, cap: int = GROUPS_CAP) -> Any:
    """Group the newest *cap* failed and dead jobs that *where* names, by their last errors.

    :raises InvalidOption: *cap* is no number
    """
    check_jobs(jobs, where)
    check_number("cap", cap, least=1)
    narrowed = where if where.status is not None else replace(where, status=sorted(DEAD_LETTERS))

    def group(sync: Session) -> FailureGroups:
        flush(sync)
        found: dict[str, _Group] = {}
        seen = 0
        for rows in windows(sync, jobs, narrowed, after=None, limit=min(WINDOW, cap) if where.is_plain else SEARCHED):
            for row in rows.matching[: cap - seen]:
                failure = failure_in(row.last_error or "", row.type)
                found.setdefault(failure.key, _Group(failure, row.id)).add(row)
            seen += len(rows.matching)
            if seen >= cap and (seen > cap or rows.after is not None):
                return FailureGroups(_sorted(found), is_capped=True)
        return FailureGroups(_sorted(found), is_capped=False)

    return run_on(session, group)


class _Group:
    """One that is being filled."""

    def __init__(self, failure: Failure, sample_id: int) -> None:
        self._failure = failure
        self._sample_id = sample_id
        self._types: set[str] = set()
        self._times: list[datetime] = []
        self.count = 0

    def add(self, row: Row[Any]) -> None:
        """Count a job."""
        self.count += 1
        self._types.add(row.type)
        if (ended := instant(row.finished_at)) is not None:
            self._times = [min([ended, *self._times]), max([ended, *self._times])]

    def frozen(self) -> FailureGroup:
        """Give it as a value."""
        return FailureGroup(
            key=self._failure.key,
            error=self._failure.error or "(no error text)",
            place=self._failure.place,
            types=tuple(sorted(self._types)),
            count=self.count,
            first_seen=self._times[0] if self._times else None,
            last_seen=self._times[-1] if self._times else None,
            sample_id=self._sample_id,
        )


def _sorted(found: dict[str, _Group]) -> tuple[FailureGroup, ...]:
    ordered = sorted(found.values(), key=lambda group: -group.count)
    return tuple(group.frozen() for group in ordered)
