"""An app with schedules, as the tests of what people do with them know it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import ForeignKey, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.schedules import backfill, pause, preview, preview_backfill, resume, trigger
from sqla_jobs.runtime.context import current_job
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.testing import Clock
from tests.engines import build_engine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqla_jobs.operations.schedules import Slot


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"
    tenant: Mapped[str] = mapped_column("tenant_name", String(50), default="house")


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"
    notes: Mapped[list[Note]] = relationship(lazy="joined")


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedule.id"))


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


class Report(Base):
    """What the handler has written."""

    __tablename__ = "report"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


clock = Clock(Base.metadata)

jobs = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="shop", now=clock.now)

HOUR = timedelta(hours=1)
NOON = datetime(2027, 5, 3, 12, tzinfo=UTC)
HALF_PAST = NOON + HOUR / 2
"""What the clock is set to: half an hour from the slots around it."""


@jobs.handler(queue="reports", max_attempts=3)
def report(session: Session, title: str) -> None:
    session.add(Report(text=f"{title} {current_job().slot}"))


Operation = Callable[[Any, Jobs[Job], str], Any]


def _of_twelve(operation: Callable[..., Any]) -> Operation:
    return partial(operation, start=NOON, end=HALF_PAST)


OPERATIONS: dict[str, Operation] = {
    "trigger": trigger,
    "pause": pause,
    "resume": resume,
    "preview": preview,
    "preview_backfill": _of_twelve(preview_backfill),
    "backfill": _of_twelve(backfill),
}
"""What people do with a schedule; where a range is asked for, it has one slot."""


def emptied(url: str) -> str:
    """Give *url*, with the tables made and empty."""
    engine = build_engine(url, connect_args={"options": "-c lock_timeout=10s"})
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
        connection.exec_driver_sql(f"TRUNCATE {tables} RESTART IDENTITY")
    engine.dispose()
    return url


def set_clock(session: Session, to: datetime) -> None:
    """Set the database's clock; it goes on from there."""
    clock.advance(session, to - clock.read(session))


def add_hourly(session: Session, /, **parts: Any) -> Schedule:
    """Add the schedule `hourly` at half past twelve; *parts* are other columns, or other values of these."""
    set_clock(session, HALF_PAST)
    usual = {"name": "hourly", "job_type": "report", "payload": {"title": "sales"}, "cron": "0 * * * *"}
    schedule = Schedule(**usual | parts)
    schedule.notes = [Note(), Note()]
    session.add(schedule)
    session.flush()
    return schedule


def all_jobs(session: Session) -> list[Job]:
    """Give the jobs by id, as they are stored now."""
    session.expire_all()
    return list(session.scalars(select(Job).order_by(Job.id)))


def slots_of(session: Session) -> list[datetime | None]:
    """Give the slots of the jobs, by id."""
    return [job.slot for job in all_jobs(session)]


def starts(slots: Iterable[Slot]) -> list[datetime]:
    """Give the instants of *slots*."""
    return [slot.at for slot in slots]
