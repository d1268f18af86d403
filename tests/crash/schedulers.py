"""The app whose schedulers are killed, frozen and restarted: the role `schedule` of `tests.crash.program`.

Options `place`, `when` and `act` make a trap: once a byte on stdin has set it, the scheduler springs it at its next
statement with *place* in it, `before` or `after` that is sent. Then the process `freezes` or `ends`, or its scheduler
`stalls` until the next byte. Schedulers look ten times a second here, so that they meet more often.
"""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, Pool, String, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqla_jobs import ArchivedJobMixin, JobMixin, Jobs, ScheduleMixin, Worker, current_job
from sqla_jobs.runtime import scheduler
from sqla_jobs.testing import Clock
from tests.crash.app import GATE, SOON, build_app_engine, say

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK: Final = "AS is_retired"
"""What only a scheduler's look says."""

MOVE: Final = "slots_missed="
"""What only the statement says that moves schedules on."""

INSERT: Final = "INSERT INTO job "

BEGIN: Final = {"postgresql": "'lock_timeout'", "sqlite": "BEGIN IMMEDIATE"}
"""What a scheduler's transactions begin with when it fires: before it, the scheduler has looked and holds nothing."""

ENDED: Final = 70
"""The exit code of a process that its trap ended."""


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class Made(Base):
    """The key of each job that was ever inserted, whatever became of the job. A trigger writes it."""

    __tablename__ = "made"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(255))


TRIGGERS: Final = {
    "postgresql": """
        CREATE FUNCTION keep_made() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO made (key) VALUES (NEW.idempotency_key);
            RETURN NULL;
        END $$;
        CREATE TRIGGER keep_made AFTER INSERT ON job FOR EACH ROW EXECUTE FUNCTION keep_made();
    """,
    "sqlite": """
        CREATE TRIGGER keep_made AFTER INSERT ON job
        BEGIN
            INSERT INTO made (key) VALUES (NEW.idempotency_key);
        END;
    """,
}

clock: Final = Clock(Base.metadata)

jobs = Jobs(Job, schedule=Schedule, archive=ArchivedJob, now=clock.now)


@jobs.handler(backoff=SOON, max_attempts=100)
def report() -> None:
    """Take ten milliseconds, and say for which slot."""
    threading.Event().wait(0.01)
    say("ran", slot=f"{current_job().slot:%Y-%m-%dT%H:%M:%SZ}")


def create_tables(engine: Engine) -> None:
    """Create the tables, and the trigger that keeps account of the jobs."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text(TRIGGERS[engine.dialect.name]))


def main(
    url: str, *, cron: str, place: str | None = None, when: str = "before", act: str = "freezes", **settings: Any
) -> None:
    """Run a worker until a signal, with one schedule in its code."""
    jobs.schedule("report", report, cron=cron, offset=timedelta(0), catch_up="all")
    scheduler.LOOK_SECONDS = 0.1
    tell_ticks()
    if place is not None:
        event.listen(Engine, f"{when}_cursor_execute", trap(place, act))
    settings["lease"] = timedelta(seconds=settings.pop("lease", 1))
    Worker(jobs, sessionmaker(build_app_engine(url)), **settings).run()


def tell_ticks() -> None:
    """Have it said when the scheduler has looked, and when it has committed moves, be it of rows that had changed."""
    scheduler_s = threading.local()

    @event.listens_for(Engine, "after_cursor_execute")
    def note(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        for said, text_of_it in (("looked", LOOK), ("moved", MOVE)):
            if text_of_it in statement:
                scheduler_s.latest = said

    @event.listens_for(Pool, "checkin")
    def tell(_connection: object, _record: object) -> None:
        if latest := scheduler_s.__dict__.pop("latest", None):
            say(latest)


def trap(place: str, act: str) -> Any:
    """Make a listener that springs once the gate was opened."""
    acts: dict[str, Callable[[], object]] = {
        "freezes": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "ends": lambda: os._exit(ENDED),
        "stalls": GATE.wait,
    }
    unsprung = threading.Lock()

    def spring(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        is_scheduler = threading.current_thread().name == "sqla_jobs scheduler"
        if is_scheduler and place in statement and GATE.is_set() and unsprung.acquire(blocking=False):
            GATE.clear()
            say("sprung")
            acts[act]()

    return spring
