"""The scheduler: fires the slots of schedules, and keeps what code declares in step with the table.

Every worker has one. They don't know of each other: a slot is decided by whoever writes first.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import Executable

from sqla_jobs.operations import scheduling
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.failure import mask
from sqla_jobs.rules.retention import limit_after_failure
from sqla_jobs.rules.schedules import Move
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.schema.trouble import is_lock_timeout

log = logging.getLogger("sqla_jobs.worker")

LOOK_SECONDS = 1.0
"""Between two looks, if no slot comes before: an edit is noticed within it."""

SCHEDULES_PER_LOOK = 500

LOOKS_PER_TICK = 20
"""So that one tick serves ten thousand schedules, and still ends."""

LONGEST_TICK = 30.0
"""Seconds after which a tick looks no more: the next one goes on."""

UPHOLD_SECONDS = 60.0
"""Between two looks for schedules that this registry declares no more."""


class Scheduler:
    """Fires what is due.

    :param bounded: a statement that bounds what a write waits for, and how long it holds its locks if it freezes
    :param is_stopping: whether to begin nothing more
    """

    def __init__(
        self,
        jobs: Jobs[Any],
        connector: Connector,
        *,
        bounded: Executable | None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._jobs = jobs
        self._connector = connector
        self._bounded = bounded
        self._is_stopping = is_stopping
        self._declared: set[str] = set()
        self._failed: dict[str, str] = {}
        self._unwritable: dict[str, str] = {}
        self._uphold_at = 0.0
        self._size = SCHEDULES_PER_LOOK

    def tick(self) -> float:
        """Declare what is new in the code, fire what is due, and give the seconds until the next look."""
        self._declare()
        if time.monotonic() >= self._uphold_at:
            self._passing_over_locks(self._uphold)
        skipped = 0
        deadline = time.monotonic() + LONGEST_TICK
        for _ in range(LOOKS_PER_TICK):
            began = time.monotonic()
            if began > deadline or self._is_stopping():
                break
            size = self._size
            found = self._connector.read(partial(scheduling.look, jobs=self._jobs, limit=size, offset=skipped))
            if found.has_revivable and self._passing_over_locks(self._revive):
                continue
            moves = self._carried_out(found)
            if len(found.rows) < size:
                return self._wait(found, moves, time.monotonic() - began)
            # All of them locked, or another's by now: others are due behind them.
            skipped = 0 if moves else skipped + size
        return 0.0

    def _passing_over_locks(self, work: Callable[[], None]) -> bool:
        """Do *work* on declared rows, and give whether it was done: where a person has one locked, it can wait."""
        try:
            work()
        except DBAPIError as error:
            if error.orig is None or not is_lock_timeout(error.orig):
                raise
            log.debug("a schedule that registry %r declares is locked; trying again", self._jobs.name)
            return False
        return True

    def _carried_out(self, found: scheduling.Look) -> list[Move]:
        counted: list[Move] = []
        for batch in scheduling.batches(scheduling.moves(self._jobs, found)):
            if self._is_stopping():
                break
            write = partial(scheduling.write, jobs=self._jobs, batch=batch, now=found.now)
            try:
                written = self._connector.run(write, bounded=self._bounded)
            except DBAPIError:
                # Maybe too much for one transaction: where Python is slow, the server takes it for a frozen one.
                self._size = limit_after_failure(self._size)
                raise
            self._jobs.wake(frozenset(written.queues))
            self._report(written)
            counted += written.moves
        self._size = min(SCHEDULES_PER_LOOK, 2 * self._size)
        _report_missed([move for move in counted if move.missed])
        return counted

    def _wait(self, found: scheduling.Look, moves: list[Move], took: float) -> float:
        """Give the seconds until the next slot, or until the next look for edits."""
        planned = [(move.next_run_at - found.now).total_seconds() for move in moves if move.next_run_at is not None]
        dues = planned if found.wait is None else [*planned, found.wait]
        look = LOOK_SECONDS * (0.9 + 0.2 * random.random())
        return max(0.0, min([look, *(due - took for due in dues)]))

    def _declare(self) -> None:
        """Store what the code has declared since the last time: all of it at the first tick."""
        new = [each for name, each in self._jobs.declarations.items() if name not in self._declared]
        if not new:
            return
        declare = partial(scheduling.declare, jobs=self._jobs, declarations=new)
        declared = self._connector.run(declare, bounded=self._bounded)
        tried = {each.name for each in new}
        self._declared |= tried
        for name, error in declared.failed.items():
            if self._failed.get(name) != error:
                log.warning("schedule %r can't be declared: %s", name, mask(error))
        self._failed = {name: error for name, error in self._failed.items() if name not in tried} | declared.failed
        for name in declared.foreign:
            log.warning(
                "schedule %r is declared by registry %r, but its row is not that registry's, and stays as it is: "
                "rename the one or the other",
                name,
                self._jobs.name,
            )

    def _uphold(self) -> None:
        self._revive()
        for name in self._connector.run(partial(scheduling.retire, jobs=self._jobs), bounded=self._bounded):
            log.info("schedule %r is retired: registry %r declares it no more", name, self._jobs.name)
        self._declared -= self._failed.keys()  # to be tried again
        self._uphold_at = time.monotonic() + UPHOLD_SECONDS * (0.9 + 0.2 * random.random())

    def _revive(self) -> None:
        for name in self._connector.run(partial(scheduling.revive, jobs=self._jobs), bounded=self._bounded):
            log.info("schedule %r is no longer retired: registry %r declares it", name, self._jobs.name)

    def _report(self, written: scheduling.Written) -> None:
        for fired in written.fired:
            log.debug("schedule %r: slot %s is job %s", fired.name, fired.slot, fired.job_id or "that was there")
        for move in written.moves:
            # Once: the next tries find the same error there.
            if move.error is not None and move.error != move.row.last_error:
                # A type that nobody here knows may be another app's.
                level = logging.WARNING if move.is_planned else logging.INFO
                log.log(level, "schedule %r does not fire: %s", move.row.name, mask(move.error))
        for name, error in written.unwritable.items():
            if self._unwritable.get(name) != error:
                log.warning("schedule %r can't be written to: %s", name, mask(error))
        self._unwritable |= written.unwritable


def _report_missed(late: list[Move]) -> None:
    """Say so in one line: after a day without schedulers it may be all of them."""
    if late:
        missed = sum(move.missed for move in late)
        names = ", ".join(repr(move.row.name) for move in late[:3]) + (", …" if len(late) > 3 else "")
        log.warning("%s slots had no scheduler in time and get no job; schedules: %s (%s)", missed, len(late), names)
