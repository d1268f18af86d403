"""How long finished jobs stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import timedelta

from sqla_jobs.errors import InvalidOption
from sqla_jobs.rules.registry import check_duration
from sqla_jobs.status import JobStatus

LONGEST_RETENTION = timedelta(days=36_500)

LARGEST_BATCH = 500
"""Jobs that one transaction of the archiver moves."""

LONGEST_BATCH = 0.5
"""Seconds that one should take at most: it holds the one write lock where there is one, and a role may have a
`statement_timeout`."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long after its end a job stays in the job table, by its status; None keeps it for good.

    Then it is moved to the archive, or deleted if the registry has none. Its key is free from then on. It holds for all
    jobs of the table, also for those that other registries have enqueued.

    :param archived: how long it stays in the archive after that, before it is deleted
    :raises InvalidOption: an age is no timedelta from 0 to 100 years, or all of them are None
    """

    done: timedelta | None = None
    failed: timedelta | None = None
    dead: timedelta | None = None
    archived: timedelta | None = None

    def __post_init__(self) -> None:
        ages = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, age in ages.items():
            if age is not None:
                check_duration(name, age, most=LONGEST_RETENTION)
        if set(ages.values()) == {None}:
            raise InvalidOption("this Retention keeps everything: give an age, Retention(done=timedelta(days=1))")

    def ages(self) -> Iterator[tuple[JobStatus, timedelta]]:
        """Give each status whose jobs are not kept for good, with their age."""
        for status in (JobStatus.DONE, JobStatus.FAILED, JobStatus.DEAD):
            age: timedelta | None = getattr(self, status.value)
            if age is not None:
                yield status, age


def next_limit(limit: int, *, seconds: float) -> int:
    """Give the size of the next batch, after one of *limit* jobs that took that long."""
    return max(1, limit // 2) if seconds > LONGEST_BATCH else min(LARGEST_BATCH, limit * 2)


def limit_after_failure(jobs: int) -> int:
    """Give the size of the batch to try after one of *jobs* has failed: an eighth, in the end one alone."""
    return max(1, jobs // 8)
