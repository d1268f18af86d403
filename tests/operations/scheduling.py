"""An app with schedules on a clock that tests set, and what one scheduler of it does: look, decide, write."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, event, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Session

from sqla_jobs.operations import scheduling
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.schedules import Declaration
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.testing import Clock
from tests.engines import build_engine, fresh_database

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import pytest
    from sqlalchemy import Connection, Engine

    from sqla_jobs.operations.scheduling import Fired, Look, Written
    from sqla_jobs.rules.schedules import Move

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)

START: Final = datetime(2027, 5, 3, 12, 0, 10, tzinfo=UTC)
"""What the clock is set to: ten seconds after a slot, so that the few seconds of a test reach none."""


LONGEST: Final = 60.0
"""Seconds until a race that hangs fails its test."""


def at(clock_time: str) -> datetime:
    """Give the instant of a time of that day: `at("12:01")`."""
    return datetime.fromisoformat(f"2027-05-03T{clock_time}+00:00")


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


clock = Clock(Base.metadata)


def work(days: int = 1) -> None:
    """Never called: what is tested here makes jobs, and runs none."""


def build(*types: str, name: str = "shop", declares: dict[str, str] | None = None) -> Jobs[Job]:
    """Build the registry of one release of an app: the types that it knows, and names with the cron texts it declares.

    What it declares makes jobs of the first type.
    """
    registry = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name=name, now=clock.now)
    handlers = [registry.handler(name=known, queue="reports", max_attempts=3)(work) for known in types]
    for schedule, cron in (declares or {}).items():
        registry.schedule(schedule, handlers[0].job(), cron=cron)
    return registry


jobs: Final = build("report")


class Scene:
    """The app's database. Each thing that a scheduler does has a transaction of its own, as it has in a worker."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        Base.metadata.create_all(engine)
        with self.transaction() as session:
            for table in Base.metadata.sorted_tables:
                session.execute(delete(table))
        self.move_to(START)

    @contextmanager
    def transaction(self) -> Generator[Session]:
        """Give a session whose transaction is committed at the end of the block."""
        with Session(self.engine) as session, session.begin():
            yield session

    def move_to(self, moment: datetime) -> None:
        """Set the database's clock; it goes on from there."""
        with self.transaction() as session:
            clock.advance(session, moment - clock.read(session))

    def sql(self, statement: str, **parameters: Any) -> None:
        """Do what somebody does at a console."""
        with self.transaction() as session:
            session.execute(text(statement), parameters)

    def add(self, name: str = "minutely", *, cron: str = "* * * * *", **columns: Any) -> int:
        """Add a schedule like any object, and give its id. Its jobs are due at once unless `offset` says otherwise."""
        usual: dict[str, Any] = {"job_type": "report", "offset": timedelta(0)}
        with self.transaction() as session:
            schedule = Schedule(name=name, cron=cron, **(usual | columns))
            session.add(schedule)
            session.flush()
            return schedule.id

    def planned(self, name: str = "minutely", *, cron: str = "* * * * *", **columns: Any) -> int:
        """Add a schedule, and have it planned."""
        schedule_id = self.add(name, cron=cron, **columns)
        assert self.tick() == []
        return schedule_id

    def look(self, registry: Jobs[Any] = jobs, *, limit: int = 500) -> Look:
        """Look."""
        with self.transaction() as session:
            return scheduling.look(session, registry, limit=limit)

    def write(self, found: Look, registry: Jobs[Any] = jobs) -> Written:
        """Decide on what was found, and write it."""
        with self.transaction() as session:
            return write(session, found, registry)

    def tick(self, registry: Jobs[Any] = jobs, moment: datetime | None = None) -> list[Fired]:
        """Look and write, at *moment* if it is given; give what was fired, by slot and name."""
        if moment is not None:
            self.move_to(moment)
        written = self.write(self.look(registry), registry)
        assert not written.unwritable
        return sorted(written.fired, key=lambda fired: (fired.slot, fired.name))

    def uphold(self, registry: Jobs[Any]) -> tuple[list[str], list[str]]:
        """Revive and retire; gives the names."""
        with self.transaction() as session:
            return scheduling.revive(session, registry), scheduling.retire(session, registry)

    def declare(self, registry: Jobs[Any], *declarations: Declaration) -> list[str]:
        """Declare what the registry does, or else *declarations*, and give the names that are somebody else's."""
        with self.transaction() as session:
            declared = scheduling.declare(session, registry, declarations or list(registry.declarations.values()))
        assert declared.failed == {}
        return declared.foreign

    def row(self, name: str = "minutely") -> dict[str, Any]:
        """Give what the schedule's row holds, column by column."""
        with self.transaction() as session:
            found = session.execute(select(Schedule.__table__).where(Schedule.name == name))
            return dict(found.mappings().one())

    def rows(self) -> list[dict[str, Any]]:
        """Give what all schedules' rows hold, by id."""
        with self.transaction() as session:
            found = session.execute(select(Schedule.__table__).order_by(Schedule.id))
            return [dict(row) for row in found.mappings()]

    def error(self, schedule_id: int) -> str | None:
        """Give why a schedule doesn't fire, whatever else its row holds."""
        with self.transaction() as session:
            return session.execute(select(Schedule.last_error).where(Schedule.id == schedule_id)).scalar_one()

    def jobs(self, schedule_id: int | None = None) -> list[Job]:
        """Give the jobs by slot, all of them or those of a schedule."""
        statement = select(Job).order_by(Job.slot, Job.id)
        if schedule_id is not None:
            statement = statement.where(Job.schedule_id == schedule_id)
        with Session(self.engine) as session:
            return list(session.scalars(statement))

    def race(self, *runners: Callable[[Session], Any]) -> list[Any]:
        """Run each in a transaction and thread of its own, let go at one moment, and give what they return."""
        barrier = threading.Barrier(len(runners))

        def run(runner: Callable[[Session], Any]) -> Any:
            with Session(self.engine) as session:
                barrier.wait(LONGEST)
                with session.begin():
                    return runner(session)

        with ThreadPoolExecutor(len(runners)) as threads:
            running = [threads.submit(run, runner) for runner in runners]
            return [future.result(LONGEST) for future in running]

    @contextmanager
    def noting_rollbacks(self) -> Generator[list[str]]:
        """Note each savepoint that is rolled back: what an error that somebody caught leaves behind."""
        noted: list[str] = []

        def note(_connection: Connection, name: str, _context: object) -> None:
            noted.append(name)

        event.listen(self.engine, "rollback_savepoint", note)
        yield noted
        event.remove(self.engine, "rollback_savepoint", note)

    def slots(self, schedule_id: int | None = None) -> list[datetime | None]:
        """Give the slots that have a job."""
        return [job.slot for job in self.jobs(schedule_id)]


@contextmanager
def engine_of(request: pytest.FixtureRequest, kind: str) -> Generator[Engine]:
    """Give an engine on a database of that kind, with the tables, for all tests of a module."""
    if kind == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("scheduling")
        engine = build_engine(f"sqlite:///{folder / 'jobs.sqlite'}")
        yield engine
        engine.dispose()
        return
    with fresh_database(request.getfixturevalue("postgresql_server")) as url:
        engine = build_engine(url, connect_args={"options": "-c lock_timeout=10s"})
        yield engine
        engine.dispose()


def write(session: Session, found: Look, registry: Jobs[Any] = jobs) -> Written:
    """Decide on what was found, and write it, batch by batch."""
    written = scheduling.Written()
    for batch in scheduling.batches(moves(found, registry)):
        more = scheduling.write(session, registry, batch, now=found.now)
        written.moves += more.moves
        written.fired += more.fired
        written.unwritable |= more.unwritable
    return written


def moves(found: Look, registry: Jobs[Any] = jobs) -> list[Move]:
    """Decide on what was found."""
    return scheduling.moves(registry, found)


def insert_job(session: Session, key: str) -> int:
    """Insert a job of that key, as somebody else may have done, and give its id."""
    row = {"type": "report", "idempotency_key": key, "run_at": START, "created_at": START}
    job_id: int = session.execute(insert(Job.__table__).values(row).returning(Job.id)).scalar_one()  # type: ignore[arg-type]
    return job_id
