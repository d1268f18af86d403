"""How many jobs to claim, and how long to wait before asking again."""

from __future__ import annotations

from datetime import timedelta

SOON = 0.05
"""Seconds of work that a worker may hold beyond its free slots; more would be claimed and not started soon."""

A_FEW = 200
"""Jobs that it may hold ahead for longer, so that claims stay large where a job takes a millisecond …"""

SOON_ENOUGH = 0.25
"""… if they, too, start within so many seconds."""

LARGEST_CLAIM = 500
"""So that a claim is no long transaction; from some hundreds on, a larger one is no faster for each job."""

LARGEST_HOLD = 1000
"""Jobs that wait in a worker, however fast its handlers are: a crash costs each of them an attempt."""

UNSETTLED_LIMIT = 3000
"""Finished jobs that may wait for their flush before a worker stops claiming."""


def claim_limit(*, free: int, waiting: int, unsettled: int, ahead: int) -> int:
    """Give the number of jobs to claim now: for the free slots, and *ahead* of them.

    Nothing while half of what is held ahead still waits, so that claims stay large.
    """
    if unsettled >= UNSETTLED_LIMIT or waiting > ahead // 2:
        return 0
    return max(0, min(LARGEST_CLAIM, free + ahead - waiting))


def jobs_ahead(finished_per_second: float) -> int:
    """Give the number of jobs that will be started within `SOON`, at this rate; or a few, within `SOON_ENOUGH`."""
    few = min(A_FEW, finished_per_second * SOON_ENOUGH)
    return int(min(LARGEST_HOLD, max(few, finished_per_second * SOON)))


def hold_of_last(*, slots: int, claimed: int, last: int) -> int:
    """Give how many jobs may wait in a worker, when *last* of those that it *claimed* are at their last attempt.

    A crash would be the end of those, begun or not: about as many of them may wait as there are slots.
    """
    return LARGEST_HOLD if last == 0 else slots * claimed // last


def poll_wait(poll_interval: timedelta, *, empty_looks: int, is_listening: bool, draw: float) -> float:
    """Give the seconds until the next look: a sixteenth of the interval after work, doubling up to the interval.

    Who hears of new jobs looks half as often in the end. *draw* (0 to 1) spreads workers by a tenth to each side.
    """
    share = min(2.0 if is_listening else 1.0, 2.0 ** (min(empty_looks, 10) - 4))
    return poll_interval.total_seconds() * share * (0.9 + 0.2 * draw)
