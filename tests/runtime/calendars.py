"""An app with schedules: its tables and a clock to move, its handler, and schedulers to tick by hand."""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqla_jobs import Handler, JobEvent, JobMixin, Jobs, ScheduleMixin, Worker, current_job
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.scheduler import Scheduler
from sqla_jobs.schema.dialects import capabilities
from sqla_jobs.testing import Clock
from tests.runtime.app import LONG, PATIENCE, ended

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

NO_OFFSET: Final = timedelta(0)


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class Owned(ScheduleMixin, Base):
    """Schedules with a column of the app's own, which no declaration fills in."""

    __tablename__ = "owned"

    owner: Mapped[str] = mapped_column(nullable=False)


clock: Final = Clock(Base.metadata)


class Calendar:
    """An app with schedules, and a clock that stands at half past an hour: no slot comes by itself but in an hour."""

    def __init__(self, engine: Engine, async_engine: AsyncEngine | None = None) -> None:
        self.engine = engine
        self.sessions = sessionmaker(engine, expire_on_commit=False)
        self._factory: dict[str, Any] = {"sessions": self.sessions}
        if async_engine is not None:
            self._factory = {"async_sessions": async_sessionmaker(async_engine)}
        self.heard: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        self.ran: queue.SimpleQueue[datetime | None] = queue.SimpleQueue()
        self._reports: dict[Jobs[Job], Handler[Job, [], [], None]] = {}
        self._ends = ExitStack()
        self.jobs = self.registry()

    def registry(self, **options: Any) -> Jobs[Job]:
        """Make a registry with the one handler, as each release of the app has one."""
        defaults: dict[str, Any] = {"schedule": Schedule, "now": clock.now}
        jobs = Jobs(Job, **defaults | options)
        jobs.on("done")(self.heard.put)

        @jobs.handler
        def report() -> None:
            self.ran.put(current_job().slot)

        self._reports[jobs] = report
        return jobs

    def declare(self, name: str, jobs: Jobs[Job] | None = None, **options: Any) -> None:
        """Declare a schedule of the handler; hourly, with its jobs due at the slot."""
        jobs = jobs or self.jobs
        defaults: dict[str, Any] = {"cron": "@hourly", "offset": NO_OFFSET}
        jobs.schedule(name, self._reports[jobs], **defaults | options)

    def report_of(self, jobs: Jobs[Job]) -> Handler[Job, [], [], None]:
        """Give the handler of a registry."""
        return self._reports[jobs]

    def create(self) -> Calendar:
        """Create the tables, and set the clock."""
        Base.metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            now = clock.read(connection)
            self.next_hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
            clock.advance(connection, self.next_hour - timedelta(minutes=30) - now)
        return self

    def advance(self, by: timedelta) -> None:
        """Move the clock."""
        with self.engine.begin() as connection:
            clock.advance(connection, by)

    def execute(self, statement: Any) -> None:
        """Execute plain SQL, as a person at the database's shell does."""
        with self.engine.begin() as connection:
            connection.execute(text(statement) if isinstance(statement, str) else statement)

    def row(self, name: str) -> Schedule:
        """Read a schedule."""
        with self.sessions() as session:
            return session.scalars(select(Schedule).where(Schedule.name == name)).one()

    def made(self) -> list[Job]:
        """Read all jobs, by slot."""
        with self.sessions() as session:
            return list(session.scalars(select(Job).order_by(Job.slot, Job.id)))

    def worker(self, jobs: Jobs[Job] | None = None, **options: Any) -> Worker:
        """Make a worker; without LISTEN, which takes half a second to end, and without polls."""
        defaults: dict[str, Any] = self._factory | {"listen": False, "poll_interval": LONG}
        return Worker(jobs or self.jobs, **defaults | options)

    def run(self, jobs: Jobs[Job] | None = None) -> None:
        """Run until nothing is due."""
        with ended(threading.Thread(target=self.worker(jobs).run_until_idle, daemon=True)):
            pass

    def scheduler(self, jobs: Jobs[Job] | None = None) -> Scheduler:
        """Make a scheduler to tick by hand."""
        connector = Connector.of_app(self.engine, Opening(self.engine))
        self._ends.callback(connector.close)
        return Scheduler(jobs or self.jobs, connector, bounded=capabilities(self.engine.dialect).bounded)

    def wait_for_run(self) -> datetime:
        """Wait until a job has run, and give its slot."""
        slot = self.ran.get(timeout=PATIENCE)
        assert slot is not None
        return slot

    def close(self) -> None:
        """Close the connections of schedulers."""
        self._ends.close()


@contextmanager
def own_statements(app: Calendar) -> Generator[list[str]]:
    """Hear what this thread sends, also by the schedulers that are made in the block."""
    heard, own = list[str](), threading.get_ident()

    def hear(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if threading.get_ident() == own:
            heard.append(statement)

    with listening(app, hear):
        yield heard


@contextmanager
def listening(app: Calendar, listener: Callable[..., None]) -> Generator[None]:
    """Call *listener* before each statement of the app, and of the workers that are made in the block."""
    # Those on SQLite are without the events of the app's engine.
    target: Any = Engine if app.engine.dialect.name == "sqlite" else app.engine
    event.listen(target, "before_cursor_execute", listener)
    yield
    event.remove(target, "before_cursor_execute", listener)
