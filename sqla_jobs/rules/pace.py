"""How many jobs to claim, and how long to wait before asking again."""

from __future__ import annotations

from datetime import timedelta

SOON = 0.05
"""Seconds of work that a worker may hold beyond its free slots; more would be claimed and not started soon."""

LARGEST_CLAIM = 100

UNSETTLED_LIMIT = 1000
"""Finished jobs that may wait for their flush before a worker stops claiming."""


def claim_limit(*, free: int, waiting: int, unsettled: int, ahead: int) -> int:
    """Give the number of jobs to claim now: for the free slots, and *ahead* of them.

    Nothing while half of what is held ahead still waits, so that claims stay large.
    """
    if unsettled >= UNSETTLED_LIMIT or waiting > ahead // 2:
        return 0
    return max(0, min(LARGEST_CLAIM, free + ahead - waiting))


def jobs_ahead(finished_per_second: float) -> int:
    """Give the number of jobs that will be started within `SOON`, at this rate."""
    return min(2 * LARGEST_CLAIM, int(finished_per_second * SOON))


def poll_wait(poll_interval: timedelta, *, empty_looks: int, draw: float) -> float:
    """Give the seconds until the next look: a sixteenth of the interval after work, doubling up to the interval.

    *draw* (0 to 1) spreads workers by a tenth to each side.
    """
    share = min(1.0, 2.0 ** (min(empty_looks, 10) - 4))
    return poll_interval.total_seconds() * share * (0.9 + 0.2 * draw)
