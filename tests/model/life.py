"""What the rows of jobs must hold: the life of a job once more, in plain Python, after DESIGN.md and not the code."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.retry import Backoff
from sqla_jobs.rules.settlement import (
    Failed,
    GaveUp,
    Interrupted,
    Outcome,
    Released,
    Returned,
    Snoozed,
    Vanished,
)
from tests.model.app import MINUTE

LEASE: Final = 3 * MINUTE

BACKOFF: Final = Backoff(base=2 * MINUTE, cap=60 * MINUTE, jitter=0)
"""What the library is given; `_failed` says the same in its own words."""

FINISHED: Final = {"done", "failed", "dead"}

MOVABLE: Final = {"requeue": {"failed", "dead"}, "cancel": {"ready", "running"}, "delete": FINISHED}
"""The statuses in which people can move a job."""


@dataclass(kw_only=True)
class JobRow:
    """A job's row; the names are those of the columns."""

    id: int
    type: str
    payload: dict[str, Any]
    queue: str
    run_at: datetime
    created_at: datetime
    max_attempts: int
    idempotency_key: str | None = None
    schedule_id: int | None = None
    slot: datetime | None = None
    status: str = "ready"
    attempts: int = 0
    refunds: int = 0
    claims: int = 0
    locked_by: str | None = None
    locked_until: datetime | None = None
    last_error: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    result: Any = None
    lease_expirations: int = 0
    last_lease_expired_at: datetime | None = None
    trace: Any = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Life:
    """All jobs that there are, that are archived, and that have been.

    :ivar effects: (job, claim) of the runs whose writes were committed
    :ivar gone: ids of deleted jobs
    :ivar freed: keys whose job is archived or deleted, with what became of it
    """

    def __init__(self) -> None:
        self.jobs: dict[int, JobRow] = {}
        self.archive: dict[int, dict[str, Any]] = {}
        self.effects: list[tuple[int, int]] = []
        self.gone: set[int] = set()
        self.freed: dict[str, str] = {}

    def add(self, row: JobRow) -> None:
        """A transaction has committed that enqueued this job."""
        assert row.id not in self.jobs
        assert row.id not in self.archive
        assert row.id not in self.gone
        self.jobs[row.id] = row
        if row.idempotency_key is not None:
            self.freed.pop(row.idempotency_key, None)

    def holder(self, key: str | None) -> JobRow | None:
        """Give the job that holds *key*."""
        return next((row for row in self.jobs.values() if key is not None and row.idempotency_key == key), None)

    def due(self, types: tuple[str, ...], queues: tuple[str, ...] | None, now: datetime) -> list[JobRow]:
        """Give the jobs that a claim may take, in the order in which it must."""
        found = [
            row
            for row in self.jobs.values()
            if row.status == "ready" and row.run_at <= now and row.type in types
            if queues is None or row.queue in queues
        ]
        return sorted(found, key=lambda row: (row.run_at, row.id))

    def claim(self, row: JobRow, worker: str, now: datetime) -> Lease:
        """A worker has claimed the job; give what it must know of it."""
        row.status = "running"
        row.attempts += 1
        row.claims += 1
        row.locked_by, row.locked_until, row.started_at = worker, now + LEASE, now
        return Lease(
            id=row.id,
            type=row.type,
            queue=row.queue,
            payload=row.payload,
            attempt=row.attempts,
            max_attempts=row.max_attempts,
            refunds=row.refunds,
            claims=row.claims,
            locked_by=worker,
            started_at=now,
            slot=row.slot,
            errors=tuple(row.errors),
        )

    def holds(self, lease: Lease) -> bool:
        """Tell whether the row still carries the fence of *lease*."""
        row = self.jobs.get(lease.id)
        return (
            row is not None
            and row.status == "running"
            and (row.claims, row.locked_by) == (lease.claims, lease.locked_by)
        )

    def endings(self, leases: list[Lease]) -> dict[tuple[int, int], str]:
        """Give how claims have ended that no other has followed."""
        found = [(lease, self.jobs.get(lease.id)) for lease in leases]
        return {
            lease.key: row.status
            for lease, row in found
            if row is not None and row.claims == lease.claims and row.locked_by in {lease.locked_by, None}
        }

    def expired(self, now: datetime) -> list[JobRow]:
        """Give the running jobs whose lease is over, in the order in which they are reaped."""
        found = [row for row in self.jobs.values() if row.locked_until is not None and row.locked_until <= now]
        return sorted(found, key=lambda row: (row.locked_by or "", row.id))

    def settle(self, job_id: int, outcome: Outcome, now: datetime) -> None:
        """An attempt has ended, and its fence held."""
        row = self.jobs[job_id]
        row.status, row.locked_until, row.result, row.finished_at = "ready", None, None, None
        match outcome:
            case Returned(result, note):
                row.status, row.result = "done", result
                row.last_error = row.last_error if note is None else note
            case GaveUp(error):
                row.status, row.last_error = "failed", error
                _remember(row, error)
            case Snoozed(delay):
                row.attempts -= 1
                row.run_at = now + delay
            case Released():
                row.attempts -= 1
            case Interrupted(error):
                row.attempts -= 1
                row.refunds += 1
                row.run_at = now + min(timedelta(seconds=30), timedelta(seconds=0.1 * 2 ** (row.refunds - 1)))
                row.last_error = error
            case Failed():
                _failed(row, outcome, now)
        if row.status == "ready":
            row.locked_by = None
        else:
            row.finished_at = now

    def requeue(self, row: JobRow, max_attempts: int | None, now: datetime) -> None:
        """Somebody has requeued a dead letter: all its attempts are before it."""
        row.status, row.run_at, row.attempts, row.refunds = "ready", now, 0, 0
        row.max_attempts = row.max_attempts if max_attempts is None else max_attempts
        row.locked_by, row.finished_at = None, None

    def cancel(self, row: JobRow, reason: str, now: datetime) -> None:
        """Somebody has cancelled a job that had not ended."""
        row.status, row.locked_until, row.last_error, row.finished_at = "failed", None, reason, now

    def delete(self, job_id: int, *, how: str = "deleted") -> None:
        """The row is gone."""
        key = self.jobs.pop(job_id).idempotency_key
        self.gone.add(job_id)
        if key is not None:
            self.freed[key] = how

    def old(self, status: str, age: timedelta, now: datetime) -> list[JobRow]:
        """Give the jobs of *status* that ended that long ago, in the order in which they are archived."""
        found = [row for row in self.jobs.values() if row.status == status and _end(row) <= now - age]
        return sorted(found, key=lambda row: (_end(row), row.id))

    def store_away(self, row: JobRow, now: datetime) -> None:
        """The job is in the archive, as it was."""
        self.delete(row.id, how="archived")
        self.gone.remove(row.id)
        self.archive[row.id] = vars(copy(row)) | {"archived_at": now}


def _failed(row: JobRow, outcome: Failed, now: datetime) -> None:
    _remember(row, outcome.error)
    row.last_error = outcome.error
    if isinstance(outcome, Vanished):
        row.lease_expirations += 1
        row.last_lease_expired_at = now
    if row.attempts >= row.max_attempts:
        row.status = "dead"
        return
    usual = min(60 * MINUTE, 2 * MINUTE * 2 ** (row.attempts - 1))
    row.run_at = now + max(usual if outcome.delay is None else outcome.delay, outcome.shortest)


def _remember(row: JobRow, error: str) -> None:
    assert row.started_at is not None
    failure = {
        "attempt": row.attempts,
        "started_at": row.started_at.isoformat(),
        "worker": row.locked_by,
        "error": error,
    }
    row.errors = [*row.errors, failure][-10:]


def _end(row: JobRow) -> datetime:
    assert row.finished_at is not None
    return row.finished_at
