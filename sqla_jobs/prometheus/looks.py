"""Looks at the job table: few, one after the other, and none that a scrape has to wait long for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy.orm import Session

from sqla_jobs.operations.enqueue import capabilities_of
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stats import Stats, stats
from sqla_jobs.rules.failure import reason
from sqla_jobs.rules.registry import check_duration
from sqla_jobs.runtime.connections import Connector

log = logging.getLogger("sqla_jobs.prometheus")

AGAIN: Final = 1.0
"""Seconds after a look that failed in which no other is made."""

GIVEN_UP: Final = 60.0
"""Seconds after which a look that hangs is left behind, with its connection: the host at its other end may be gone."""

_LONGEST: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look has seen, and the seconds that it took."""

    stats: Stats
    seconds: float


class Look:
    """One look, in a thread of its own.

    :ivar sight: None before the end, and if it failed
    :ivar error: why it failed
    """

    def __init__(self, connector: Connector, ask: Callable[[Session], Stats]) -> None:
        self._connector = connector
        self._ask = ask
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._is_left = False
        self._has_ended = threading.Event()
        self.sight: Sight | None = None
        self.error: BaseException | None = None
        # A daemon: one that hangs holds up no exit.
        threading.Thread(target=self._run, name="sqla_jobs metrics", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether it waits no more."""
        return self._has_ended.is_set()

    @property
    def age(self) -> float:
        """Give the seconds since it began: what it has seen is no older."""
        return time.monotonic() - self._begun

    def wait(self, within: float) -> bool:
        """Wait until it has ended, at most until *within* seconds after it began; give whether it has."""
        return self._has_ended.wait(max(0.0, within - self.age))

    def leave(self) -> None:
        """Close its connection, as soon as it has ended: one that hangs can't be closed."""
        with self._lock:
            self._is_left = True
            has_ended = self.has_ended
        if has_ended:
            self._connector.close()

    def _run(self) -> None:
        try:
            self.sight = Sight(self._connector.read(self._ask), self.age)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is recorded; a scrape must not wait for it
            self.error = error
        with self._lock:
            self._has_ended.set()
            is_left = self._is_left
        if is_left:
            self._connector.close()


class Looks:
    """Keeps the latest look at the table of a registry.

    :param connect: makes a connection of its own
    :param max_age: how old a figure may be
    :param within: how long a scrape waits for one
    :raises InvalidOption: either is out of range
    """

    def __init__(
        self, jobs: Jobs[Any], connect: Callable[[], Connector], *, max_age: timedelta, within: timedelta
    ) -> None:
        self._jobs = jobs
        self._connect = connect
        self._max_age = check_duration("max_age", max_age, most=_LONGEST).total_seconds()
        self._within = check_duration("within", within, most=_LONGEST).total_seconds()
        self._lock = threading.Lock()
        self._connector: Connector | None = None
        self._latest: Look | None = None
        self._left_behind: Look | None = None
        self._is_down = False

    def latest(self) -> Sight | None:
        """Give what the latest look has seen; None if the database has not answered in time.

        Begins one if the latest is too old; whoever asks meanwhile waits for the same one.
        """
        with self._lock:
            look = self._latest
            if look is None or self._is_over(look):
                self._connector = self._connector or self._connect()
                look = self._latest = Look(self._connector, self._ask)
        sight = look.sight if look.wait(self._within) else None
        self._report(look, is_down=sight is None)
        return sight

    def close(self) -> None:
        """Close the connection, as soon as no look hangs on it."""
        with self._lock:
            look, self._latest, self._connector = self._latest, None, None
        if look is not None:
            look.leave()

    def _is_over(self, look: Look) -> bool:
        if look.has_ended:
            return look.age >= (self._max_age if look.sight is not None else min(AGAIN, self._max_age))
        if look.age < GIVEN_UP or (self._left_behind is not None and not self._left_behind.has_ended):
            return False
        look.leave()
        self._left_behind, self._connector = look, None
        return True

    def _ask(self, session: Session) -> Stats:
        bounded = capabilities_of(session, self._jobs).bounded
        if bounded is not None:
            # A migration that has the table locked is an answer, too; nobody shall queue behind its lock because of us.
            session.execute(bounded)
        return stats(session, self._jobs)

    def _report(self, look: Look, *, is_down: bool) -> None:
        """Log once that the database is away, and once that it is back."""
        with self._lock:
            was_down, self._is_down = self._is_down, is_down
        if is_down and not was_down:
            said = reason(look.error).partition("\n")[0] if look.error is not None else "it does not answer"
            log.warning("no figures of registry %r from the database: %s", self._jobs.name, said)
        elif was_down and not is_down:
            log.info("figures of registry %r come from the database again", self._jobs.name)
