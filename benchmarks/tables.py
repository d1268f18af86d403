"""The app that is measured: its jobs and handlers, and a second job table that only hand-written code touches.

`raw_job` is mapped from the same mixin as `job`: the same columns, constraints and indexes, by the same DDL.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Connection, Text, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs import JobMixin, Jobs, current_job


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class RawJob(JobMixin, Base):
    """What no line of the library knows of."""

    __tablename__ = "raw_job"


class LeanJob(JobMixin, Base):
    """For the library once more: without what grows in `job`."""

    __tablename__ = "lean_job"


class Order(Base):
    """A row of the business that enqueues."""

    __tablename__ = "bench_order"

    id: Mapped[int] = mapped_column(BigInteger(), primary_key=True)
    name: Mapped[str] = mapped_column(Text())


class Note(Base):
    """What a handler writes through its session."""

    __tablename__ = "bench_note"

    id: Mapped[int] = mapped_column(BigInteger(), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger())
    text: Mapped[str] = mapped_column(Text())


AnyJob = type[Job] | type[RawJob] | type[LeanJob]

NOTE: Final = "written by a handler"

jobs = Jobs(Job)

async_jobs = Jobs(Job, name="async")
"""Apart from the others: a worker needs an async engine for these."""

lean_jobs = Jobs(LeanJob, name="lean")

quiet_jobs = Jobs(Job, name="quiet", notify=False)
"""Without the wake-up hint."""


@jobs.handler
def noop() -> None: ...


@lean_jobs.handler(name="noop")
def noop_lean() -> None: ...


@jobs.handler
def write_note(session: Session) -> None:
    session.add(Note(job_id=current_job().id, text=NOTE))


@jobs.handler
def ship(order_id: int) -> None: ...


@async_jobs.handler
async def noop_async() -> None: ...


@async_jobs.handler
async def write_note_async(session: AsyncSession) -> None:
    session.add(Note(job_id=current_job().id, text=NOTE))


@quiet_jobs.handler
def ship_quietly(order_id: int) -> None: ...


FILL: Final = """
INSERT INTO {table} (type, queue, payload, status, run_at, created_at, started_at, finished_at, locked_by,
                     attempts, claims)
SELECT CAST(:type AS text), CAST(:queue AS text), CAST('{{}}' AS jsonb), CAST(:status AS text), at, at, ended, ended,
       CASE WHEN ended IS NOT NULL THEN 'somebody' END, CASE WHEN ended IS NULL THEN 0 ELSE 1 END,
       CASE WHEN ended IS NULL THEN 0 ELSE 1 END
FROM (
    SELECT at, CASE WHEN CAST(:status AS text) = 'done' THEN at END AS ended
    FROM (
        SELECT statement_timestamp() + :due * interval '1 second' + n * interval '1 microsecond' AS at
        FROM generate_series(1, :rows) AS n
    ) AS instant
) AS row
"""


def fill(
    connection: Connection,
    model: AnyJob,
    rows: int,
    *,
    type: str = "noop",  # noqa: A002  # as the column
    queue: str = "default",
    status: str = "ready",
    due: float = -60.0,
) -> None:
    """Insert *rows* jobs without arguments, due a microsecond apart in the order of their ids, from *due* seconds on.

    With status "done" they look as a worker leaves them.
    """
    statement = text(FILL.format(table=model.__tablename__))
    row = {"type": type, "queue": queue, "status": status, "due": due, "rows": rows}
    connection.execute(statement, row)
