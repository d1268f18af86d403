"""The heartbeat: it extends the leases of all that a worker holds, from a thread and a connection of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
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

RETRIES = 20
"""Statements of a beat for rows whose renewal was refused before."""


class Heartbeat:
    """Renews leases, and says which are lost.

    :ivar between_beats: held during each statement of a beat, from the choice of its jobs on
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
        self._refused: dict[tuple[int, int], None] = {}  # in order
        self.last_beat: float | None = None
        self.between_beats = threading.Lock()

    def tick(self) -> float:
        """Renew all that is held: in one statement, unless there is a row that the database refuses to change."""
        began = time.monotonic()
        held = {holding.key: holding for holding in self._holdings.to_renew()}
        self._refused = {key: None for key in self._refused if key in held}
        refused = [held.pop(key) for key in self._refused]
        self._renew_all([*held.values()])
        self._retry(refused)
        self.last_beat = time.monotonic()
        return max(0.0, began + self._lease.total_seconds() / BEATS_PER_LEASE - self.last_beat)

    def _renew_all(self, held: list[Holding]) -> None:
        """Renew in one statement; where that is refused, in halves, and halves of those, the larger ones first."""
        parts = deque([held])
        while parts:
            part = parts.popleft()
            if not self._is_renewed(part) and len(part) > 1:
                middle = len(part) // 2
                parts += part[:middle], part[middle:]

    def _retry(self, refused: list[Holding]) -> None:
        """Renew what was refused before, alone; as long as none is refused again, twice as many each time."""
        size = 1
        for _ in range(RETRIES):
            if not refused:
                return
            part, rest = refused[:size], refused[size:]
            if self._is_renewed(part):
                size, refused = 2 * size, rest
            else:
                size, refused = 1, rest if size == 1 else refused

    def _is_renewed(self, part: list[Holding]) -> bool:
        """Renew in one statement, and give whether the database has let it. A row that is refused alone is noted."""
        try:
            with self.between_beats:
                # Since it was chosen, a handler may have begun its snapshot.
                part = [holding for holding in part if not (holding.is_lost or holding.is_left_alone)]
                if part:
                    self.renew(part, self._lease)
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            if len(part) == 1:
                self._refused.pop(part[0].key, None)
                self._refused[part[0].key] = None  # behind the others
                self._refusals.tell(part[0].lease.id, error)
            return False
        for holding in part:
            self._refused.pop(holding.key, None)
        return True

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
