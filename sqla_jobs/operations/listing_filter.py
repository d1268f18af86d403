"""Which jobs: filters, and the checks of what people hand in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from sqlalchemy import Column

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.registry import check_duration, check_text
from sqla_jobs.schema.listing import Condition, own_columns
from sqla_jobs.schema.tables import MappedTable
from sqla_jobs.status import JobStatus

LARGEST_ID = 2**63 - 1

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
    :ivar key: its idempotency key, to the letter
    :ivar columns: values of columns of your own, by their attributes' names, as for `using(columns={…})`
    :raises InvalidOption: a value is none that there is
    """

    status: str | Iterable[str] | None = None
    type: str | None = None
    queue: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    error: str | None = None
    group: str | None = None
    key: str | None = None
    columns: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", _statuses(self.status))
        for name in ("type", "queue", "group", "error", "key"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        for name in ("older_than", "newer_than"):
            if getattr(self, name) is not None:
                check_duration(name, getattr(self, name), most=_OLDEST)
        _check_columns(self.columns)

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """The statuses that are looked at."""
        return cast("tuple[JobStatus, ...]", self.status) or tuple(JobStatus)

    @property
    def is_plain(self) -> bool:
        """Whether an index finds all that is looked for."""
        parts = (self.type, self.queue, self.error, self.group)
        return self.key is not None or (all(part is None for part in parts) and not self.columns)

    def condition(self, table: MappedTable) -> Condition:
        """Give what the statements look at.

        :raises InvalidOption: the table has no such column
        """
        return Condition(
            type=self.type,
            queue=self.queue,
            older_than=None if self.older_than is None else self.older_than.total_seconds(),
            newer_than=None if self.newer_than is None else self.newer_than.total_seconds(),
            error=self.error,
            columns=tuple((own_column(table, name).key, value) for name, value in (self.columns or {}).items()),
            key=self.key,
            statuses=self.statuses,
        )


def _check_columns(given: object) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidOption(f"columns is a dict of names and values, and is a {type(given).__name__}")


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


def own_column(table: MappedTable, name: str) -> Column[Any]:
    """Give the app's own column that an attribute is mapped to.

    :raises InvalidOption: there is none
    """
    own = own_columns(table)
    if name not in own:
        known = f"its own columns: {', '.join(sorted(own)) or 'none'}"
        raise InvalidOption(f"{table.mapper.class_.__name__} has no column {name!r} of your own; {known}")
    return own[name]


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
