"""Programs that work a backlog off, each in a process of its own: workers of the library, and hand-written loops.

    python -m benchmarks.workers KIND --url postgresql+psycopg://…

It says `ready` when it has imported and connected what it needs, and begins when a line comes; `benchmarks.processes`
is the other end. A worker ends on SIGTERM, a hand-written loop when nothing is due, both when their input is closed.
Nothing is configured for logging: as in a program whose author has not thought of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from benchmarks import handwritten
from benchmarks.tables import async_jobs, jobs, lean_jobs
from sqla_jobs import Jobs, Worker

CONCURRENCY: Final = 10


def worker(url: str, gate: handwritten.Gate, registry: Jobs[Any] = jobs) -> None:
    """Run a worker as the README does. The app's pool has a connection for each handler."""
    engine = create_engine(url, pool_size=CONCURRENCY)
    with engine.connect():  # so that both kinds of program begin with a connection
        pass
    runner = Worker(registry, sessionmaker(engine), queues=["default"], concurrency=CONCURRENCY)
    gate()
    runner.run()


def lean_worker(url: str, gate: handwritten.Gate) -> None:
    worker(url, gate, lean_jobs)


def async_worker(url: str, gate: handwritten.Gate) -> None:
    engine = create_async_engine(url, pool_size=CONCURRENCY)
    sessions = async_sessionmaker(engine)
    runner = Worker(async_jobs, async_sessions=sessions, queues=["default"], concurrency=CONCURRENCY)
    gate()
    runner.run()


KINDS: Final[dict[str, Callable[[str, handwritten.Gate], None]]] = {
    "plain": worker,
    "session": worker,
    "lean": lean_worker,
    "async": async_worker,
    "async-plain": async_worker,
    "raw": handwritten.raw,
    "raw-session": handwritten.raw_session,
    "raw-session-at-once": handwritten.raw_session_at_once,
    "orm-session": handwritten.orm_session,
    "orm-async": handwritten.orm_async,
}


def wait_at_gate() -> None:
    """Say that all is ready, and wait for the word. From then on, the end of the input ends the process."""
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=_end_with_input, daemon=True).start()


def _end_with_input() -> None:
    # Not sys.stdin: at the end of the process its lock would be held by this thread.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--url", required=True)
    arguments = parser.parse_args()
    KINDS[arguments.kind](arguments.url, wait_at_gate)


if __name__ == "__main__":
    main()
