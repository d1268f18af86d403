"""What a worker holds of a job that it has claimed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple


class Lease(NamedTuple):
    """One claim of one job. `id`, `claims` and `locked_by` are the fence that every later write carries.

    `attempt` counts from 1. `errors` are the attempts that failed before, as the row stores them.
    """

    id: int
    type: str
    queue: str
    payload: object
    attempt: int
    max_attempts: int
    refunds: int
    claims: int
    locked_by: str | None
    started_at: datetime | None
    slot: datetime | None = None
    errors: tuple[Any, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        """Names the claim: the job's id, and which claim of it this is."""
        return (self.id, self.claims)

    @property
    def is_last(self) -> bool:
        """Whether the job has no other attempt: if its worker dies now, the job is dead, even if it had not begun."""
        return self.attempt >= self.max_attempts
