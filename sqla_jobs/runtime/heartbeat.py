"""The heartbeat: it extends the leases of all that a worker holds, from a thread and a connection of its own."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError

from sqla_jobs.operations import leases
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.runtime.holdings import Holding, Holdings
from sqla_jobs.runtime.refusals import Refusals, is_refusal
from sqla_jobs.runtime.reporting import Reporter

BEATS_PER_LEASE = 3
"""Two beats may be missed."""


class Heartbeat:
    """Renews leases, and says which are lost.

    :ivar between_beats: held during a beat, from its choice of jobs on
    """

    def __init__(
        self, jobs: Jobs[Any], connector: Connector, holdings: Holdings, reporter: Reporter, *, lease: timedelta
    ) -> None:
        self._jobs = jobs
        self._connector = connector
        self._holdings = holdings
        self._reporter = reporter
        self._lease = lease
        self._refusals = Refusals(connector, "renewed", redact=jobs.redact)
        self.last_beat: float | None = None
        self.between_beats = threading.Lock()

    def tick(self) -> float:
        """Renew all that is held, in one statement."""
        began = time.monotonic()
        with self.between_beats:
            held = self._holdings.to_renew()
            if held:
                self._renew_all(held)
        self.last_beat = time.monotonic()
        return max(0.0, began + self._lease.total_seconds() / BEATS_PER_LEASE - self.last_beat)

    def _renew_all(self, held: list[Holding]) -> None:
        """Renew in one statement; where the database refuses to change some row, one by one."""
        try:
            self.renew(held, self._lease)
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            if len(held) == 1:
                self._refusals.tell(held[0].lease.id, error)
                return
            for holding in held:
                self._renew_all([holding])

    def renew(self, held: list[Holding], lease: timedelta) -> leases.Renewal:
        """Extend the leases of *held* to *lease* from now, and mark those that somebody else has."""
        sent = time.monotonic()
        renewal = self._connector.run(
            lambda session: leases.renew(session, self._jobs.table, [holding.lease for holding in held], lease=lease),
            bounded=self._connector.bounded,
        )
        for holding in held:
            if holding.key in renewal.renewed:
                holding.renewed, holding.leased_until = sent, sent + lease.total_seconds()
            elif holding.key in renewal.lost:
                self._lost(holding)
        return renewal

    def _lost(self, holding: Holding) -> None:
        # A row that its own settle has just changed looks lost, too. That settle finds out by itself.
        if not holding.is_settling and self._holdings.tell_once(holding):
            holding.is_lost = True
            self._reporter.tell("lease_lost", holding.lease, holding.ms, holding.silence)
