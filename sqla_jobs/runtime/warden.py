"""The warden: it ends what takes too long. It needs no database."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta

from sqla_jobs.rules.settlement import Failed
from sqla_jobs.runtime.holdings import Holding, Holdings
from sqla_jobs.runtime.settling import Settler

LONGEST_LOCAL_WAIT = timedelta(seconds=1)
"""A claimed job that no slot has taken by then is given back: slow jobs came before it."""

ASYNC_PATIENCE = 2.0
"""Seconds beyond its time-out in which an async handler, cancelled by its loop, may end by itself."""

CANCEL_AFTER = 0.5
"""Seconds beyond its time-out after which an async handler is cancelled here: it got the time-out while it ran."""

ROUND = 0.25
"""Seconds between two rounds, at most."""


class Warden:
    """Fences out handlers past their time-out, and gives back jobs that wait too long for a slot.

    :param cancel: cancels an async handler
    :param on_stuck: called when overdue handlers hold every slot
    """

    def __init__(
        self,
        holdings: Holdings,
        settler: Settler,
        *,
        lease: timedelta,
        give_back: Callable[[Holding], None],
        cancel: Callable[[Holding], None],
        on_stuck: Callable[[list[Holding]], None],
    ) -> None:
        self._holdings = holdings
        self._give_back = give_back
        self._cancel = cancel
        self._settler = settler
        self._lease = lease
        self._on_stuck = on_stuck
        self._is_stuck = False

    def tick(self) -> float:
        """Look once."""
        for holding in self._holdings.withdraw(older_than=LONGEST_LOCAL_WAIT):
            self._give_back(holding)
        running = self._holdings.running()
        for holding in running:
            if _is_unwatched(holding):
                holding.is_timed_out = True
                self._cancel(holding)
            if time.monotonic() >= _last_moment(holding) and not holding.is_overdue:
                self._fence_out(holding)
        overdue = [holding for holding in running if holding.is_overdue]
        is_stuck = len(overdue) == self._holdings.slots
        if is_stuck and not self._is_stuck:
            self._on_stuck(overdue)
        self._is_stuck = is_stuck
        return self._next_round(running)

    def _fence_out(self, holding: Holding) -> None:
        """Count the attempt as failed, and let nobody run the job for a lease: this handler may still be at it."""
        holding.is_overdue = True
        if self._holdings.begin_settling(holding):
            self._settler.submit(holding, Failed(timed_out(holding), shortest=self._lease))

    def _next_round(self, running: list[Holding]) -> float:
        moments = [_last_moment(holding) for holding in running if not holding.is_overdue]
        return max(0.0, min([ROUND, *(moment - time.monotonic() for moment in moments)]))


def _is_unwatched(holding: Holding) -> bool:
    """Tell whether it is an async handler whose time is up, and the task that awaits it knows of no time-out."""
    if holding.overdue_at is None or holding.task is None or holding.spec.timeout is not None:
        return False
    is_ending = holding.is_timed_out or holding.is_stopping or holding.is_settling
    return not is_ending and time.monotonic() >= holding.overdue_at + CANCEL_AFTER


def _last_moment(holding: Holding) -> float:
    """When its time is up, and nobody else has ended it."""
    if holding.overdue_at is None:
        return math.inf
    return holding.overdue_at + (ASYNC_PATIENCE if holding.spec.is_async else 0.0)


def timed_out(holding: Holding) -> str:
    """Say that a handler's time was up."""
    return f"TimeoutError: handler {holding.spec.name!r} ran longer than its timeout of {holding.timeout}"
