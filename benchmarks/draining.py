"""How fast a backlog is worked off, by the database's own times: from the first claim to the last completion."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text

from benchmarks.bench import Bench
from benchmarks.measuring import Figure, rounds
from benchmarks.processes import Program, programs
from benchmarks.tables import AnyJob, Job, LeanJob, RawJob, fill

LOOK_SECONDS: Final = 0.05

LONGEST_DRAIN: Final = 900.0

# The youngest job is claimed last: this looks at one row, until nearly all are finished.
IS_LEFT: Final = """
SELECT (
    SELECT id FROM {table} WHERE id BETWEEN :first AND :last AND finished_at IS NULL ORDER BY id DESC LIMIT 1
) IS NOT NULL
"""

TIMES: Final = """
SELECT count(*) AS jobs,
       extract(epoch FROM max(finished_at) - min(started_at)) AS seconds,
       extract(epoch FROM max(finished_at) - percentile_disc(0.8) WITHIN GROUP (ORDER BY finished_at)) AS last_fifth
FROM {table} WHERE id BETWEEN :first AND :last AND status = 'done'
"""

FORGET: Final = """
WITH forgotten AS (DELETE FROM {table} WHERE id BETWEEN :first AND :last RETURNING 1) SELECT count(*) FROM forgotten
"""


@dataclass(frozen=True)
class Backlog:
    """The jobs to be drained: those with ids from *first* to *last*."""

    model: AnyJob
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first + 1

    def ask(self, bench: Bench, question: str) -> Any:
        """Put a question about these rows, in a transaction of its own."""
        statement = text(question.format(table=self.model.__tablename__))
        with bench.engine.begin() as connection:
            return connection.execute(statement, {"first": self.first, "last": self.last}).one()

    def forget(self, bench: Bench) -> None:
        """Delete them."""
        self.ask(bench, FORGET)


@dataclass(frozen=True)
class Drain:
    """What a drain has come to, in jobs a second.

    :ivar late_rate: of the last fifth of the jobs
    """

    rate: float
    late_rate: float


@dataclass(frozen=True)
class Side:
    """Who works off what."""

    kind: str
    model: AnyJob
    type: str = "noop"


PLAIN: Final = Side("plain", Job)
LEAN: Final = Side("lean", LeanJob)
RAW: Final = Side("raw", RawJob)


def drain_fresh(bench: Bench, side: Side, rows: int, *, processes: int = 1) -> float:
    """Drain a backlog from tables that hold nothing else; gives jobs a second."""
    bench.fresh()
    backlog = fill_backlog(bench, side, rows)
    bench.tidy()
    return drain(bench, side, backlog, processes=processes).rate


def fill_backlog(bench: Bench, side: Side, rows: int) -> Backlog:
    last_id = text(f"SELECT max(id) FROM {side.model.__tablename__}")  # noqa: S608  # our own
    with bench.engine.begin() as connection:
        fill(connection, side.model, rows, type=side.type)
        last: int = connection.scalars(last_id).one()
    return Backlog(side.model, last - rows + 1, last)


def drain(bench: Bench, side: Side, backlog: Backlog, *, processes: int = 1) -> Drain:
    """Have the backlog worked off, and look how long it took."""
    with programs(side.kind, bench.url, processes) as started:
        for program in started:
            program.go()
        wait_until_drained(bench, backlog, started)
    times = backlog.ask(bench, TIMES)
    assert times.jobs == backlog.rows, f"{times.jobs} of {backlog.rows} jobs are done"
    return Drain(backlog.rows / float(times.seconds), 0.2 * backlog.rows / max(float(times.last_fifth), 1e-6))


def wait_until_drained(bench: Bench, backlog: Backlog, started: Sequence[Program]) -> None:
    deadline = time.monotonic() + LONGEST_DRAIN
    while backlog.ask(bench, IS_LEFT)[0]:
        if any(program.has_failed for program in started):
            raise RuntimeError("a program that drains has failed; see above")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the backlog is not drained after {LONGEST_DRAIN} s")
        time.sleep(LOOK_SECONDS)


# --- the benchmarks ---------------------------------------------------------------------------------------------------


def _measured(bench: Bench, side: Side, rows: int, *, processes: int = 1) -> Callable[[], float]:
    return lambda: drain_fresh(bench, side, rows, processes=processes)


def run(bench: Bench) -> list[Figure]:
    """20,000 plain no-op jobs, one process, then two."""
    rows = bench.rows(20_000)
    figures: list[Figure] = []
    for processes in (1, 2):
        found = rounds(
            {side.kind: _measured(bench, side, rows, processes=processes) for side in (PLAIN, RAW)}, bench.repeat
        )
        name = "drain" if processes == 1 else "drain, two processes"
        settings = {"jobs": rows, "processes": processes, "concurrency": 10, "raw": "psycopg, claims and completes 100"}
        figures.append(Figure(name, "jobs/s", found["plain"], found["raw"], settings=settings))
    return figures


def run_session(bench: Bench) -> list[Figure]:
    """Handlers that write one row through their session."""
    rows = bench.rows(5_000)
    sides = {
        "ours": Side("session", Job, "write_note"),
        "orm": Side("orm-session", RawJob, "write_note"),
        "raw": Side("raw-session", RawJob, "write_note"),
        "raw at once": Side("raw-session-at-once", RawJob, "write_note"),
    }
    limits = {
        "orm": ("drain-session", "by hand: ten threads, SQLAlchemy sessions"),
        "raw": ("drain-session / psycopg", "psycopg: ten threads, statement by statement"),
        "raw at once": ("drain-session / one statement", "psycopg: ten threads, a statement a job"),
    }
    found = rounds({name: _measured(bench, side, rows) for name, side in sides.items()}, bench.repeat)
    return [
        Figure(name, "jobs/s", found["ours"], found[limit], settings={"jobs": rows, "concurrency": 10, "raw": told})
        for limit, (name, told) in limits.items()
    ]


def run_async(bench: Bench) -> list[Figure]:
    """Async handlers that write one row through their AsyncSession, and some that do nothing."""
    rows, plain_rows = bench.rows(5_000), bench.rows(20_000)
    sides = {
        "async": _measured(bench, Side("async", Job, "write_note_async"), rows),
        "orm-async": _measured(bench, Side("orm-async", RawJob, "write_note_async"), rows),
        "async-plain": _measured(bench, Side("async-plain", Job, "noop_async"), plain_rows),
        "raw": _measured(bench, RAW, plain_rows),
    }
    found = rounds(sides, bench.repeat)
    written = {"jobs": rows, "raw": "by hand: asyncio, ten coroutines, AsyncSession"}
    plain = {"jobs": plain_rows, "raw": "psycopg, one thread, claims and completes 100"}
    return [
        Figure("drain-async", "jobs/s", found["async"], found["orm-async"], settings=written),
        Figure("drain-async, no-op", "jobs/s", found["async-plain"], found["raw"], settings=plain),
    ]
