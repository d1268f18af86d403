"""What `jobs.on(…)` tells: one value for each end of an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sqla_jobs.rules.lease import Lease

EventName = Literal[
    "done", "failed", "dead", "retried", "snoozed", "released", "interrupted", "lease_lost", "lease_expired"
]

EVENT_NAMES: frozenset[str] = frozenset(get_args(EventName))


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An attempt ended, and the database says so: it is made after the commit.

    :ivar name: `done`, `failed`, `dead`, `retried` (a failed attempt with more to come), `snoozed`, `released`
        (given back at shutdown), `interrupted` (the database failed; refunded), `lease_lost` (somebody else has the
        job; nothing was written), `lease_expired` (told by the reaper, beside `retried` or `dead`)
    :ivar ms: how long the handler ran, or None where it did not run here
    :ivar error: the stored error text; of a `lease_lost`, how long the heartbeat was silent, if it was
    """

    name: EventName
    job_id: int
    type: str
    queue: str
    attempt: int
    max_attempts: int
    ms: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, name: EventName, lease: Lease, ms: float | None, error: str | None) -> JobEvent:
        """Make the event of a claim's end."""
        return cls(name, lease.id, lease.type, lease.queue, lease.attempt, lease.max_attempts, ms, error)
