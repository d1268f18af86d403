"""An app with an archive, on a clock that tests move, and rows of its own that refer to its jobs."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import CheckConstraint, ForeignKey, String, delete, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin
from sqla_jobs.testing import Clock
from tests.engines import build_engine, fresh_database

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest
    from sqlalchemy import Engine

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"
    tenant: Mapped[str] = mapped_column("tenant_name", String(50), server_default="house")
    page: Mapped[int] = mapped_column(server_default=text("0"))


class ArchivedJob(ArchivedJobMixin, Base):
    """Its rows have no page below zero."""

    __tablename__ = "archived_job"
    tenant: Mapped[str] = mapped_column("owner", String(50))
    page: Mapped[int] = mapped_column(CheckConstraint("page >= 0", name="page"))


class Note(Base):
    """A row that refers to a job, which can't be deleted then: the statement fails, or only the commit."""

    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int | None] = mapped_column(ForeignKey("job.id"))
    late_job_id: Mapped[int | None] = mapped_column(ForeignKey("job.id", deferrable=True, initially="DEFERRED"))


class Part(Base):
    """A row that goes with its job."""

    __tablename__ = "part"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"))


clock: Final = Clock(Base.metadata)

jobs: Final = Jobs(Job, archive=ArchivedJob, now=clock.now)
no_archive: Final = Jobs(Job, now=clock.now)
"""The same table."""


@jobs.handler
def send(order_id: int) -> None: ...


@contextmanager
def made_once(kind: str, request: pytest.FixtureRequest) -> Generator[Engine]:
    """Give an engine on a database of that kind with the tables, for all tests of a module."""
    if kind == "sqlite":
        path = request.getfixturevalue("tmp_path_factory").mktemp("archive") / "jobs.sqlite"
        with made(f"sqlite:///{path}") as engine:
            yield engine
    else:
        with fresh_database(request.getfixturevalue("postgresql_server")) as url, made(url) as engine:
            yield engine


@contextmanager
def made(url: str, **options: Any) -> Generator[Engine]:
    """Give an engine on a database that has the tables from now on."""
    engine = build_engine(url, **options)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def empty(engine: Engine) -> None:
    """Delete all rows."""
    with engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(delete(table))


def add(session: Session, *, ago: timedelta | None = DAY, count: int = 1, **values: Any) -> list[int]:
    """Insert jobs that ended *ago* before now (None: that don't say when), a millisecond apart, and give their ids."""
    now = clock.read(session)
    rows = [
        {"type": "send", "run_at": now - 60 * DAY, "created_at": now - 60 * DAY, "status": "done"}
        | {"finished_at": None if ago is None else now - ago + timedelta(milliseconds=number)}
        | values
        for number in range(count)
    ]
    inserted = insert(Job).returning(Job.id, sort_by_parameter_order=True)
    return list(session.scalars(inserted, rows))


def ids(session: Session, model: type[Job | ArchivedJob], *, status: str | None = None) -> list[int]:
    """Give the ids of the rows, in order."""
    rows = select(model.id).order_by(model.id)
    return list(session.scalars(rows if status is None else rows.where(model.status == status)))


def columns(session: Session, model: type[Job | ArchivedJob], job_id: int) -> dict[str, Any]:
    """Give what a row holds, by attribute."""
    row = session.get_one(model, job_id)
    return {name: getattr(row, name) for name, _ in model.__mapper__.columns.items()}
