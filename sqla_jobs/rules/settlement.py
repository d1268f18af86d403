"""How an attempt ended, and what the row shall say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from sqla_jobs.rules.events import EventName
from sqla_jobs.rules.failure import clip
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.retry import INFRASTRUCTURE_BACKOFF, Backoff, BackoffPolicy, Delay, delay_after
from sqla_jobs.status import JobStatus

KEPT_ERRORS = 10
KEPT_ERROR_BYTES = 2048
LAST_ERROR_BYTES = 8192

REFUND_LIMIT = 100
"""Infrastructure errors that one job survives for free; then it is dead, since it may be what breaks the database."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned. *note* says why the value could not be stored, if it could not."""

    result: object = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed: an error, a time-out, a `Retry` with its *delay*. *shortest* bounds the delay from below."""

    error: str
    delay: timedelta | None = None
    shortest: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Vanished(Failed):
    """The lease ran out and nobody renewed it."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The handler raised `GiveUp`."""

    error: str


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler raised `Snooze`."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The database failed, not the job."""

    error: str


@dataclass(frozen=True, slots=True)
class Released:
    """The worker gave the job back: it shuts down, or cannot start it soon."""


Outcome = Returned | Failed | GaveUp | Snoozed | Interrupted | Released


class Settlement(NamedTuple):
    """What the row shall say. None leaves a column as it is; `delay` None keeps the job's place in its queue.

    `event` is the name under which `jobs.on(…)` hears of it; `problem` is for the log.
    """

    lease: Lease
    event: EventName
    status: JobStatus
    attempts: int
    refunds: int
    delay: timedelta | None = None
    error: str | None = None
    errors: list[Any] | None = None
    result: object = None
    is_expired: bool = False
    problem: str | None = None


def decide(lease: Lease, outcome: Outcome, *, backoff: BackoffPolicy, draw: float) -> Settlement:
    """Map the outcome of an attempt to what the row shall say. *draw* is a random number from 0 to 1."""
    match outcome:
        case Returned(None, None):  # what nearly all end with, and fast
            return Settlement(lease, "done", JobStatus.DONE, lease.attempt, lease.refunds)
        case Returned(result, note):
            return _settle(lease, "done", JobStatus.DONE, result=result, error=note, problem=note)
        case GaveUp(error):
            return _settle(lease, "failed", JobStatus.FAILED, error=error)
        case Snoozed(delay):
            return _settle(lease, "snoozed", JobStatus.READY, refund=True, delay=delay)
        case Released():
            return _settle(lease, "released", JobStatus.READY, refund=True)
        case Interrupted(error):
            return _interrupted(lease, error, draw)
        case Failed():
            return _failed(lease, outcome, backoff, draw)


def _failed(lease: Lease, outcome: Failed, backoff: BackoffPolicy, draw: float) -> Settlement:
    is_expired = isinstance(outcome, Vanished)
    if lease.attempt >= lease.max_attempts:
        return _settle(lease, "dead", JobStatus.DEAD, error=outcome.error, is_expired=is_expired)
    wait = Delay(outcome.delay) if outcome.delay is not None else delay_after(backoff, lease.attempt, draw)
    return _settle(
        lease,
        "retried",
        JobStatus.READY,
        delay=max(wait.value, outcome.shortest),
        error=outcome.error,
        is_expired=is_expired,
        problem=wait.problem,
    )


def _interrupted(lease: Lease, error: str, draw: float) -> Settlement:
    refunds = lease.refunds + 1
    if refunds > REFUND_LIMIT:
        error = f"refunded {REFUND_LIMIT} times for errors of the database; the last one: {error}"
        return _settle(lease, "dead", JobStatus.DEAD, error=error)
    delay = INFRASTRUCTURE_BACKOFF.delay(refunds, draw)
    return _settle(
        lease, "interrupted", JobStatus.READY, refund=True, refunds=refunds, delay=delay, error=error, keep=False
    )


def _settle(
    lease: Lease,
    event: EventName,
    status: JobStatus,
    *,
    refund: bool = False,
    refunds: int | None = None,
    delay: timedelta | None = None,
    error: str | None = None,
    keep: bool = True,
    result: object = None,
    is_expired: bool = False,
    problem: str | None = None,
) -> Settlement:
    has_failed = error is not None and keep and status is not JobStatus.DONE
    return Settlement(
        lease=lease,
        event=event,
        status=status,
        attempts=lease.attempt - 1 if refund else lease.attempt,
        refunds=lease.refunds if refunds is None else refunds,
        delay=delay,
        error=None if error is None else clip(error, LAST_ERROR_BYTES),
        errors=remember(lease, error) if has_failed and error is not None else None,
        result=result,
        is_expired=is_expired,
        problem=problem,
    )


def remember(lease: Lease, error: str) -> list[Any]:
    """Give the row's `errors` with this attempt's: the newest ten, each at most 2 KiB. Times are the database's."""
    entry: Mapping[str, Any] = {
        "attempt": lease.attempt,
        "started_at": lease.started_at.isoformat() if lease.started_at is not None else None,
        "worker": lease.locked_by,
        "error": clip(error, KEPT_ERROR_BYTES),
    }
    return [*lease.errors, entry][-KEPT_ERRORS:]


DEFAULT_BACKOFF = Backoff()
"""For types that this registry does not know."""
