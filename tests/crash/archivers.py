"""The app whose archivers are killed: the role `archive` of `tests.crash.program`.

With `place` and `number` the process ends by SIGKILL once its archiver has been answered so many statements that have
*place* in them. On PostgreSQL no statement may take longer than two seconds.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import DeclarativeBase, sessionmaker

from sqla_jobs import ArchivedJobMixin, JobMixin, Jobs, Worker, current_job
from sqla_jobs.rules.retention import Retention
from tests.crash.app import SOON, build_app_engine, say

if TYPE_CHECKING:
    from collections.abc import Callable

DAY: Final = timedelta(days=1)


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


jobs = Jobs(Job, archive=ArchivedJob)


@jobs.handler(backoff=SOON, max_attempts=100)
def speak() -> None:
    """Only say so."""
    say("ran", job=current_job().id)


def build(url: str) -> Engine:
    """Create the app's engine."""
    options: dict[str, Any] = (
        {} if url.startswith("sqlite") else {"connect_args": {"options": "-c statement_timeout=2s"}}
    )
    return build_app_engine(url, **options)


def main(url: str, *, archives: bool, place: str | None = None, number: int = 1) -> None:
    """Run a worker until a signal."""
    if place is not None:
        event.listen(Engine, "after_cursor_execute", trap(place, number))
    retention = Retention(done=DAY, failed=DAY, dead=DAY) if archives else None
    Worker(jobs, sessionmaker(build(url)), lease=timedelta(seconds=1), retention=retention).run()


def trap(place: str, number: int) -> Callable[..., None]:
    """Make a listener that ends the process where it stands."""
    left = itertools.count(number - 1, -1)

    def spring(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        is_archiver = threading.current_thread().name == "sqla_jobs archiver"
        if is_archiver and place in statement and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return spring
