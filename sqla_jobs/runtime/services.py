"""One anatomy for what a worker does beside its handlers: a tick, and a wait until the next is due."""

from __future__ import annotations

import contextvars
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.errors import UnknownHandler
from sqla_jobs.operations import leases
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.failure import mask, storable
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.retry import Backoff
from sqla_jobs.rules.settlement import DEFAULT_BACKOFF, Settlement, Vanished, decide
from sqla_jobs.runtime.connections import Connector, is_database_trouble
from sqla_jobs.runtime.refusals import Batch, Refusals
from sqla_jobs.runtime.reporting import Reporter
from sqla_jobs.schema.statements import current_time
from sqla_jobs.schema.trouble import is_missing_table

log = logging.getLogger("sqla_jobs.worker")

OUTAGE_BACKOFF = Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=3), jitter=0.5)

PARTS_NOTICE = 5.0
"""Seconds, beyond a beat, in which all parts of a worker have noticed an outage."""

REAP_LIMIT = 100

LATENESS = 1.0
"""Seconds that a busy machine may come late, beyond two beats, before a reaper takes it for a leap of time."""

NEVER = 10.0**6
"""Seconds; only a ring ends such a wait."""


class Alarm:
    """What a thread waits on: a time, or somebody who rings. Ringing twice is ringing once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        """End the wait, or the next one."""
        self._event.set()

    def wait(self, seconds: float | None) -> bool:
        """Wait, and give whether somebody rang."""
        has_rung = self._event.wait(seconds)
        self._event.clear()
        return has_rung


class Outage:
    """Whether the database is away, as all parts of a worker see it together: one warning for all of them.

    :param beat: between two heartbeats. Tries come twice as often, so that after an outage live workers have renewed
        before a reaper, which waits one beat, looks at their leases
    :ivar count: outages so far
    """

    def __init__(self, beat: timedelta) -> None:
        self._longest_wait = beat.total_seconds() / 2
        self._quiet = beat.total_seconds() + PARTS_NOTICE
        self.count = 0
        self._lock = threading.Lock()
        self._failures: dict[str, int] = {}
        self._latest = -math.inf

    def begun(self, part: str, error: BaseException) -> float:
        """Take note of a failure, and give the seconds to wait before the next try."""
        with self._lock:
            # Each part notices by itself, some only at their next beat: that is the same outage.
            is_first = not self._failures and time.monotonic() > self._latest + self._quiet
            self._latest = time.monotonic()
            self.count += is_first
            failures = self._failures[part] = self._failures.get(part, 0) + 1
        if is_first:
            log.warning("the database does not serve the %s: %s; %s", part, _first_line(error), _advice(error))
        else:
            log.debug("the database does not serve the %s: %s", part, _first_line(error))
        return min(self._longest_wait, OUTAGE_BACKOFF.delay(failures, random.random()).total_seconds())

    def ended(self, part: str) -> bool:
        """Take note that *part* is served, and give whether it was not before."""
        if part not in self._failures:
            return False
        with self._lock:
            del self._failures[part]
            is_over = not self._failures
        if is_over:
            log.info("the database is back")
        return True


def _advice(error: BaseException) -> str:
    if isinstance(error, DBAPIError) and error.orig is not None and is_missing_table(error.orig):
        return "waiting for its tables: alembic upgrade head, after alembic revision --autogenerate if none has them"
    return "trying again. If it lasts: is it up, and has it the tables?"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {mask(storable(str(error))).partition(chr(10))[0]}"


class Service:
    """A thread that ticks.

    A tick that fails for the database's sake is tried again, with backoff. Any other error is a fault of ours, and is
    given to *on_fault*, which ends the worker: it must not go on without this part.

    :param tick: does the work once, and gives the seconds until it wants to be called again
    """

    def __init__(
        self, name: str, tick: Callable[[], float], *, outage: Outage, on_fault: Callable[[str, BaseException], None]
    ) -> None:
        self.name = name
        self.alarm = Alarm()
        self._tick = tick
        self._outage = outage
        self._on_fault = on_fault
        self._is_stopping = self._has_ended = False
        self._begun = self._ended = 0
        self._has_ticked = threading.Condition()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=f"sqla_jobs {name}", daemon=True)

    def start(self) -> None:
        """Start to tick."""
        self._thread.start()

    def tick_now(self, seconds: float) -> bool:
        """Have it tick soon, and give whether it has: False if that fails or takes longer."""
        with self._has_ticked:
            wanted = self._begun + 1
            self.alarm.ring()
            self._has_ticked.wait_for(lambda: self._ended >= wanted or self._has_ended, seconds)
            return self._ended >= wanted

    def stop(self) -> None:
        """Tick no more; `join` waits for the running tick."""
        self._is_stopping = True
        self.alarm.ring()

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end, at most that long; give whether it has ended."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            with self._has_ticked:
                self._has_ended = True
                self._has_ticked.notify_all()

    def _loop(self) -> None:
        while not self._is_stopping:
            try:
                with self._has_ticked:
                    self._begun += 1
                wait = self._tick()
                self._outage.ended(self.name)
                with self._has_ticked:
                    self._ended = self._begun
                    self._has_ticked.notify_all()
            except Exception as error:  # noqa: BLE001  # recorded: as an outage, or as the fault that ends the worker
                if not is_database_trouble(error):
                    self._on_fault(self.name, error)
                    return
                wait = self._outage.begun(self.name, error)
            if not self._is_stopping:
                self.alarm.wait(wait)


class Reaper:
    """Gives jobs back whose worker has vanished."""

    def __init__(self, jobs: Jobs[Any], connector: Connector, reporter: Reporter, *, beat: timedelta) -> None:
        self._jobs = jobs
        self._connector = connector
        self._refusals = Refusals(connector, "reaped", redact=jobs.redact)
        self._reporter = reporter
        self._beat = beat.total_seconds()
        self._is_warned_off = True
        self._seen: datetime | None = None

    def tick(self) -> float:
        """Reap what has expired; at the start, after an outage or a leap of time, let live workers renew first."""
        if self._has_leapt():
            return self._beat
        if self._is_warned_off:
            # With locks, as a reap has them: a server that is read-only serves nobody's heartbeat yet.
            self._connector.run(lambda session: leases.expired(session, self._jobs.table, limit=1))
            self._is_warned_off = False
            return self._beat
        try:
            self.reap()
            while self.has_more:
                self.reap()
        except Exception:
            self._is_warned_off = True
            raise
        return self._beat * (0.9 + 0.2 * random.random())

    def _has_leapt(self) -> bool:
        """Tell whether far more time has passed than between two looks, by the clock that leases run out by.

        Then the server's clock was set, or the server or this host stood still: heartbeats did not get through, either.
        """
        now = self._connector.read(lambda session: session.scalars(current_time(self._jobs.table)).one())
        before, self._seen = self._seen, now
        if before is None or now - before < timedelta(seconds=2 * self._beat + LATENESS):
            return False
        # Once: a machine on which all comes late has to reap, too.
        self._seen = None
        return True

    @property
    def has_more(self) -> bool:
        """Whether there may be more to reap, after `reap`."""
        return self._refusals.has_more

    def reap(self) -> list[Settlement]:
        """Reap one batch now, past rows that the database refuses to change."""
        settlements = self._refusals.carry_out(self._reap, REAP_LIMIT, bounded=self._connector.bounded)
        for settlement in settlements:
            self._reporter.settled(settlement, None)
        return settlements

    def _reap(self, batch: Batch, session: Session) -> list[Settlement]:
        def judge(lease: Lease) -> Settlement:
            batch.ids.append(lease.id)
            return self.judge(lease)

        return leases.reap(session, self._jobs.table, judge, limit=batch.limit, but=batch.but)

    def judge(self, lease: Lease) -> Settlement:
        """Decide on a job whose lease is over."""
        try:
            backoff = self._jobs.handlers.find(lease.type).backoff
        except UnknownHandler:
            backoff = DEFAULT_BACKOFF
        error = f"the worker {lease.locked_by} vanished: the lease of attempt {lease.attempt} ran out"
        return decide(lease, Vanished(error), backoff=backoff, draw=random.random())
