"""Workers that tell when their handlers began, and what they use.

    python -m benchmarks.observed KIND --url postgresql+psycopg://…

KIND is `worker`, `raw` (a hand-written psycopg loop that claims one by one when it is notified), `counting` (a worker
whose statements are counted), or `elsewhere` (one that serves another queue). Questions on stdin: `starts N` (when the
next N handlers began), `ran N` (waits until N have begun in all, then as `usage`), `usage`.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import sessionmaker

from benchmarks.bench import dsn_of
from benchmarks.observing import answer
from benchmarks.tables import Job
from sqla_jobs import Jobs, Worker

observed_jobs = Jobs(Job, name="observed")

CONCURRENCY: Final = 10

PATIENCE: Final = 120.0
"""Seconds to wait for handlers that don't begin."""


class Starts:
    """When handlers began, by the clock that all processes of a machine share."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._starts: list[tuple[int, float]] = []
        self._count = 0
        self._goal = 0

    def add(self, number: int, at: float) -> None:
        with self._arrived:
            self._starts.append((number, at))
            self._arrived.notify_all()

    def count(self) -> None:
        with self._arrived:
            self._count += 1
            if self._count == self._goal:
                self._arrived.notify_all()

    def take(self, count: float) -> list[tuple[int, float]]:
        """Wait until *count* have begun since the last call, and give the number and time of each."""
        with self._arrived:
            self._wait(lambda: len(self._starts) >= count)
            taken, self._starts = self._starts, []
        return taken

    def wait_for(self, count: float) -> None:
        """Wait until *count* have been counted in all."""
        with self._arrived:
            self._goal = int(count)
            self._wait(lambda: self._count >= count)

    def _wait(self, is_there: Any) -> None:
        if not self._arrived.wait_for(is_there, timeout=PATIENCE):
            raise TimeoutError(f"{len(self._starts)} and {self._count} handlers began in {PATIENCE} s")


starts = Starts()


@observed_jobs.handler
def stamp(number: int) -> None:
    starts.add(number, time.monotonic())


@observed_jobs.handler
def tally() -> None:
    starts.count()


class Statements:
    """Counts what an engine and its likes say, BEGIN and COMMIT not included."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        for way in ("do_execute", "do_executemany", "do_execute_no_params"):
            event.listen(engine, way, self._count)  # the dialect's, which the worker's own engines share

    def _count(self, *call: object) -> None:
        self.count += 1


def usage(statements: Statements | None = None) -> dict[str, float]:
    """Give seconds of CPU, the time, KiB of memory now and at most, and statements said."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return {
        "cpu": time.process_time(),
        "at": time.monotonic(),
        "resident": float(status["VmRSS"].split()[0]),
        "peak": float(status["VmHWM"].split()[0]),
        "threads": float(status["Threads"]),
        "statements": 0 if statements is None else statements.count,
    }


# --- the hand-written loop --------------------------------------------------------------------------------------------

CLAIM: Final = """
UPDATE raw_job
SET status = 'running', attempts = attempts + 1, claims = claims + 1, locked_by = 'raw',
    locked_until = statement_timestamp() + interval '60 s', started_at = statement_timestamp()
WHERE id = (
    SELECT id FROM raw_job
    WHERE status = 'ready' AND queue = 'default' AND type = 'stamp' AND run_at <= statement_timestamp()
    ORDER BY run_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id, claims, payload
"""

SETTLE: Final = """
UPDATE raw_job SET status = 'done', finished_at = statement_timestamp()
WHERE id = %s AND status = 'running' AND claims = %s AND locked_by = 'raw'
"""

NEXT_DUE: Final = """
SELECT CAST(extract(epoch FROM run_at - statement_timestamp()) AS float) FROM raw_job
WHERE status = 'ready' AND queue = 'default' AND type = 'stamp' ORDER BY run_at LIMIT 1
"""


def loop(dsn: str, stopped: threading.Event) -> None:
    """Claim one, run it, settle it; when none is due, wait for a notification or the next due time."""
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.execute("LISTEN raw_job_ready")
        while not stopped.is_set():
            claimed = connection.execute(CLAIM).fetchone()
            if claimed is None:
                due = connection.execute(NEXT_DUE).fetchone()
                wait = 0.5 if due is None else min(0.5, due[0])
                if wait > 0:
                    list(connection.notifies(timeout=wait, stop_after=1))
                continue
            starts.add(claimed[2]["number"], time.monotonic())
            connection.execute(SETTLE, claimed[:2])


def run_raw(url: str) -> None:
    stopped = threading.Event()
    thread = threading.Thread(target=loop, args=(dsn_of(url), stopped))
    thread.start()
    try:
        answer({"starts": starts.take, "usage": usage})
    finally:
        stopped.set()
        thread.join()


# --- the worker -------------------------------------------------------------------------------------------------------


def run_worker(url: str, kind: str) -> None:
    engine = create_engine(url)
    statements = Statements(engine) if kind == "counting" else None
    queues = ["elsewhere"] if kind == "elsewhere" else None

    def ran(count: float) -> dict[str, float]:
        starts.wait_for(count)
        return usage(statements)

    with Worker(observed_jobs, sessionmaker(engine), queues=queues, concurrency=CONCURRENCY):
        answer({"starts": starts.take, "ran": ran, "usage": lambda: usage(statements)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["worker", "raw", "counting", "elsewhere"])
    parser.add_argument("--url", required=True)
    arguments = parser.parse_args()
    if arguments.kind == "raw":
        run_raw(arguments.url)
    else:
        run_worker(arguments.url, arguments.kind)


if __name__ == "__main__":
    main()
