"""What becomes of the rate when many do the same at once.

Worker processes on one backlog, beside as many hand-written ones: their rates, those to the rate of one, and how many
cores of this machine were busy meanwhile, the server's and all others' work included: where all are, more processes
can't give more. Then 32 sessions that enqueue at once, with the wake-up hint in each commit and without; a worker of
another queue hears the hints.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.draining import PLAIN, RAW, TIMES, Side, fill_backlog, wait_until_drained
from benchmarks.enqueuers import THREADS
from benchmarks.measuring import Figure, rounds
from benchmarks.observing import Observed, several
from benchmarks.processes import programs

JOBS: Final = 100_000

COUNTS: Final = (1, 2, 4, 8)

ENQUEUED: Final = 9_600

PROCESSES: Final = 4


def run(bench: Bench) -> list[Figure]:
    return [*drains(bench), *enqueues(bench)]


# --- draining ---------------------------------------------------------------------------------------------------------


MIDDLE: Final = """
SELECT 0.6 * jobs / extract(epoch FROM late - early + interval '1 microsecond')
FROM (
    SELECT count(*) AS jobs,
           percentile_disc(0.2) WITHIN GROUP (ORDER BY finished_at) AS early,
           percentile_disc(0.8) WITHIN GROUP (ORDER BY finished_at) AS late
    FROM {table} WHERE id BETWEEN :first AND :last AND status = 'done'
) AS found
"""


@dataclass
class Drains:
    """Drains by a number of processes of one side.

    :ivar busy: the cores that were busy in each
    :ivar middle: the rate of the middle three fifths of the jobs, where starts and ends of processes don't tell
    """

    bench: Bench
    side: Side
    processes: int
    busy: list[float] = field(default_factory=list[float])
    middle: list[float] = field(default_factory=list[float])

    def __call__(self) -> float:
        self.bench.fresh()
        backlog = fill_backlog(self.bench, self.side, self.bench.rows(JOBS))
        self.bench.tidy()
        with programs(self.side.kind, self.bench.url, self.processes) as started:
            before = Ticks.now()
            for program in started:
                program.go()
            wait_until_drained(self.bench, backlog, started)
            self.busy.append(Ticks.now().busy_cores_since(before))
        self.middle.append(float(backlog.ask(self.bench, MIDDLE)[0]))
        times = backlog.ask(self.bench, TIMES)
        assert times.jobs == backlog.rows, f"{times.jobs} of {backlog.rows} jobs are done"
        return backlog.rows / float(times.seconds)


def drains(bench: Bench) -> list[Figure]:
    sides = {f"{side.kind} {count}": Drains(bench, side, count) for count in COUNTS for side in (PLAIN, RAW)}
    found = rounds(sides, bench.repeat)
    figures: list[Figure] = []
    for count in COUNTS:
        ours, raw = sides[f"{PLAIN.kind} {count}"], sides[f"{RAW.kind} {count}"]
        settings = {
            "jobs": bench.rows(JOBS),
            "processes": count,
            "cores": os.cpu_count(),
            "busy_cores": [round(busy, 2) for busy in ours.busy],
            "raw_busy_cores": [round(busy, 2) for busy in raw.busy],
            "middle_rates": [round(rate) for rate in ours.middle],
            "raw_middle_rates": [round(rate) for rate in raw.middle],
        }
        rates = found[f"{PLAIN.kind} {count}"], found[f"{RAW.kind} {count}"]
        figures.append(Figure(f"contention {count}", "jobs/s", *rates, settings=settings))
    return figures + [_times(found, many, few) for many, few in ((2, 1), (4, 1), (8, 1), (8, 4))]


def _times(found: dict[str, tuple[float, ...]], many: int, few: int) -> Figure:
    def of(side: Side) -> tuple[float, ...]:
        pairs = zip(found[f"{side.kind} {many}"], found[f"{side.kind} {few}"], strict=True)
        return tuple(rate / rate_of_few for rate, rate_of_few in pairs)

    return Figure(f"contention {many} to {few}", "times", of(PLAIN), of(RAW), settings={"processes": [many, few]})


@dataclass(frozen=True)
class Ticks:
    """What the cores of this machine have done since it started, in the kernel's units."""

    total: int
    idle: int

    @classmethod
    def now(cls) -> Ticks:
        line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
        user, nice, system, idle, waiting, *rest = map(int, line.split()[1:9])
        return cls(user + nice + system + idle + waiting + sum(rest), idle + waiting)

    def busy_cores_since(self, before: Ticks) -> float:
        total = self.total - before.total
        return (os.cpu_count() or 1) * (1 - (self.idle - before.idle) / total) if total else 0.0


# --- enqueuing --------------------------------------------------------------------------------------------------------


def enqueues(bench: Bench) -> list[Figure]:
    each = max(2, bench.rows(ENQUEUED) // (PROCESSES * THREADS))
    sides: dict[str, Callable[[], float]] = {kind: partial(enqueued, bench, kind, each) for kind in ("loud", "quiet")}
    found = rounds(sides, bench.repeat)
    settings: dict[str, Any] = {
        "sessions": PROCESSES * THREADS,
        "processes": PROCESSES,
        "jobs": each * PROCESSES * THREADS,
        "raw": "ours without the wake-up hint",
    }
    return [Figure("contention enqueue", "jobs/s", found["loud"], found["quiet"], settings=settings)]


def enqueued(bench: Bench, kind: str, each: int) -> float:
    """Give the rate of 32 sessions, from when the first begins until the last has ended."""
    bench.fresh()
    with (
        Observed("benchmarks.observed", "elsewhere", "--url", bench.url) as listening,
        several(PROCESSES, "benchmarks.enqueuers", kind, "--url", bench.url) as enqueuers,
    ):
        listening.ask("usage")  # it runs
        spans: list[tuple[float, float]] = []
        for count in (3, each):  # the first time to connect and to compile
            for enqueuer in enqueuers:
                enqueuer.tell("enqueue", count)
            spans = [enqueuer.hear() for enqueuer in enqueuers]
    seconds = max(ended for _, ended in spans) - min(began for began, _ in spans)
    return each * PROCESSES * THREADS / seconds
