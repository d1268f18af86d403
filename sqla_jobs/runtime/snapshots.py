"""Above READ COMMITTED a heartbeat would make a handler's own settle fail: its row has changed since the snapshot.

So before such a session is handed out, its lease is renewed once for as long as the handler may take, and then the row
is left alone until the transaction has ended.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from sqla_jobs.rules.registry import SessionKind
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.runtime.heartbeat import Heartbeat
from sqla_jobs.runtime.holdings import Holding
from sqla_jobs.runtime.services import NEVER

log = logging.getLogger("sqla_jobs.worker")

DEFAULT_TIMEOUT = timedelta(minutes=10)
"""For handlers with a session and no timeout: their lease must end at some time."""

_SNAPSHOT_LEVELS = frozenset({"REPEATABLE READ", "SERIALIZABLE"})


class LeaseLost(Exception):
    """Somebody else has the job, or it was settled: write nothing."""


class LeaseUnknown(Exception):
    """The row is locked, so its lease could not be renewed for a whole run."""


class Snapshots:
    """Knows whether the app's sessions take snapshots, and prepares leases for them.

    :param probe: a connection with the isolation level that the app's sessions have; None where no row can be locked
    :param heartbeat: one of its own, for renewals out of turn
    :param between_beats: the lock of the worker's heartbeat
    :param unbounded: the handlers with a session and no timeout
    """

    def __init__(
        self,
        probe: Connector | None,
        heartbeat: Heartbeat,
        *,
        lease: timedelta,
        between_beats: threading.Lock,
        unbounded: list[str],
    ) -> None:
        self._probe = probe
        self._heartbeat = heartbeat
        self._between_beats = between_beats
        self._lease = lease
        self._lock = threading.Lock()
        self._level: str | None = None
        self._unbounded = unbounded

    @property
    def are_taken(self) -> bool:
        """Whether the app's sessions are REPEATABLE READ or SERIALIZABLE. Asks the database once."""
        if self._probe is None:
            return False
        with self._lock:
            if self._level is None:
                self._level = self._probe.isolation_level()
                self._probe.close()
        return self._level in _SNAPSHOT_LEVELS

    @property
    def may_be_taken(self) -> bool:
        """Whether they are, or nobody knows yet; this asks nobody."""
        return self._probe is not None and (self._level is None or self._level in _SNAPSHOT_LEVELS)

    def tick(self) -> float:
        """Warn once, at the start, that handlers without a timeout get one."""
        if self.are_taken and self._unbounded:
            log.warning(
                "sessions are %s, so a handler with a session needs a timeout: %s got %s",
                self._level,
                ", ".join(self._unbounded),
                DEFAULT_TIMEOUT,
            )
        return NEVER

    def prepare(self, holding: Holding) -> None:
        """Make the lease last for the handler's whole run, if its session takes a snapshot.

        :raises LeaseLost: the row is no more ours
        :raises LeaseUnknown: the row is locked
        """
        if holding.spec.session is SessionKind.NONE or not self.are_taken:
            return
        if holding.timeout is None:
            holding.timeout = DEFAULT_TIMEOUT
            holding.begin()
        with self._between_beats:
            # No beat from here on: one that is under way could still come after the snapshot.
            holding.is_left_alone = True
        renewal = self._heartbeat.renew([holding], holding.timeout + self._lease)
        if holding.key in renewal.lost:
            raise LeaseLost
        if holding.key in renewal.unknown:
            raise LeaseUnknown
