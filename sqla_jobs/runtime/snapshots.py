"""Above READ COMMITTED a heartbeat would make a handler's own settle fail: its row has changed since the snapshot.

So before such a session is handed out, its lease is renewed once for as long as the handler may take, and then the row
is left alone until the transaction has ended. A handler may also raise the level of its own session, as its first act:
then the same is done when its transaction begins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from sqla_jobs.rules.registry import SessionKind
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.runtime.heartbeat import Heartbeat
from sqla_jobs.runtime.holdings import Holding
from sqla_jobs.runtime.services import NEVER

log = logging.getLogger("sqla_jobs.worker")

DEFAULT_TIMEOUT = timedelta(minutes=10)
"""For handlers with a session and no timeout: their lease must end at some time."""

_SNAPSHOT_LEVELS = frozenset({"REPEATABLE READ", "SERIALIZABLE"})

_WHEN_RAISED = "sqla_jobs.when_raised"
"""In the `info` of a handler's session: what to do before a transaction of a raised level begins."""


class LeaseLost(Exception):
    """Somebody else has the job, or it was settled: write nothing."""


class LeaseUnknown(Exception):
    """The row is locked, so its lease could not be renewed for a whole run."""


def watch() -> None:
    """Look at the isolation level of each transaction that a session begins. Again is the same as once."""
    event.listen(Session, "after_begin", _begun)


def when_raised(session: Session, do: Callable[[], None]) -> None:
    """Do something each time before a transaction of *session* begins whose isolation level was raised for it."""
    session.info[_WHEN_RAISED] = do


def _begun(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    # Asks nobody: the option is there if it was given to this connection. Nothing has been said yet in the transaction.
    level = connection.get_execution_options().get("isolation_level")
    if level is not None and str(level).replace("_", " ") in _SNAPSHOT_LEVELS and _WHEN_RAISED in session.info:
        session.info[_WHEN_RAISED]()


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
        self._unbounded_told: set[str] = set()

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
        if holding.spec.session is not SessionKind.NONE and self.are_taken:
            self._extend(holding)

    def raised(self, holding: Holding) -> None:
        """Do the same, just before the snapshot, for a handler that has raised the level of its own session.

        :raises LeaseLost: the row is no more ours
        :raises LeaseUnknown: the row is locked
        """
        if self._probe is None or holding.is_left_alone:
            return
        if holding.timeout is None and holding.spec.name not in self._unbounded_told:
            self._unbounded_told.add(holding.spec.name)
            log.warning(
                "handler %s raises its session's isolation level, so it needs a timeout: it got %s",
                holding.spec.name,
                DEFAULT_TIMEOUT,
            )
        self._extend(holding)

    def _extend(self, holding: Holding) -> None:
        if holding.timeout is None:
            holding.timeout = DEFAULT_TIMEOUT
            holding.overdue_at = time.monotonic() + DEFAULT_TIMEOUT.total_seconds()
        with self._between_beats:
            # No beat from here on: one that is under way could still come after the snapshot.
            holding.is_left_alone = True
        renewal = self._heartbeat.renew([holding], holding.timeout + self._lease)
        if holding.key in renewal.lost:
            raise LeaseLost
        if holding.key in renewal.unknown:
            raise LeaseUnknown
