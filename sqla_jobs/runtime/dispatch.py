"""The dispatcher: claims what the worker can start, and waits for the next due time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.operations import leases
from sqla_jobs.operations.columns import check_columns
from sqla_jobs.operations.leases import Demand
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.pace import LARGEST_HOLD, claim_limit, hold_of_last, jobs_ahead, poll_wait
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.runtime.counters import Tally
from sqla_jobs.runtime.heartbeat import BEATS_PER_LEASE
from sqla_jobs.runtime.holdings import Holding, Holdings
from sqla_jobs.runtime.refusals import Batch, Refusals, is_refusal
from sqla_jobs.runtime.services import Alarm


@dataclass(frozen=True, slots=True)
class Look:
    """What a look for due jobs found, when there was nothing left to claim.

    :ivar due_in: seconds until the next job that this worker takes is due; None if there is none
    :ivar is_idle: whether the worker held nothing when it looked
    """

    number: int
    due_in: float | None
    is_idle: bool


class Dispatcher:
    """Claims jobs and hands them to *start*; what was claimed without our hearing of it goes to *give_back*."""

    def __init__(
        self,
        jobs: Jobs[Any],
        connector: Connector,
        holdings: Holdings,
        tally: Tally,
        *,
        queues: tuple[str, ...] | None,
        locked_by: str,
        lease: timedelta,
        poll_interval: timedelta,
        start: Callable[[Holding], None],
        give_back: Callable[[Holding], None],
        is_listening: Callable[[], bool],
    ) -> None:
        self.alarm = Alarm()
        self.is_draining = False
        self._jobs = jobs
        self._connector = connector
        self._holdings = holdings
        self._tally = tally
        self._queues = queues
        self._locked_by = locked_by
        self._lease = lease
        self._poll_interval = poll_interval
        self._refusals = Refusals(connector, "claimed", redact=jobs.redact)
        self._start = start
        self._give_back = give_back
        self._is_listening = is_listening
        self._pace = _Pace(holdings)
        self._strays_at = 0.0
        self._empty_looks = 0
        self._has_news = True
        self._is_hungry = False
        self._looked = threading.Condition()
        self._looks_begun = 0
        self._look = Look(0, None, is_idle=False)
        self._is_checked = False

    def wake(self, queue: str | None = None) -> None:
        """There may be work in *queue* (None: in any)."""
        if queue is None or self._queues is None or queue in self._queues:
            self._has_news = True
            self.alarm.ring()

    def slot_is_free(self) -> None:
        """Claim for the slot of a handler that has ended, if there was more to claim."""
        if self._is_hungry and self._holdings.waiting <= self._pace.ahead // 2:
            self._is_hungry = False  # once is enough
            self.wake()

    def look_now(self, seconds: float) -> Look | None:
        """Look for due jobs soon, and give what was found; None if it takes longer."""
        # A look that is under way may have read what was true before the call.
        wanted = self._looks_begun + 1
        self.wake()
        with self._looked:
            self._looked.wait_for(lambda: self._look.number >= wanted or self.is_draining, timeout=seconds)
        return self._look if self._look.number >= wanted else None

    def drain(self) -> None:
        """Claim no more."""
        self.is_draining = True
        with self._looked:
            self._looked.notify_all()

    def tick(self) -> float:
        """Claim what can be started soon, and give the seconds until the next look."""
        if self.is_draining:
            return self._poll_interval.total_seconds()
        if not self._is_checked:
            self._connector.read(lambda session: check_columns(session, self._jobs))
            self._is_checked = True
        self._look_for_strays()
        self._is_hungry = True  # before the look at the slots: one may become free meanwhile
        limit = self._limit()
        if limit == 0:
            return self._poll_interval.total_seconds()
        self._is_hungry = False
        has_news, self._has_news = self._has_news, False
        if self._empty_looks and not has_news and not self._is_due():
            return self._wait()
        claimed = self._claim(limit)
        if claimed == limit or self._refusals.has_more:
            self._is_hungry = True
            return 0.0
        self._empty_looks = 0 if claimed else self._empty_looks
        self._is_due()
        return self._wait()

    def _limit(self) -> int:
        return claim_limit(
            free=self._holdings.free,
            waiting=self._holdings.waiting,
            unsettled=self._holdings.unsettled,
            ahead=self._pace.measure(),
        )

    def _claim(self, limit: int) -> int:
        sent = time.monotonic()
        claimed = self._claimed(limit)
        self._tally.claimed(len(claimed), time.monotonic() - sent)
        kept = self._without_risk(claimed, sent)
        for holding in self._holdings.offer([self._held(lease, sent) for lease in kept]):
            self._start(holding)
        if self.is_draining:
            # The stop came while the claim was under way.
            for holding in self._holdings.withdraw():
                self._give_back(holding)
        return len(claimed)

    def _claimed(self, limit: int) -> list[Lease]:
        """Claim: in one statement, unless there is a row that the database refuses to change."""
        mark: dict[str, Any] = {"locked_by": self._locked_by, "lease": self._lease}
        if not self._refusals.known:
            self._refusals.has_more = False
            try:
                return self._connector.run(
                    lambda session: leases.claim(session, self._jobs.table, self._demand, limit=limit, **mark)
                )
            except DBAPIError as error:
                if not is_refusal(error):
                    raise

        def claim(batch: Batch, session: Session) -> list[Lease]:
            batch.ids.extend(leases.due(session, self._jobs.table, self._demand, limit=batch.limit, but=batch.but))
            return leases.claim_these(session, self._jobs.table, batch.ids, **mark)

        return self._refusals.carry_out(claim, limit)

    def _without_risk(self, claimed: list[Lease], sent: float) -> list[Lease]:
        """Give back jobs at their last attempt that would have to wait here, where a crash would be the end of them."""
        last = [lease for lease in claimed if lease.is_last]
        slots = self._holdings.slots
        self._pace.most = hold_of_last(slots=slots, claimed=len(claimed), last=len(last))
        risky = last[self._holdings.free + slots :]
        for lease in risky:
            self._give_back(self._held(lease, sent))
        given_back = {lease.id for lease in risky}
        return [lease for lease in claimed if lease.id not in given_back] if risky else claimed

    def _held(self, lease: Lease, sent: float) -> Holding:
        holding = Holding(lease, self._jobs.handlers.find(lease.type), sent + self._lease.total_seconds())
        holding.renewed = sent
        return holding

    def _is_due(self) -> bool:
        """Look for the next due time; give whether it has come."""
        self._looks_begun += 1
        is_idle = self._holdings.is_empty
        but = self._refusals.known
        due_in = self._connector.read(
            lambda session: leases.seconds_until_due(session, self._jobs.table, self._demand, but=but)
        )
        self._empty_looks += 1
        with self._looked:
            self._look = Look(self._looks_begun, due_in, is_idle)
            self._looked.notify_all()
        return due_in is not None and due_in <= 0

    def _wait(self) -> float:
        wait = poll_wait(
            self._poll_interval,
            empty_looks=self._empty_looks,
            is_listening=self._is_listening(),
            draw=random.random(),
        )
        due_in = self._look.due_in
        # Due and not claimed: somebody has it locked. That is no reason to look more often.
        return min(wait, due_in) if due_in is not None and due_in > 0 else wait

    def _look_for_strays(self) -> None:
        """Give back running rows that bear our name and that we don't hold: claims whose answer was lost.

        In this thread, which makes the claims: a claim that is under way can't be taken for one.
        """
        if time.monotonic() < self._strays_at:
            return
        held = self._holdings.keys()
        strays = self._connector.read(
            lambda session: leases.strays(session, self._jobs.table, locked_by=self._locked_by, held=held)
        )
        known = self._jobs.handlers.names
        for lease in strays:
            if lease.type in known:  # else somebody has renamed it: the reaper gives it back, when its lease is over
                self._give_back(self._held(lease, time.monotonic()))
        self._strays_at = time.monotonic() + self._lease.total_seconds() / BEATS_PER_LEASE

    @property
    def _demand(self) -> Demand:
        return Demand(self._jobs.handlers.names, self._queues)


class _Pace:
    """How fast handlers end."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._since = time.monotonic()
        self._finished = 0
        self._rate = 0.0
        self.ahead = 0
        self.most = LARGEST_HOLD

    def measure(self) -> int:
        """Give how many jobs to hold ahead of the slots; measured at most every hundredth of a second."""
        elapsed = time.monotonic() - self._since
        if elapsed >= 0.01:
            finished = self._holdings.finished
            self._rate = max((finished - self._finished) / elapsed, self._rate / 2)
            self.ahead = min(self.most, jobs_ahead(self._rate))
            self._since, self._finished = time.monotonic(), finished
        return self.ahead
