"""The metrics: name, kind, labels and meaning of each, and how it is read off. docs/operations.md has the same table.

All have the label `registry`, too. Names and units follow Prometheus' conventions: seconds, and `_total` for what only
grows while a process lives. What is read off the table is a gauge, since rows come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, Literal, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from sqla_jobs.operations.stats import LaneStats, ScheduleStats, Stats
from sqla_jobs.rules.failure import storable
from sqla_jobs.runtime.counters import Counters, Span

T = TypeVar("T")

Sample = tuple[tuple[str, ...], float | Span]
"""The values of the labels, and the figure."""


@dataclass(frozen=True, slots=True)
class Figure(Generic[T]):
    """One metric.

    :ivar name: as a query names it; of a summary without `_count` and `_sum`
    :ivar labels: those beside `registry`
    :ivar samples: reads the metric off what was seen
    """

    name: str
    kind: Literal["counter", "gauge", "summary"]
    says: str
    labels: tuple[str, ...]
    samples: Callable[[T], Iterable[Sample]]

    def family(self, registry: str, seen: T | None = None) -> Metric:
        """Give the metric with its samples; with none if nothing was seen."""
        labels = ("registry", *self.labels)
        samples = () if seen is None else self.samples(seen)
        # A page is UTF-8 as a whole: one lone surrogate in the name of a queue would spoil all of it.
        rows = [([storable(value) for value in (registry, *values)], figure) for values, figure in samples]
        if self.kind == "summary":
            summary = SummaryMetricFamily(self.name, self.says, labels=labels)
            for values, figure in rows:
                if isinstance(figure, Span):
                    summary.add_metric(values, figure.count, figure.seconds)
            return summary
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name, self.says, labels=labels)
        for values, figure in rows:
            if not isinstance(figure, Span):
                family.add_metric(values, figure)
        return family


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker, as it was at a scrape.

    :ivar types: the names of its handlers
    """

    counters: Counters
    types: tuple[str, ...]
    is_healthy: bool
    heartbeat_age: timedelta | None


# --- how they are read off --------------------------------------------------------------------------------------------


def _one(figure: float | Span | timedelta | None) -> Iterator[Sample]:
    """Give a figure without labels; none where there is none."""
    if isinstance(figure, timedelta):
        yield (), figure.total_seconds()
    elif figure is not None:
        yield (), figure


def _by_type(counts: dict[str, int]) -> Iterator[Sample]:
    for type_, count in sorted(counts.items()):
        yield (type_,), count


def _truth(is_so: bool) -> str:  # noqa: FBT001  # the very thing that it writes
    return "true" if is_so else "false"


def _lane(lane: LaneStats) -> tuple[str, ...]:
    return lane.queue, lane.type, _truth(lane.is_known)


def _ready(stats: Stats) -> Iterator[Sample]:
    for lane in stats.lanes:
        yield (*_lane(lane), "true"), lane.due
        yield (*_lane(lane), "false"), lane.later


def _running(stats: Stats) -> Iterator[Sample]:
    for lane in stats.lanes:
        yield (lane.queue, lane.type), lane.running


def _oldest_ready(stats: Stats) -> Iterator[Sample]:
    for lane in stats.lanes:
        if lane.oldest is not None:
            yield _lane(lane), lane.oldest.total_seconds()


_ATTEMPTS: Final = (*((str(number), number) for number in range(5)), ("5-9", 5), ("10+", 10))
"""Names of the groups, with the least number of each: a label has few values, whatever `max_attempts` is."""


def _unfinished(stats: Stats) -> Iterator[Sample]:
    for (name, least), after in zip(_ATTEMPTS, (*_ATTEMPTS[1:], None), strict=True):
        inside = (count for attempts, count in stats.attempts.items() if _is_between(attempts, least, after))
        yield (name,), sum(inside)


def _is_between(attempts: int, least: int, after: tuple[str, int] | None) -> bool:
    return attempts >= least and (after is None or attempts < after[1])


def _capped(stats: Stats) -> Iterator[Sample]:
    parts = stats.capped | {"lanes"} if stats.lanes_left_out else stats.capped
    for part in sorted(parts):
        yield (part,), 1


def _schedules(stats: Stats) -> Iterator[Sample]:
    found = stats.schedules
    if found is not None:
        yield ("enabled",), found.enabled
        yield ("paused",), found.paused
        yield ("retired",), found.retired


def _of_schedules(read: Callable[[ScheduleStats], int]) -> Callable[[Stats], Iterator[Sample]]:
    return lambda stats: _one(None if stats.schedules is None else read(stats.schedules))


_BEGUN_AT_ZERO: Final = ("done", "failed", "dead", "retried", "lease_expired", "lease_lost")
"""Events that are shown before the first: to `increase(…)` a series that begins at 1 has not grown."""


def _ended(seen: Seen) -> Iterator[Sample]:
    zeros = {(event, type_): 0 for event in _BEGUN_AT_ZERO for type_ in seen.types}
    yield from sorted((zeros | seen.counters.ends).items())


def _handlers(seen: Seen) -> Iterator[Sample]:
    for type_, span in sorted(seen.counters.job_seconds.items()):
        yield (type_,), span


# --- the table --------------------------------------------------------------------------------------------------------

UP: Final[Figure[bool]] = Figure(
    "sqla_jobs_up", "gauge", "Whether the database answered the latest look at the job table.", (), _one
)
"""The one of the table's that each scrape has."""

LOOK_SECONDS: Final[Figure[float]] = Figure(
    "sqla_jobs_look_seconds", "gauge", "How long the latest look at the job table took.", (), _one
)

TABLE: Final[tuple[Figure[Stats], ...]] = (
    Figure("sqla_jobs_ready", "gauge", "Ready jobs.", ("queue", "type", "known", "due"), _ready),
    Figure(
        "sqla_jobs_oldest_ready_seconds",
        "gauge",
        "How long the oldest due job has waited; absent while none is due.",
        ("queue", "type", "known"),
        _oldest_ready,
    ),
    Figure("sqla_jobs_running", "gauge", "Running jobs.", ("queue", "type"), _running),
    Figure(
        "sqla_jobs_oldest_running_seconds",
        "gauge",
        "How long the job that has run longest has run; absent while none runs.",
        (),
        lambda stats: _one(None if stats.oldest_running is None else stats.oldest_running.age),
    ),
    Figure("sqla_jobs_unfinished", "gauge", "Ready and running jobs by attempts begun.", ("attempts",), _unfinished),
    Figure("sqla_jobs_failed", "gauge", "Failed jobs in the table.", ("type",), lambda stats: _by_type(stats.failed)),
    Figure("sqla_jobs_dead", "gauge", "Dead jobs in the table.", ("type",), lambda stats: _by_type(stats.dead)),
    Figure(
        "sqla_jobs_expired_last_hour",
        "gauge",
        "Jobs that a worker has found with a lease run out, in the last hour: theirs vanished.",
        (),
        lambda stats: _one(stats.expired_last_hour),
    ),
    Figure(
        "sqla_jobs_leases_over",
        "gauge",
        "Running jobs whose lease is over and that no worker has given back.",
        (),
        lambda stats: _one(stats.leases_over),
    ),
    Figure("sqla_jobs_schedules", "gauge", "Schedules.", ("state",), _schedules),
    Figure(
        "sqla_jobs_schedules_in_error",
        "gauge",
        "Schedules that do not fire because of an error.",
        (),
        _of_schedules(lambda schedules: schedules.in_error),
    ),
    Figure(
        "sqla_jobs_schedule_slots_missed",
        "gauge",
        "Slots that got no job because no worker was there for them; shrinks when a schedule is deleted.",
        (),
        _of_schedules(lambda schedules: schedules.slots_missed),
    ),
    Figure(
        "sqla_jobs_schedule_overlaps_skipped",
        "gauge",
        "Slots that got no job because an earlier one was unfinished; shrinks when a schedule is deleted.",
        (),
        _of_schedules(lambda schedules: schedules.overlaps_skipped),
    ),
    Figure(
        "sqla_jobs_oldest_transaction_seconds",
        "gauge",
        "Age of the oldest transaction that holds back vacuum; absent where that can't be known.",
        (),
        lambda stats: _one(stats.oldest_transaction),
    ),
    Figure("sqla_jobs_capped", "gauge", "1 for each part whose count reached its cap.", ("part",), _capped),
)
"""Of the job table, the same whichever worker shows it. All are absent while the database does not answer."""

WORKER: Final[tuple[Figure[Seen], ...]] = (
    Figure("sqla_jobs_ended_total", "counter", "Ends of attempts.", ("event", "type"), _ended),
    Figure("sqla_jobs_handler_seconds", "summary", "How long handlers ran.", ("type",), _handlers),
    Figure("sqla_jobs_claimed_total", "counter", "Jobs claimed.", (), lambda seen: _one(float(seen.counters.claimed))),
    Figure("sqla_jobs_claim_seconds", "summary", "Statements that claim.", (), lambda seen: _one(seen.counters.claims)),
    Figure(
        "sqla_jobs_settle_seconds",
        "summary",
        "Statements and commits that write how attempts ended.",
        (),
        lambda seen: _one(seen.counters.settles),
    ),
    Figure(
        "sqla_jobs_outages_total",
        "counter",
        "Outages of the database that the worker met.",
        (),
        lambda seen: _one(seen.counters.outages),
    ),
    Figure("sqla_jobs_worker_healthy", "gauge", "What /healthz says.", (), lambda seen: _one(seen.is_healthy)),
    Figure(
        "sqla_jobs_worker_slots", "gauge", "Handlers that may run at once.", (), lambda seen: _one(seen.counters.slots)
    ),
    Figure("sqla_jobs_worker_running", "gauge", "Handlers that run.", (), lambda seen: _one(seen.counters.running)),
    Figure(
        "sqla_jobs_worker_held",
        "gauge",
        "Claimed jobs that wait, run, or are being settled.",
        (),
        lambda seen: _one(seen.counters.held),
    ),
    Figure(
        "sqla_jobs_worker_heartbeat_age_seconds",
        "gauge",
        "How long ago a heartbeat last got through; absent before the first.",
        (),
        lambda seen: _one(seen.heartbeat_age),
    ),
)
"""Of one worker, since its start. They need no database."""
