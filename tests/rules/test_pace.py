from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.rules.pace import (
    A_FEW,
    LARGEST_CLAIM,
    LARGEST_HOLD,
    SOON,
    SOON_ENOUGH,
    UNSETTLED_LIMIT,
    claim_limit,
    hold_of_last,
    jobs_ahead,
    poll_wait,
)

counts = st.integers(0, 10_000)


@given(free=counts, waiting=counts, unsettled=counts, ahead=counts)
def test_claim_limit_never_exceeds_what_can_start_soon(free: int, waiting: int, unsettled: int, ahead: int) -> None:
    """A claim is never negative, never over its bound, and never more than free slots and the jobs ahead of them."""
    limit = claim_limit(free=free, waiting=waiting, unsettled=unsettled, ahead=ahead)

    assert 0 <= limit <= min(LARGEST_CLAIM, free + ahead)


@given(free=st.integers(1, 100))
def test_claim_limit_is_the_free_slots_when_nothing_waits_or_runs_ahead(free: int) -> None:
    """A worker whose jobs take long claims exactly what it can start now."""
    assert claim_limit(free=free, waiting=0, unsettled=0, ahead=0) == free


def test_claim_limit_is_nothing_when_all_slots_are_taken() -> None:
    """A worker with long jobs and no free slot claims nothing, so that no lease runs out while it waits."""
    assert claim_limit(free=0, waiting=0, unsettled=0, ahead=0) == 0


@given(free=counts, waiting=counts, ahead=counts)
def test_claim_limit_is_nothing_when_flushing_falls_behind(free: int, waiting: int, ahead: int) -> None:
    """Back-pressure: nothing is claimed while thousands of finished jobs wait for their flush."""
    assert claim_limit(free=free, waiting=waiting, unsettled=UNSETTLED_LIMIT, ahead=ahead) == 0


def test_claim_limit_is_nothing_while_half_of_what_is_ahead_waits() -> None:
    """Claims stay large: what waits is used up by half before the next claim."""
    assert claim_limit(free=0, waiting=11, unsettled=0, ahead=20) == 0
    assert claim_limit(free=0, waiting=10, unsettled=0, ahead=20) == 10


@given(rate=st.floats(0, 1e9))
def test_jobs_ahead_start_within_the_bound(rate: float) -> None:
    """No more jobs are held ahead than start soon at the rate that was measured."""
    assert 0 <= jobs_ahead(rate) <= max(min(A_FEW, rate * SOON_ENOUGH), rate * SOON)


@given(slots=st.integers(1, 100), last=st.integers(1, 500), others=st.integers(0, 500))
def test_few_jobs_at_their_last_attempt_wait(slots: int, last: int, others: int) -> None:
    """As many as there are slots, when those that wait are of the mixture that was claimed."""
    held = hold_of_last(slots=slots, claimed=last + others, last=last)

    assert held * last / (last + others) <= slots
    assert hold_of_last(slots=slots, claimed=others, last=0) == LARGEST_HOLD


@pytest.mark.parametrize("interval", [timedelta(milliseconds=10), timedelta(seconds=1), timedelta(hours=1)])
@given(looks=st.integers(0, 10_000), is_listening=st.booleans(), draw=st.floats(0, 1))
def test_poll_wait_is_within_a_tenth_of_the_interval(
    interval: timedelta, looks: int, is_listening: bool, draw: float
) -> None:
    """However long nothing came, a worker looks again within the interval and a tenth, or twice that if it listens."""
    longest = interval.total_seconds() * 1.1 * (2 if is_listening else 1)

    assert 0 < poll_wait(interval, empty_looks=looks, is_listening=is_listening, draw=draw) <= longest


def test_poll_wait_doubles_with_each_empty_look() -> None:
    """After work the next look comes soon; each empty one doubles the wait, up to the interval."""

    def waits(*, is_listening: bool) -> list[float]:
        interval = timedelta(seconds=16)
        return [poll_wait(interval, empty_looks=looks, is_listening=is_listening, draw=0.5) for looks in range(7)]

    assert waits(is_listening=False) == pytest.approx([1, 2, 4, 8, 16, 16, 16])
    assert waits(is_listening=True) == pytest.approx([1, 2, 4, 8, 16, 32, 32])


def test_poll_wait_differs_between_workers_by_their_draw() -> None:
    """Workers that started together don't ask together."""
    early, late = (
        poll_wait(timedelta(seconds=1), empty_looks=10, is_listening=False, draw=draw) for draw in (0.0, 1.0)
    )

    assert [early, late] == pytest.approx([0.9, 1.1])
