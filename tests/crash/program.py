"""A process of the app that `tests.crash.app` is: `python -m tests.crash.program '{"role": "work", "url": …}'`.

Roles: `work` runs a worker; `fork` uses the engine and then forks four of them; `scribble` writes to another table;
`schedule` and `archive` run a worker of the apps in `schedulers` and `archivers`.
It ends when its stdin does, so that it never outlives its test. A byte on stdin opens the gate of held handlers.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import multiprocessing
import os
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.crash.skew import shift_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from sqla_jobs import Worker

DURATIONS = {"lease", "grace", "poll_interval"}


def main() -> None:
    """Do what the first argument says."""
    faulthandler.enable()
    options: dict[str, Any] = json.loads(sys.argv[1])
    if seconds := options.pop("clock", None):
        shift_clock(seconds)
    threading.Thread(target=obey, daemon=True).start()
    roles: dict[str, Callable[..., None]] = {"work": work, "fork": fork, "scribble": scribble}
    roles |= {"schedule": schedule, "archive": archive}
    roles[options.pop("role", "work")](**options)


def obey() -> None:
    """Open the gate at a byte on stdin, and end the process at its end."""
    from tests.crash.app import GATE

    # Not sys.stdin: this thread would hold its lock for ever in a forked child.
    while os.read(0, 1):
        GATE.set()
    os._exit(99)


def work(url: str, *, engine: dict[str, Any] | None = None, **settings: Any) -> None:
    """Run a worker until a signal."""
    tell_logs()
    build_worker(build(url, engine), url, settings).run()


def build(url: str, options: dict[str, Any] | None) -> Engine:
    """Create the app's engine."""
    from tests.crash.app import build_app_engine

    return build_app_engine(url, **(options or {}))


def build_worker(engine: Engine, url: str, settings: dict[str, Any]) -> Worker:
    """Make a worker on *engine*; durations come in seconds."""
    from sqlalchemy.ext.asyncio import async_sessionmaker
    from sqlalchemy.orm import sessionmaker

    from sqla_jobs import Worker
    from tests.crash.app import jobs
    from tests.engines import build_async_engine

    for name in DURATIONS & settings.keys():
        settings[name] = timedelta(seconds=settings[name])
    return Worker(jobs, sessionmaker(engine), async_sessions=async_sessionmaker(build_async_engine(url)), **settings)


def fork(url: str, *, made_in: str, **settings: Any) -> None:
    """Use the engine, then fork four processes that each run a worker on it; made before the fork, or after it."""
    from sqlalchemy import text

    from tests.crash.app import say

    engine = build(url, None)
    connections = [engine.connect() for _ in range(4)]
    backends = [connection.scalar(text("SELECT pg_backend_pid()")) for connection in connections]
    for connection in connections:
        connection.close()
    say("parent", backends=backends)
    workers = [build_worker(engine, url, dict(settings)) if made_in == "parent" else None for _ in range(4)]
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=run_in_fork, args=(engine, url, settings, worker)) for worker in workers]
    for child in children:
        child.start()
    for child in children:
        child.join()
    # What the children did must have left the parent's connections whole.
    with engine.connect() as connection:
        say("joined", backend=connection.scalar(text("SELECT pg_backend_pid()")), codes=[c.exitcode for c in children])


def run_in_fork(engine: Engine, url: str, settings: dict[str, Any], worker: Worker | None) -> None:
    """Run the parent's worker, or one of our own, until nothing is due."""
    own = worker if worker is not None else build_worker(engine, url, dict(settings))
    own.run_until_idle()


def scribble(url: str, *, rows: int, engine: dict[str, Any] | None = None) -> None:
    """Write to a table of the app's own, a transaction for each row."""
    from sqlalchemy.orm import Session

    from tests.crash.app import Note, say

    own = build(url, engine)
    for number in range(rows):
        with Session(own) as session, session.begin():
            session.add(Note())
        if number == 0:
            say("scribbling")
    say("scribbled")


def schedule(**options: Any) -> None:
    """Run a worker with a schedule until a signal."""
    from tests.crash import schedulers

    tell_logs()
    schedulers.main(**options)


def archive(**options: Any) -> None:
    """Run a worker with an archive until a signal."""
    from tests.crash import archivers

    tell_logs()
    archivers.main(**options)


class Teller(logging.Handler):
    """Says each record of the library's logger."""

    def emit(self, record: logging.LogRecord) -> None:
        from tests.crash.app import say

        job, end = getattr(record, "job_id", None), getattr(record, "job_event", None)
        say("log", level=record.levelname, message=record.getMessage(), job=job, end=end)


def tell_logs() -> None:
    """Have all that the library logs said, at DEBUG."""
    logger = logging.getLogger("sqla_jobs")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Teller())


if __name__ == "__main__":
    main()
