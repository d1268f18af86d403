"""What a worker holds: its claimed jobs, and the slots that run them.

Shared by all threads of a worker. A job is held from its claim until the database says how it ended, so that the
heartbeat covers it while it waits, runs, and waits for its flush.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.registry import HandlerSpec

MOST_GIVEN_UP = 10_000
"""Claims that are remembered for it; their rows keep our name until a reaper comes."""


class Holding:
    """One claimed job in this process. Times are of the monotonic clock.

    :ivar key: names the claim: a job that was lost and claimed again is held twice for a while
    :ivar leased_until: by this clock; the database decides, this only tells the handler
    :ivar renewed: when the claim, or the latest beat that got through, was sent
    :ivar overdue_at: when its time-out ends, once it runs
    :ivar task: the asyncio task of an async handler
    :ivar is_settling: its end is being written: only that write can say whether the lease was lost
    :ivar is_committing: it is written by its own session's commit
    :ivar is_timed_out: its async handler was cancelled for its time-out
    :ivar is_overdue: its row was settled without it, and its handler still runs
    :ivar is_left_alone: no heartbeat: its handler's snapshot would make the settle fail
    """

    __slots__ = (
        "ended",
        "held_since",
        "is_committing",
        "is_left_alone",
        "is_lost",
        "is_overdue",
        "is_settling",
        "is_stopping",
        "is_timed_out",
        "is_told",
        "key",
        "lease",
        "leased_until",
        "overdue_at",
        "renewed",
        "spec",
        "started",
        "task",
        "timeout",
    )

    def __init__(self, lease: Lease, spec: HandlerSpec, leased_until: float) -> None:
        self.lease = lease
        self.key = lease.key
        self.spec = spec
        self.leased_until = leased_until
        self.held_since = self.renewed = time.monotonic()
        self.started: float | None = None
        self.ended: float | None = None
        self.overdue_at: float | None = None
        self.is_lost = False
        self.is_overdue = False
        self.is_settling = False
        self.is_committing = False
        self.is_stopping = False
        self.is_left_alone = False
        self.is_timed_out = False
        self.is_told = False
        self.timeout: timedelta | None = spec.timeout
        self.task: Any = None

    def begin(self) -> None:
        """Start the handler's time."""
        self.started = time.monotonic()
        if self.timeout is not None:
            self.overdue_at = self.started + self.timeout.total_seconds()

    @property
    def is_cancelled(self) -> bool:
        """Whether the handler had better stop."""
        return self.is_lost or self.is_overdue or self.is_stopping or time.monotonic() > self.leased_until

    @property
    def silence(self) -> str | None:
        """Why its lease ran out, as far as this process can tell; None if it did not, by this clock."""
        now = time.monotonic()
        return f"its heartbeat was silent for {now - self.renewed:.1f} s" if now > self.leased_until else None

    @property
    def ms(self) -> float | None:
        """How long its handler ran, or has run so far."""
        if self.started is None:
            return None
        return ((self.ended if self.ended is not None else time.monotonic()) - self.started) * 1000


class Meter:
    """Counts, and adds up seconds."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one. The caller sees to it that nobody else does at the same time."""
        self.count += 1
        self.seconds += seconds


class Holdings:
    """All holdings of a worker, and its slots.

    :ivar commits: of handlers' sessions, each with a completion in it
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.commits = Meter()
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], Holding] = {}
        self._waiting: deque[Holding] = deque()
        self._running: dict[tuple[int, int], Holding] = {}
        self._finished = 0
        self._given_up: deque[tuple[int, int]] = deque(maxlen=MOST_GIVEN_UP)
        self._is_closed = False
        self._changed = threading.Condition(self._lock)

    def offer(self, claimed: Iterable[Holding]) -> list[Holding]:
        """Hold what was claimed, and give those that a free slot can start now. The others wait for `next_after`."""
        with self._lock:
            for holding in claimed:
                self._held[holding.key] = holding
                self._waiting.append(holding)
            starting: list[Holding] = []
            while not self._is_closed and self._waiting and len(self._running) < self.slots:
                starting.append(self._start())
            return starting

    def next_after(self, holding: Holding) -> Holding | None:
        """Free the slot of a handler that has ended, and give the job that takes it over, if one waits."""
        with self._lock:
            self._running.pop(holding.key, None)
            self._finished += 1
            starting = self._start() if self._waiting and not self._is_closed else None
            if starting is None or holding.spec.is_async:
                self._changed.notify_all()
            return starting

    def close(self) -> None:
        """Start no more jobs: those that wait, and those offered from now on, are for `withdraw`."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()

    def _start(self) -> Holding:
        holding = self._waiting.popleft()
        self._running[holding.key] = holding
        return holding

    def settled(self, holdings: Iterable[Holding]) -> list[Holding]:
        """Forget jobs: the database has said how they ended. Give those whose end nobody has told yet."""
        untold: list[Holding] = []
        with self._lock:
            for holding in holdings:
                self._held.pop(holding.key, None)
                if holding.is_committing and holding.ended is not None:
                    self.commits.add(time.monotonic() - holding.ended)
                if not holding.is_told:
                    holding.is_told = True
                    untold.append(holding)
            self._changed.notify_all()
        return untold

    def give_up(self, holding: Holding) -> None:
        """Forget a job whose end can't be written. It is no stray, to be run again for free: its lease runs out."""
        self.settled([holding])
        with self._lock:
            self._given_up.append(holding.key)

    def begin_settling(self, holding: Holding) -> bool:
        """Give True to the first who means to write how this claim ended; the others write nothing."""
        with self._lock:
            if holding.is_settling:
                return False
            holding.is_settling = True
            holding.ended = time.monotonic()
            return True

    def tell_once(self, holding: Holding) -> bool:
        """Give True to the first who reports the end of this claim."""
        with self._lock:
            is_first, holding.is_told = not holding.is_told, True
            return is_first

    def withdraw(self, *, older_than: timedelta = timedelta(0)) -> list[Holding]:
        """Take back jobs that wait, and have waited longer than that."""
        limit = time.monotonic() - older_than.total_seconds()
        with self._lock:
            old = [holding for holding in self._waiting if holding.held_since <= limit]
            self._waiting = deque(holding for holding in self._waiting if holding.held_since > limit)
            return old

    def to_renew(self) -> list[Holding]:
        """Give the jobs whose lease a heartbeat shall extend."""
        with self._lock:
            return [holding for holding in self._held.values() if not (holding.is_lost or holding.is_left_alone)]

    def running(self) -> list[Holding]:
        """Give the jobs whose handlers run."""
        with self._lock:
            return list(self._running.values())

    def keys(self) -> frozenset[tuple[int, int]]:
        """Name all claims that are no strays."""
        with self._lock:
            return frozenset((*self._held, *self._given_up))

    @property
    def free(self) -> int:
        """Slots with no handler in them."""
        return self.slots - len(self._running)

    @property
    def waiting(self) -> int:
        """Claimed jobs without a slot."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Claimed jobs whose row doesn't say yet how they ended."""
        return len(self._held)

    @property
    def unsettled(self) -> int:
        """Jobs whose handler has ended and whose row doesn't say so yet."""
        return len(self._held) - len(self._running) - len(self._waiting)

    @property
    def finished(self) -> int:
        """Handlers that have ended since the worker started."""
        return self._finished

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._held and not self._running

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait until nothing is held, at most that long, or until `close`; give whether nothing is."""
        with self._lock:
            self._changed.wait_for(lambda: self.is_empty or self._is_closed, timeout=seconds)
            return self.is_empty

    def wait_until_idle(self, seconds: float, *, is_async: bool = False) -> bool:
        """Wait until no handler runs (*is_async*: no async one), at most that long; give whether that is so."""

        def is_idle() -> bool:
            return not any(holding.spec.is_async or not is_async for holding in self._running.values())

        with self._lock:
            return self._changed.wait_for(is_idle, timeout=max(0.0, seconds))

    def wait_until_settled(self, seconds: float, *, and_running: bool = False) -> bool:
        """Wait until every end that is known is written (*and_running*: of all that is held), at most that long."""

        def is_settled() -> bool:
            return not any(and_running or holding.is_settling for holding in self._held.values())

        with self._lock:
            return self._changed.wait_for(is_settled, timeout=max(0.0, seconds))
