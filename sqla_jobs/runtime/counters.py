"""What a worker counts, for metrics: figures that only grow while it runs, and what it holds now."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field

from sqla_jobs.runtime.holdings import Holdings, Meter


@dataclass(frozen=True, slots=True)
class Span:
    """How often something was done, and the seconds that it took in all."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Counters:
    """What a worker has counted since its start.

    :ivar ends: ends of attempts by the event's name, as in `JobEvent`, and the job's type. A lease that the reaper
        found expired counts twice, as `lease_expired` and as what became of the job
    :ivar job_seconds: how long handlers ran, by type, of those attempts whose end was told
    :ivar claims: statements that claim, also those that found nothing
    :ivar claimed: jobs claimed
    :ivar settles: statements and commits that wrote how attempts ended
    :ivar outages: of the database
    :ivar running: handlers that run now
    :ivar held: claimed jobs whose end is not written: those that wait, run, or are being settled
    :ivar slots: handlers that may run at once
    """

    ends: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    job_seconds: dict[str, Span] = field(default_factory=dict[str, Span])
    claims: Span = Span()
    claimed: int = 0
    settles: Span = Span()
    outages: int = 0
    running: int = 0
    held: int = 0
    slots: int = 0


class _Ends:
    """Ends of one kind, of one type."""

    __slots__ = ("count", "ms", "timed")

    def __init__(self) -> None:
        self.count = self.timed = 0
        self.ms = 0.0


class Tally:
    """Keeps count. Its one lock is held for less than a microsecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: defaultdict[tuple[str, str], _Ends] = defaultdict(_Ends)
        self._claims, self._settles = Meter(), Meter()
        self._claimed = 0

    def ended(self, event: str, type_: str, ms: float | None) -> None:
        """Count the end of an attempt."""
        with self._lock:
            ends = self._ends[event, type_]
            ends.count += 1
            if ms is not None:
                ends.timed += 1
                ends.ms += ms

    def claimed(self, jobs: int, seconds: float) -> None:
        """Count a claim."""
        with self._lock:
            self._claims.add(seconds)
            self._claimed += jobs

    def settled(self, seconds: float) -> None:
        """Count a statement that settled."""
        with self._lock:
            self._settles.add(seconds)

    def counters(self, holdings: Holdings, *, outages: int) -> Counters:
        """Give all figures as they are now."""
        commits = holdings.commits
        with self._lock:
            return Counters(
                ends={key: ends.count for key, ends in self._ends.items()},
                job_seconds=self._job_seconds(),
                claims=Span(self._claims.count, self._claims.seconds),
                claimed=self._claimed,
                settles=Span(self._settles.count + commits.count, self._settles.seconds + commits.seconds),
                outages=outages,
                running=holdings.slots - holdings.free,
                held=holdings.held,
                slots=holdings.slots,
            )

    def _job_seconds(self) -> dict[str, Span]:
        spans: dict[str, Span] = {}
        for (_, type_), ends in self._ends.items():
            if ends.timed:
                span = spans.get(type_, Span())
                spans[type_] = Span(span.count + ends.timed, span.seconds + ends.ms / 1000)
        return spans
