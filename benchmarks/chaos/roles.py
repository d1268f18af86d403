"""What a process of the app does: it runs a worker, or it enqueues."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from benchmarks.chaos import app
from benchmarks.chaos.enqueuing import Enqueuer
from sqla_jobs import Worker
from sqla_jobs.rules.retention import Retention
from sqla_jobs.runtime import archiver

Say = Callable[[str], None]

DRIVERS = ("psycopg", "asyncpg")

GRACE = 2.0

POOL: dict[str, Any] = {"pool_size": 5, "max_overflow": 2, "pool_timeout": 1.0}

RETENTION = Retention(done=timedelta(seconds=5), failed=timedelta(seconds=12), dead=timedelta(seconds=12))


def work(say: Say, url: str) -> None:
    """Run a worker until a signal."""
    name = f"worker {os.getpid()}"
    archiver.LOOK_SECONDS = 3.0  # for retentions of days it is most of a minute
    app.outside["engine"] = create_engine(url, connect_args={"application_name": "outside"}, **POOL)
    worker = Worker(
        app.jobs,
        sessionmaker(_engine(url, name)),
        async_sessions=async_sessionmaker(_async_engine(url, name)),
        concurrency=5,
        lease=timedelta(seconds=app.LEASE),
        grace=timedelta(seconds=GRACE),
        poll_interval=timedelta(seconds=0.5),
        retention=RETENTION,
    )
    say("serves")
    worker.run()


def enqueue(say: Say, stopping: threading.Event, url: str, threads: int) -> None:
    """Enqueue, in threads and on an event loop, until asked to stop."""
    name = f"enqueuer {os.getpid()}"
    engine = _engine(url, name)
    enqueuers = [Enqueuer(say, stopping, random.Random()) for _ in range(threads + 1)]
    runs = [threading.Thread(target=each.run, args=(engine,)) for each in enqueuers[1:]]
    runs.append(threading.Thread(target=enqueuers[0].run_async, args=(_async_engine(url, name),)))
    for run in runs:
        run.start()
    say("serves")
    for run in runs:
        run.join()


def _engine(url: str, name: str) -> Engine:
    return create_engine(url, connect_args={"application_name": name}, **POOL)


def _async_engine(url: str, name: str) -> AsyncEngine:
    """Make an engine of one of the drivers: they fail in different ways."""
    driver = random.choice(DRIVERS)
    options: dict[str, Any] = {"application_name": name}
    if driver == "asyncpg":
        options = {"server_settings": options}
    own = make_url(url).set(drivername=f"postgresql+{driver}")
    return create_async_engine(own, connect_args=options, **POOL)


# What a worker does when it starts, and what takes time: done once, before the forks.
for _spec in app.jobs.handlers:
    _spec.arguments.check()
