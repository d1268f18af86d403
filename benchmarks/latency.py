"""How long a job waits for an idle worker: from its commit, and from the time that it was set for.

One worker process with ten slots that hears NOTIFY; the jobs come from this process, 30 a second. The time begins when
`commit()` has returned to the caller, and ends where the handler begins; where the handler was faster than the answer
to the commit, it is 0. Raw is a hand-written psycopg loop that listens and claims one by one.

A job that is set for a time is late by what the database's clock says when its handler begins. Only this machine's
clocks are read, so the server has to be on it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.types.json import Json
from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.bench import Bench
from benchmarks.measuring import Figure
from benchmarks.observed import CONCURRENCY, stamp
from benchmarks.observing import Observed
from sqla_jobs import enqueue, enqueue_many

JOBS: Final = 300

PER_SECOND: Final = 30

WARM_UP: Final = 10

DUE_JOBS: Final = 100

DUE_AFTER: Final = timedelta(seconds=2)

DUE_APART: Final = timedelta(milliseconds=53)

SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

INSERT: Final = """
INSERT INTO raw_job (type, queue, payload, run_at, created_at)
VALUES ('stamp', 'default', %s, coalesce(%s, statement_timestamp()), statement_timestamp())
RETURNING pg_notify('raw_job_ready', queue)
"""


@dataclass(frozen=True)
class Side:
    """
    :ivar kind: of the process that runs the jobs
    :ivar enqueue: store the job of a number and commit; when the commit began, and when it had returned
    :ivar enqueue_due: store jobs for these times, numbered, and commit
    """

    kind: str
    enqueue: Callable[[int], tuple[float, float]]
    enqueue_due: Callable[[list[datetime]], None]


@dataclass(frozen=True)
class Round:
    """Milliseconds from the commit's return, from its begin, and from the set times."""

    after_commit: list[float]
    with_commit: list[float]
    late: list[float]


def run(bench: Bench) -> list[Figure]:
    ours: list[Round] = []
    raw: list[Round] = []
    with psycopg.connect(bench.dsn) as connection:
        for number in range(bench.repeat):
            sides = [(our_side(bench), ours), (raw_side(connection), raw)]
            for side, found in sides if number % 2 == 0 else sides[::-1]:
                bench.fresh()
                found.append(measured(bench, side))
    settings = {"concurrency": CONCURRENCY, "raw": "psycopg: LISTEN, claim one by one, settle each"}
    from_commit = settings | {"jobs": bench.rows(JOBS), "per_second": PER_SECOND, "from": "commit() has returned"}
    from_begin = from_commit | {"from": "commit() is called"}
    from_set = settings | {"jobs": bench.rows(DUE_JOBS), "apart_ms": DUE_APART.total_seconds() * 1000, "from": "run_at"}
    return [
        *figures("latency", ours, raw, lambda found: found.after_commit, from_commit),
        *figures("latency with commit", ours, raw, lambda found: found.with_commit, from_begin),
        *figures("latency due", ours, raw, lambda found: found.late, from_set),
    ]


def figures(
    name: str, ours: list[Round], raw: list[Round], part: Callable[[Round], list[float]], settings: dict[str, Any]
) -> list[Figure]:
    def of(rounds: list[Round], share: float) -> tuple[float, ...]:
        return tuple(percentile(part(found), share) for found in rounds)

    return [
        Figure(f"{name} {label}", "ms", of(ours, share), of(raw, share), is_rate=False, settings=settings)
        for label, share in SHARES.items()
    ]


def percentile(values: list[float], share: float) -> float:
    """Give the smallest value that this share of them does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


# --- one round --------------------------------------------------------------------------------------------------------


def measured(bench: Bench, side: Side) -> Round:
    with Observed("benchmarks.observed", side.kind, "--url", bench.url) as program:
        paced(side, WARM_UP)
        program.ask("starts", WARM_UP)
        commits = paced(side, bench.rows(JOBS))
        starts = dict(program.ask("starts", len(commits)))
        late = lateness(bench, side, program)
    waits = {number: (starts[number] - began, starts[number] - ended) for number, (began, ended) in commits.items()}
    return Round(
        after_commit=[1000 * max(0.0, after) for _, after in waits.values()],
        with_commit=[1000 * within for within, _ in waits.values()],
        late=late,
    )


def paced(side: Side, count: int) -> dict[int, tuple[float, float]]:
    """Enqueue *count* jobs in even steps."""
    begin = time.monotonic()
    commits: dict[int, tuple[float, float]] = {}
    for number in range(count):
        time.sleep(max(0.0, begin + number / PER_SECOND - time.monotonic()))
        commits[number] = side.enqueue(number)
    return commits


def lateness(bench: Bench, side: Side, program: Observed) -> list[float]:
    offset, now = clocks(bench)
    times = [now + DUE_AFTER + number * DUE_APART for number in range(bench.rows(DUE_JOBS))]
    side.enqueue_due(times)
    starts: dict[int, float] = dict(program.ask("starts", len(times)))
    return [1000 * (starts[number] + offset - at.timestamp()) for number, at in enumerate(times)]


def clocks(bench: Bench) -> tuple[float, datetime]:
    """Give how far the database's clock is before the monotonic one, by the quickest of some looks, and its time."""
    with bench.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        looks: list[tuple[float, float, datetime]] = []
        for _ in range(50):
            began = time.monotonic()
            now: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
            ended = time.monotonic()
            looks.append((ended - began, now.timestamp() - (began + ended) / 2, now))
    return min(looks)[1], looks[-1][2]


# --- the two sides ----------------------------------------------------------------------------------------------------


def our_side(bench: Bench) -> Side:
    def store(number: int) -> tuple[float, float]:
        with Session(bench.engine) as session:
            enqueue(session, stamp, number=number)
            began = time.monotonic()
            session.commit()
            return began, time.monotonic()

    def store_due(times: list[datetime]) -> None:
        with Session(bench.engine) as session, session.begin():
            enqueue_many(session, [stamp.using(run_at=at).job(number=number) for number, at in enumerate(times)])

    return Side("worker", store, store_due)


def raw_side(connection: psycopg.Connection[Any]) -> Side:
    def store(number: int) -> tuple[float, float]:
        connection.execute(INSERT, (Json({"number": number}), None), prepare=True)
        began = time.monotonic()
        connection.commit()
        return began, time.monotonic()

    def store_due(times: list[datetime]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(INSERT, [(Json({"number": number}), at) for number, at in enumerate(times)])
        connection.commit()

    return Side("raw", store, store_due)
