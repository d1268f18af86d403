"""Writes how attempts ended, in batches, each behind its fence, and again until the database has answered."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.base import Executable

from sqla_jobs.operations import leases
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.failure import describe, in_ascii
from sqla_jobs.rules.settlement import Failed, Outcome, Settlement, decide
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.runtime.counters import Tally
from sqla_jobs.runtime.holdings import Holding, Holdings
from sqla_jobs.runtime.refusals import Refusals, is_refusal
from sqla_jobs.runtime.reporting import Reporter
from sqla_jobs.schema.trouble import is_lock_timeout, is_refused
from sqla_jobs.status import JobStatus

LARGEST_FLUSH = 500

LINGER = 0.01
"""Seconds that a settlement waits for others to share its statement …"""

MANY = 20
LINGER_OF_MANY = 0.03
"""… and, with so many by then, for more: well under the promised 50 ms."""


@dataclass(slots=True, eq=False)
class _Entry:
    holding: Holding
    settlement: Settlement
    since: float
    is_in_doubt: bool
    """An earlier write of this end, or of another, was sent and not answered."""


class Settler:
    """A queue of settlements, and the tick that writes them.

    There are two: one for batches; and one, with *limit* 1, for rows that a commit in flight, or anybody, may have
    locked. A batch that meets a locked row is left to the second, where such a row goes to the end, and delays no other
    for long.

    :param bounded: bounds the wait for a lock
    :param aside: the second, for the first
    :param on_settled: called after each write, and told whether there are jobs to run again
    """

    def __init__(
        self,
        jobs: Jobs[Any],
        connector: Connector,
        holdings: Holdings,
        reporter: Reporter,
        tally: Tally,
        *,
        limit: int = LARGEST_FLUSH,
        bounded: Executable | None = None,
        aside: Settler | None = None,
        on_settled: Callable[[bool], None],
    ) -> None:
        self._jobs = jobs
        self._connector = connector
        self._holdings = holdings
        self._reporter = reporter
        self._tally = tally
        self._limit = limit
        self._bounded = bounded
        self._aside = aside
        self._on_settled = on_settled
        self._refusals = Refusals(connector, "settled", redact=jobs.redact)
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._is_urgent = threading.Event()
        self._batch: list[_Entry] = []
        self._has_failed = False
        self.is_stopping = False

    def submit(self, holding: Holding, outcome: Outcome, *, is_in_doubt: bool = False) -> None:
        """Decide what the row shall say, and have it written soon. The caller has begun to settle the holding."""
        holding.is_committing = False
        settlement = decide(holding.lease, outcome, backoff=holding.spec.backoff, draw=random.random())
        self._queue.put(_Entry(holding, settlement, time.monotonic(), is_in_doubt))
        if self._queue.qsize() >= LARGEST_FLUSH or holding.lease.is_last:
            self._is_urgent.set()

    def stop(self) -> None:
        """End the tick that waits; what is queued is written by the ticks that follow."""
        self.is_stopping = True
        self._queue.put(None)
        self._is_urgent.set()

    def tick(self) -> float:
        """Wait for settlements and write a batch. One that fails stays, and is written by the next tick."""
        self._gather()
        if self._batch:
            try:
                self._write(self._batch[: 1 if self._has_failed else self._limit])
                self._has_failed = False
            except DBAPIError as error:
                if error.orig is None or not is_lock_timeout(error.orig):
                    self._set_back()
                    raise
                self._pass_over()
            except Exception:
                self._set_back()
                raise
        return 0.0

    def _write(self, entries: list[_Entry]) -> None:
        """Write the first entries of the batch, past those whose rows the database refuses to change."""
        try:
            self._flush(entries)
        except DBAPIError as error:
            if not is_refusal(error) or (error.orig is not None and is_refused(error.orig)):
                raise
            refused = self._divide(entries, error)
            if 1 < len(entries) == len(refused):
                raise  # all of them: it is not the rows' fault
            for entry, refusal in refused:
                self._batch.remove(entry)
                self._refused(entry, refusal)

    def _divide(self, entries: list[_Entry], error: DBAPIError) -> list[tuple[_Entry, DBAPIError]]:
        """Write, half by half, what was refused as a whole; give what is refused alone, which stays in the batch."""
        if len(entries) == 1:
            return [(entries[0], error)]
        refused: list[tuple[_Entry, DBAPIError]] = []
        middle = len(entries) // 2
        for half in (entries[:middle], entries[middle:]):
            try:
                self._flush(half)
            except DBAPIError as refusal:
                if not is_refusal(refusal):
                    raise
                refused += self._divide(half, refusal)
        return refused

    def _refused(self, entry: _Entry, error: DBAPIError) -> None:
        """Have the row say that its completion was refused; if it refuses that, too, leave it to the reaper."""
        holding, settlement = entry.holding, entry.settlement
        self._refusals.tell(holding.lease.id, error)
        plain = _plain(settlement)
        if plain != settlement:
            self._queue.put(_Entry(holding, plain, time.monotonic(), entry.is_in_doubt))
        elif settlement.status is JobStatus.DONE:
            self.submit(holding, Failed(describe(error, redact=self._jobs.redact)))
        else:
            self._holdings.give_up(holding)

    def _set_back(self) -> None:
        """Go on one by one until one goes through, the first last: a row that can't be written delays no other."""
        self._has_failed = True
        self._batch = [*self._batch[1:], *self._batch[:1]]

    def _pass_over(self) -> None:
        """Leave a batch in which a row is locked to the second settler; there, try that row again after the others."""
        if self._aside is None:
            self._batch = [*self._batch[1:], *self._batch[:1]]
            return
        for entry in self._batch:
            self._aside.take(entry)
        self._batch = []

    def take(self, entry: _Entry) -> None:
        """Take over a settlement."""
        self._queue.put(entry)

    def _gather(self) -> None:
        """Fill the batch: wait for the first settlement, then a little for others."""
        if not self._batch:
            self._receive(0.0 if self.is_stopping else None)
            if self._batch and self._limit > 1 and not self.is_stopping:
                # Woken once, and not for each.
                self._linger(LINGER)
                if self._queue.qsize() >= MANY:
                    self._linger(LINGER_OF_MANY)
        self._is_urgent.clear()
        while len(self._batch) < LARGEST_FLUSH and self._receive(0.0):
            pass

    def _linger(self, seconds: float) -> None:
        self._is_urgent.wait(self._batch[0].since + seconds - time.monotonic())

    def _receive(self, patience: float | None) -> bool:
        """Move a settlement from the queue to the batch, and give whether there was one."""
        try:
            entry = self._queue.get(timeout=patience)
        except queue.Empty:
            return False
        if entry is not None:
            self._batch.append(entry)
        return entry is not None

    def _flush(self, entries: list[_Entry]) -> None:
        settlements, written = [entry.settlement for entry in entries], {*entries}
        began = time.monotonic()
        try:
            matched, endings = self._connector.run(
                lambda session: _written(session, self._jobs, settlements), bounded=self._bounded
            )
        except Exception:
            for entry in entries:
                entry.is_in_doubt = True
            raise
        self._tally.settled(time.monotonic() - began)
        self._batch = [entry for entry in self._batch if entry not in written]
        untold = {*self._holdings.settled(entry.holding for entry in entries)}
        for entry in entries:
            if entry.holding in untold:
                key = entry.holding.key
                self._tell(entry, endings.get(key), is_written=key in matched)
        self._on_settled(any(settlement.status is JobStatus.READY for settlement in settlements))

    def _tell(self, entry: _Entry, found: str | None, *, is_written: bool) -> None:
        holding, settlement = entry.holding, entry.settlement
        if is_written or (entry.is_in_doubt and found == settlement.status):
            self._reporter.settled(settlement, holding.ms)
        elif found == JobStatus.DONE:
            # The commit whose answer was lost had gone through: the handler's writes and the completion stand.
            self._reporter.tell("done", settlement.lease, holding.ms)
        else:
            holding.is_lost = True
            self._reporter.tell("lease_lost", settlement.lease, holding.ms, holding.silence)


def _plain(settlement: Settlement) -> Settlement:
    """Say the same in ASCII, and without the result: what a database that is not UTF-8 can store."""
    if settlement.result is not None:
        note = "the result was not stored: the database refuses it"
        return settlement._replace(result=None, error=note, problem=note)
    error, errors = settlement.error, settlement.errors
    return settlement._replace(
        error=error and in_ascii(error),
        errors=errors and [*errors[:-1], errors[-1] | {"error": in_ascii(errors[-1]["error"])}],
    )


def _written(
    session: Any, jobs: Jobs[Any], settlements: list[Settlement]
) -> tuple[frozenset[leases.Key], dict[leases.Key, str]]:
    """Settle, and look what the rows say whose fence did not hold."""
    matched = leases.settle(session, jobs.table, settlements)
    missed = [settlement.lease for settlement in settlements if settlement.lease.key not in matched]
    return matched, leases.endings(session, jobs.table, missed)
