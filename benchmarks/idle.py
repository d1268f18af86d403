"""What a worker costs that has nothing to do, and what memory one needs that has much.

Statements are counted in the worker's process, where SQLAlchemy hands them to the driver (BEGIN and COMMIT, which
psycopg sends by itself, are not among them); transactions are those that the server has ended meanwhile, its own
autovacuum's included. The CPU is that of the worker's process, not of its server connections.

Memory is the process's resident size: after the warm-up, after each further tenth of the jobs, and its peak.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text

from benchmarks.bench import Bench
from benchmarks.measuring import Figure
from benchmarks.observed import CONCURRENCY
from benchmarks.observing import Observed
from benchmarks.tables import Job, fill

WARM_UP_SECONDS: Final = 10.0

SECONDS: Final = 30.0

JOBS: Final = 200_000

WARM_UP: Final = 20_000

TRANSACTIONS: Final = """
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
"""


@dataclass(frozen=True)
class Rest:
    """A second of an idle worker."""

    statements: float
    transactions: float
    cpu_percent: float


@dataclass(frozen=True)
class Memory:
    """MiB, while a backlog is drained."""

    steps: list[float]
    peak: float

    @property
    def growth(self) -> float:
        """Between the end of the warm-up and the end, or the largest size between them."""
        return max(self.steps[1:]) - self.steps[0]


def run(bench: Bench) -> list[Figure]:
    rests: list[Rest] = []
    memories: list[Memory] = []
    for _ in range(bench.repeat):
        rests.append(rest(bench))
        memories.append(memory(bench))
    idle = {"concurrency": CONCURRENCY, "seconds": seconds(bench, SECONDS), "after": seconds(bench, WARM_UP_SECONDS)}
    jobs = {"jobs": bench.rows(JOBS), "after": bench.rows(WARM_UP), "concurrency": CONCURRENCY}
    steps = {"steps": [[round(step, 1) for step in found.steps] for found in memories]}
    return [
        _figure("idle statements", "statements/s", [found.statements for found in rests], idle),
        _figure("idle transactions", "transactions/s", [found.transactions for found in rests], idle),
        _figure("idle cpu", "% of a core", [found.cpu_percent for found in rests], idle),
        _figure("memory growth", "MiB", [found.growth for found in memories], jobs | steps),
        _figure("memory peak", "MiB", [found.peak for found in memories], jobs),
    ]


def seconds(bench: Bench, full: float) -> float:
    """Give the scaled time, at least a second."""
    return max(1.0, full * bench.scale)


def rest(bench: Bench) -> Rest:
    """Leave a worker alone; the table has finished jobs and some for later, as it has in life."""
    bench.fresh()
    with bench.engine.begin() as connection:
        fill(connection, Job, 1000, type="tally", status="done")
        fill(connection, Job, 100, type="tally", due=86_400)
    bench.tidy()
    bench.engine.dispose()  # no connection of ours that tells its statistics meanwhile
    with Observed("benchmarks.observed", "counting", "--url", bench.url) as program:
        time.sleep(seconds(bench, WARM_UP_SECONDS))
        before, ended = program.ask("usage"), transactions(bench)
        time.sleep(seconds(bench, SECONDS))
        after, ended_after = program.ask("usage"), transactions(bench)
    passed = after["at"] - before["at"]
    return Rest(
        statements=(after["statements"] - before["statements"]) / passed,
        transactions=(ended_after - ended - 1) / passed,  # the look before is one
        cpu_percent=100 * (after["cpu"] - before["cpu"]) / passed,
    )


def transactions(bench: Bench) -> int:
    """Give how many the server has ended so far in this database; a backend tells it within a second or so."""
    with bench.engine.connect() as connection:
        ended: int = connection.execute(text(TRANSACTIONS)).scalar_one()
    bench.engine.dispose()
    return ended


def memory(bench: Bench) -> Memory:
    bench.fresh()
    jobs, warm_up = bench.rows(JOBS), bench.rows(WARM_UP)
    with bench.engine.begin() as connection:
        fill(connection, Job, jobs, type="tally")
    bench.tidy()
    steps = [*range(warm_up, jobs, max(1, (jobs - warm_up) // 9)), jobs]
    with Observed("benchmarks.observed", "worker", "--url", bench.url) as program:
        found: list[dict[str, float]] = [program.ask("ran", step) for step in steps]
    return Memory([mebibytes(each["resident"]) for each in found], mebibytes(found[-1]["peak"]))


def mebibytes(kibibytes: float) -> float:
    return kibibytes / 1024


def _figure(name: str, unit: str, found: list[float], settings: dict[str, Any]) -> Figure:
    return Figure(name, unit, tuple(found), is_rate=False, settings=settings)
