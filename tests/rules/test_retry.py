from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.errors import LONGEST_DELAY, InvalidOption
from sqla_jobs.rules.retry import INFRASTRUCTURE_BACKOFF, Backoff, delay_after

SECOND = timedelta(seconds=1)

ZERO = timedelta(0)

attempts = st.one_of(st.integers(1, 200), st.sampled_from([1_000, 100_000, 2**31 - 1]))
draws = st.floats(0, 1)
spans = st.timedeltas(ZERO, LONGEST_DELAY)


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(1, 5), (2, 10), (3, 20), (10, 2560), (11, 3600), (100, 3600), (100_000, 3600)],
)
def test_delay_doubles_with_each_attempt_up_to_the_cap(attempt: int, seconds: int) -> None:
    """Without jitter the delay is `min(cap, base * 2 ** (attempt - 1))`."""
    backoff = Backoff(jitter=0)

    assert backoff.delay(attempt, 0.5) == timedelta(seconds=seconds)


def test_delay_at_the_draws_ends_when_jitter_is_a_quarter() -> None:
    """Jitter only shortens: the longest delay is the full one, the shortest lacks the share of the jitter."""
    backoff = Backoff(base=8 * SECOND, jitter=0.25)

    assert backoff.delay(1, 0.0) == 8 * SECOND
    assert backoff.delay(1, 1.0) == 6 * SECOND


@given(
    base=spans,
    cap=spans,
    factor=st.floats(1, 1e300),
    jitter=st.floats(0, 1),
    attempt=attempts,
    draw=draws,
)
def test_delay_is_within_zero_and_cap_at_any_attempt(
    base: timedelta, cap: timedelta, factor: float, jitter: float, attempt: int, draw: float
) -> None:
    """No attempt, factor or base overflows: the delay is never negative and never above the cap."""
    backoff = Backoff(base=base, cap=cap, factor=factor, jitter=jitter)

    assert ZERO <= backoff.delay(attempt, draw) <= cap


@given(attempt=st.integers(1, 100_000), factor=st.floats(1, 100))
def test_full_delay_never_falls_as_attempts_grow(attempt: int, factor: float) -> None:
    """A later attempt never waits less than an earlier one, jitter aside."""
    backoff = Backoff(factor=factor, jitter=0)

    assert backoff.delay(attempt, 0) <= backoff.delay(attempt + 1, 0)


@pytest.mark.parametrize("base", [ZERO, SECOND])
@pytest.mark.parametrize("cap", [ZERO, SECOND])
def test_delay_is_zero_when_base_or_cap_is_zero(base: timedelta, cap: timedelta) -> None:
    """A base or a cap of zero retries at once."""
    backoff = Backoff(base=base, cap=cap, jitter=0)

    assert backoff.delay(7, 0.5) == (SECOND if base and cap else ZERO)


def test_delay_is_the_cap_when_the_base_is_above_it() -> None:
    """The cap holds from the first attempt on."""
    assert Backoff(base=60 * SECOND, cap=SECOND, jitter=0).delay(1, 0.5) == SECOND


@pytest.mark.parametrize(
    "values",
    [
        {"base": -SECOND},
        {"cap": -SECOND},
        {"factor": 0.5},
        {"factor": -2.0},
        {"factor": 0.0},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
    ],
    ids=str,
)
def test_backoff_out_of_range_is_refused_when_it_is_made(values: dict[str, Any]) -> None:
    """What can't be a backoff is an `InvalidOption` where it is written, not an overflow when a job fails."""
    (name,) = values

    with pytest.raises(InvalidOption, match=name):
        Backoff(**values)


@pytest.mark.parametrize("cap", [LONGEST_DELAY + SECOND, timedelta.max])
def test_cap_that_no_database_can_add_to_now_is_refused(cap: timedelta) -> None:
    """A cap over ten years is refused: the instant would be past what a column holds, and the attempt lost."""
    with pytest.raises(InvalidOption, match="cap"):
        Backoff(base=timedelta(days=1), cap=cap)


BROKEN: list[tuple[object, str]] = [
    (-SECOND, "not from 0"),
    (timedelta.max, "not from 0"),
    (float("nan"), "gave a float"),
    (float("inf"), "gave a float"),
    (5, "gave a int"),
    (None, "gave a NoneType"),
    ("5s", "gave a str"),
    (ZeroDivisionError(), "raised ZeroDivisionError"),
]


@pytest.mark.parametrize(("gift", "problem"), BROKEN)
def test_delay_after_a_broken_policy_falls_back_with_the_problem(gift: Any, problem: str) -> None:
    """A broken backoff function gives the default delay and says what was wrong, whatever it does."""

    def policy(attempt: int) -> timedelta:
        if isinstance(gift, Exception):
            raise gift
        assert attempt == 3
        return cast("timedelta", gift)

    delay = delay_after(policy, 3, 0.0)

    assert delay.value == Backoff().delay(3, 0.0)
    assert delay.problem is not None
    assert problem in delay.problem


def test_delay_after_a_policy_of_the_apps_is_what_it_gives() -> None:
    """A function gets the attempt, counted from 1, and its delay is taken as it is."""
    delay = delay_after(lambda attempt: attempt * SECOND, 4, 0.9)

    assert (delay.value, delay.problem) == (4 * SECOND, None)


@given(attempt=attempts, draw=draws)
def test_delay_after_infrastructure_errors_is_short(attempt: int, draw: float) -> None:
    """After an error of the database a job comes again within half a minute, however often it happened."""
    assert ZERO < INFRASTRUCTURE_BACKOFF.delay(attempt, draw) <= timedelta(seconds=30)
