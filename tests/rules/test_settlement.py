from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.rules.events import EVENT_NAMES
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.retry import Backoff
from sqla_jobs.rules.settlement import (
    KEPT_ERROR_BYTES,
    KEPT_ERRORS,
    LAST_ERROR_BYTES,
    REFUND_LIMIT,
    Failed,
    GaveUp,
    Interrupted,
    Outcome,
    Released,
    Returned,
    Settlement,
    Snoozed,
    Vanished,
    decide,
)
from sqla_jobs.status import MOVES, JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = timedelta(seconds=1)
ZERO = timedelta(0)

FIXED = Backoff(base=8 * SECOND, factor=1, jitter=0)

LEASE = Lease(
    id=7,
    type="send",
    queue="mail",
    payload={},
    attempt=2,
    max_attempts=5,
    refunds=1,
    claims=4,
    locked_by="w1",
    started_at=datetime(2024, 2, 29, 12, tzinfo=UTC),
    errors=({"attempt": 1, "error": "first"},),
)
LAST = LEASE._replace(attempt=5)


def settled(outcome: Outcome, lease: Lease = LEASE, backoff: Any = FIXED, draw: float = 0.5) -> Settlement:
    return decide(lease, outcome, backoff=backoff, draw=draw)


def entry(lease: Lease, error: str) -> dict[str, object]:
    return {"attempt": lease.attempt, "started_at": "2024-02-29T12:00:00+00:00", "worker": "w1", "error": error}


@pytest.mark.parametrize("lease", [LEASE, LAST], ids=["more", "last"])
def test_returned_ends_done_with_the_result(lease: Lease) -> None:
    """A handler that returned ends its job as done, on the last attempt too, and changes no count."""
    settlement = settled(Returned({"sent": 3}), lease)

    assert settlement == Settlement(
        lease, "done", JobStatus.DONE, attempts=lease.attempt, refunds=1, result={"sent": 3}
    )


def test_returned_with_a_note_ends_done_and_says_the_note() -> None:
    """A value that can't be stored doesn't undo the job: it is done, and the note says what is missing."""
    settlement = settled(Returned(None, note="a socket can't be stored"))

    assert (settlement.status, settlement.error) == (JobStatus.DONE, "a socket can't be stored")
    assert settlement.problem == "a socket can't be stored"
    assert settlement.errors is None


def test_failed_goes_back_to_ready_with_backoff_and_its_error() -> None:
    """A failed attempt with more to come waits its backoff, keeps its attempt, and is added to the errors."""
    settlement = settled(Failed("boom"))

    assert settlement == Settlement(
        LEASE,
        "retried",
        JobStatus.READY,
        attempts=2,
        refunds=1,
        delay=8 * SECOND,
        error="boom",
        errors=[{"attempt": 1, "error": "first"}, entry(LEASE, "boom")],
    )


@pytest.mark.parametrize("outcome", [Failed("boom"), Failed("boom", delay=SECOND)], ids=["error", "Retry"])
def test_failed_on_the_last_attempt_ends_dead(outcome: Failed) -> None:
    """No attempt is left, so a `Retry` ends the job as an error does."""
    settlement = settled(outcome, LAST)

    assert (settlement.event, settlement.status, settlement.attempts) == ("dead", JobStatus.DEAD, 5)
    assert settlement.delay is None
    assert settlement.error == "boom"


def test_failed_with_a_delay_of_its_own_waits_that_long() -> None:
    """`Retry(delay=…)` overrides the backoff."""
    assert settled(Failed("later", delay=3 * SECOND)).delay == 3 * SECOND


@pytest.mark.parametrize("delay", [None, ZERO], ids=["backoff", "Retry"])
def test_failed_with_a_shortest_delay_waits_at_least_that(delay: timedelta | None) -> None:
    """A handler that is still running is not run again before its lease could be over, whatever its backoff."""
    settlement = settled(Failed("timed out", delay=delay, shortest=60 * SECOND))

    assert settlement.delay == 60 * SECOND


def test_failed_with_a_broken_backoff_is_recorded_with_the_problem() -> None:
    """A backoff function that raises doesn't lose the attempt: the default delay is used, and the problem is told."""

    def broken(attempt: int) -> timedelta:
        raise ZeroDivisionError(attempt)

    settlement = settled(Failed("boom"), backoff=broken, draw=0.0)

    assert settlement.delay == Backoff().delay(2, 0.0)
    assert settlement.problem is not None
    assert "ZeroDivisionError" in settlement.problem


@pytest.mark.parametrize(
    ("lease", "status", "delay"), [(LEASE, JobStatus.READY, 8 * SECOND), (LAST, JobStatus.DEAD, None)]
)
def test_vanished_is_a_failure_that_counts_the_expired_lease(
    lease: Lease, status: JobStatus, delay: timedelta | None
) -> None:
    """A worker that vanished uses up the attempt like an error, with backoff, and dead at the end."""
    settlement = settled(Vanished("the worker vanished"), lease)

    assert (settlement.status, settlement.delay, settlement.attempts) == (status, delay, lease.attempt)
    assert settlement.is_expired
    assert settlement.error == "the worker vanished"


@pytest.mark.parametrize("lease", [LEASE, LAST], ids=["more", "last"])
def test_gave_up_ends_failed_at_any_attempt(lease: Lease) -> None:
    """`GiveUp` ends the job as failed, with its reason, whether attempts are left or not."""
    settlement = settled(GaveUp("no such customer"), lease)

    assert (settlement.event, settlement.status) == ("failed", JobStatus.FAILED)
    assert settlement.error == "no such customer"
    assert settlement.errors == [{"attempt": 1, "error": "first"}, entry(lease, "no such customer")]


@pytest.mark.parametrize("lease", [LEASE, LAST], ids=["more", "last"])
def test_snoozed_gives_the_attempt_back_and_is_no_error(lease: Lease) -> None:
    """`Snooze` waits its delay, uses no attempt on the last one either, and leaves the errors as they are."""
    settlement = settled(Snoozed(5 * SECOND), lease)

    assert settlement == Settlement(
        lease, "snoozed", JobStatus.READY, attempts=lease.attempt - 1, refunds=1, delay=5 * SECOND
    )


@pytest.mark.parametrize("lease", [LEASE, LAST], ids=["more", "last"])
def test_released_gives_the_attempt_back_and_keeps_the_place(lease: Lease) -> None:
    """A job given back at shutdown keeps its place in the queue and its attempt, and no refund is counted."""
    settlement = settled(Released(), lease)

    assert settlement == Settlement(lease, "released", JobStatus.READY, attempts=lease.attempt - 1, refunds=1)


def test_interrupted_refunds_the_attempt_and_counts_the_refund() -> None:
    """An error of the database uses no attempt on the last one either; it shows as last error, not among the errors."""
    settlement = settled(Interrupted("connection lost"), LAST)

    assert (settlement.event, settlement.status) == ("interrupted", JobStatus.READY)
    assert (settlement.attempts, settlement.refunds) == (4, 2)
    assert (settlement.error, settlement.errors) == ("connection lost", None)
    assert settlement.delay is not None
    assert settlement.delay > ZERO


def test_interrupted_once_too_often_ends_dead_with_the_reason() -> None:
    """A job that may itself be what breaks the database isn't refunded for ever."""
    lease = LEASE._replace(refunds=REFUND_LIMIT)

    settlement = settled(Interrupted("connection lost"), lease)

    assert (settlement.event, settlement.status) == ("dead", JobStatus.DEAD)
    assert (
        settlement.error == f"refunded {REFUND_LIMIT} times for errors of the database; the last one: connection lost"
    )


def test_interrupted_up_to_the_limit_is_refunded() -> None:
    """The hundredth refund is still one."""
    lease = LEASE._replace(refunds=REFUND_LIMIT - 1)

    assert settled(Interrupted("connection lost"), lease).status is JobStatus.READY


def test_errors_keep_the_newest_ten() -> None:
    """The eleventh error pushes out the first."""
    lease = LEASE._replace(errors=tuple({"error": number} for number in range(KEPT_ERRORS)))

    kept = settled(Failed("newest"), lease).errors

    assert kept == [*({"error": number} for number in range(1, KEPT_ERRORS)), entry(lease, "newest")]
    assert lease.errors[0] == {"error": 0}


@given(error=st.text(max_size=5).map(lambda text: text * 4000))
def test_error_text_is_bounded_and_keeps_its_end(error: str) -> None:
    """However long an error is, the row keeps at most 8 KiB of it, each earlier one 2 KiB, and the end stays."""
    settlement = settled(Failed(error))

    assert settlement.error is not None
    assert settlement.errors is not None
    kept = settlement.errors[-1]["error"]
    assert len(settlement.error.encode()) <= LAST_ERROR_BYTES
    assert len(kept.encode()) <= KEPT_ERROR_BYTES
    assert settlement.error[-20:] == error[-20:]
    assert kept[-20:] == error[-20:]


delays = st.one_of(st.none(), st.timedeltas(ZERO, timedelta(days=3650)))


def lease_at(attempt: int, more: int, refunds: int) -> Lease:
    return LEASE._replace(attempt=attempt, max_attempts=attempt + more, refunds=refunds)


leases = st.builds(lease_at, st.integers(1, 10_000), st.integers(-3, 10_000), st.integers(0, 2 * REFUND_LIMIT))
outcomes: dict[str, Callable[[timedelta | None], Outcome]] = {
    "returned": lambda _: Returned(1),
    "failed": lambda delay: Failed("boom", delay=delay),
    "vanished": lambda _: Vanished("gone"),
    "gave up": lambda _: GaveUp("no"),
    "snoozed": lambda delay: Snoozed(delay or ZERO),
    "interrupted": lambda _: Interrupted("lost"),
    "released": lambda _: Released(),
}


@pytest.mark.parametrize("name", outcomes)
@given(lease=leases, delay=delays, draw=st.floats(0, 1))
def test_every_outcome_is_a_legal_move_with_sane_counts(
    name: str, lease: Lease, delay: timedelta | None, draw: float
) -> None:
    """Whatever happens, the move is legal, no count is negative or jumps, and ready means that attempts are left."""
    settlement = decide(lease, outcomes[name](delay), backoff=Backoff(), draw=draw)

    assert settlement.status in MOVES[JobStatus.RUNNING]
    assert settlement.event in EVENT_NAMES
    assert settlement.lease is lease
    assert 0 <= lease.attempt - settlement.attempts <= 1
    assert 0 <= settlement.refunds - lease.refunds <= 1
    assert settlement.delay is None or settlement.delay >= ZERO
    if settlement.status is JobStatus.READY and lease.attempt <= lease.max_attempts:
        assert settlement.attempts < lease.max_attempts
