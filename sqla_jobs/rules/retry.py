"""How long a job waits after a failed attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from sqla_jobs.errors import LONGEST_DELAY, InvalidOption


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: `min(cap, base * factor ** (attempt - 1))`, less up to *jitter* of itself.

    Source of the formula: M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015); the jitter
    only shortens, so that *cap* holds.

    :param base: delay after the first attempt; zero retries at once
    :param cap: no delay is longer
    :param factor: growth for each attempt, at least 1
    :param jitter: share of the delay that is random, 0 to 1
    :raises InvalidOption: a value is out of range
    """

    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(hours=1)
    factor: float = 2.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        for name, delay in (("base", self.base), ("cap", self.cap)):
            if not isinstance(cast("object", delay), timedelta) or not timedelta(0) <= delay <= LONGEST_DELAY:
                raise InvalidOption(f"a backoff's {name} is a timedelta from 0 to {LONGEST_DELAY}, and is {delay!r}")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise InvalidOption(f"a backoff's factor is a finite number of at least 1, and is {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise InvalidOption(f"a backoff's jitter is a share from 0 to 1, and is {self.jitter}")

    def delay(self, attempt: int, draw: float) -> timedelta:
        """Give the delay after *attempt* (from 1). *draw* is a random number from 0 to 1."""
        full = self._full(attempt - 1)
        return full - full * (self.jitter * draw)

    def _full(self, steps: int) -> timedelta:
        if not self.base or not self.cap:
            return min(self.base, self.cap)
        # In logarithms: 2 ** 100000 is no float, and base * 2 ** 50 is no timedelta.
        room = math.log(self.cap / self.base) if self.cap > self.base else 0.0
        if steps * math.log(self.factor) >= room:
            return self.cap
        return min(self.cap, self.base * self.factor**steps)


BackoffPolicy = Backoff | Callable[[int], timedelta]
"""A `Backoff`, or a function from the attempt (from 1) to a delay."""

INFRASTRUCTURE_BACKOFF = Backoff(base=timedelta(milliseconds=100), cap=timedelta(seconds=30), jitter=0.5)
"""After an error of the database, not of the job: soon again, since the attempt is refunded."""


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay, and what was wrong with the policy that should have given it, if anything."""

    value: timedelta
    problem: str | None = None


def delay_after(policy: BackoffPolicy, attempt: int, draw: float) -> Delay:
    """Ask *policy* for the delay; a broken one falls back to the default `Backoff` and says so in `problem`."""
    if isinstance(policy, Backoff):
        return Delay(policy.delay(attempt, draw))
    try:
        delay = cast("object", policy(attempt))
    except BaseException as error:  # noqa: BLE001  # the app's own function: whatever it raises must not lose the attempt's record
        return _fallback(attempt, draw, f"raised {type(error).__name__}")
    if not isinstance(delay, timedelta):
        return _fallback(attempt, draw, f"gave a {type(delay).__name__} and not a timedelta")
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        return _fallback(attempt, draw, f"gave {delay}, which is not from 0 to {LONGEST_DELAY}")
    return Delay(delay)


def _fallback(attempt: int, draw: float, problem: str) -> Delay:
    return Delay(Backoff().delay(attempt, draw), f"the backoff function {problem}; the default backoff was used")
