"""Code of one version on the tables of another, and tables that are migrated under a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import String, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sqla_jobs import ArchivedJobMixin, JobMixin, Jobs, Retry, ScheduleMixin, Worker, WorkerError, current_job, enqueue
from tests.migrations.freeze import ArchivedJob, Job, Schedule, path, statements, versions
from tests.runtime.app import LONG

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.runtime.app import App

LATER: Final = (
    "ALTER TABLE job ADD COLUMN later_nullable VARCHAR(40)",
    "ALTER TABLE job ADD COLUMN later_default INTEGER DEFAULT 7 NOT NULL",
    "ALTER TABLE schedule ADD COLUMN later_nullable VARCHAR(40)",
    "ALTER TABLE schedule ADD COLUMN later_default INTEGER DEFAULT 7 NOT NULL",
)
"""What a later version may add, by the rule of docs/upgrading.md."""


def thaw(engine: Engine, version: str) -> None:
    """Make the tables of a version from its frozen SQL."""
    with engine.begin() as connection:
        for statement in path(version, engine.dialect.name).read_text("utf-8").split(";\n"):
            if statement.strip():
                connection.execute(text(statement.replace(":", "\\:")))


def lead(engine: Engine, *, job: type[Any] = Job, schedule: type[Any] = Schedule) -> list[tuple[str, str, int]]:
    """Lead jobs through their lives on the tables that are there; return what became of them."""
    jobs: Jobs[Any] = Jobs(job, schedule=schedule, archive=ArchivedJob, name="upgrading")
    sessions = sessionmaker(engine)

    @jobs.handler
    def write(session: Session) -> str:
        if current_job().attempt == 1:
            raise Retry(delay=timedelta(0))
        return "written"

    @jobs.handler(max_attempts=1)
    def fail() -> None:
        raise ValueError("it always does")

    jobs.schedule("declared", fail, cron="* * * * *")
    insert = "INSERT INTO job (type, run_at, created_at) VALUES ('write', '2026-01-01 00:00:00', '2026-01-01 00:00:00')"
    with sessions.begin() as session:
        session.execute(text(insert))
    Worker(jobs, sessions, listen=False).run_until_idle()
    backdate = 'UPDATE schedule SET next_run_at = created_at, "offset" = 0'
    with sessions.begin() as session:
        session.execute(text(backdate))
    Worker(jobs, sessions, listen=False).run_until_idle(within=timedelta(0))
    with sessions() as session:
        rows = session.execute(text("SELECT type, status, attempts FROM job ORDER BY id")).all()
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("version", versions())
def test_f62_worker_runs_on_the_tables_of_each_version(version: str, engine: Engine) -> None:
    """Today's worker serves tables that were made by any released version, also before they are migrated."""
    thaw(engine, version)

    ended = lead(engine)

    assert ended[0] == ("write", "done", 2)
    assert all(row == ("fail", "dead", 1) for row in ended[1:])


def test_f62_worker_runs_when_the_tables_have_columns_of_a_later_version(engine: Engine) -> None:
    """Old workers go on while the tables are migrated already: enqueue, run, retry, fire, reap name their columns."""
    thaw(engine, versions()[-1])
    with engine.begin() as connection:
        for statement in LATER:
            connection.execute(text(statement))
    jobs: Jobs[Job] = Jobs(Job)

    @jobs.handler
    def last() -> None: ...

    ended = lead(engine)
    with Session(engine) as session, session.begin():
        job = enqueue(session, last)
        assert job.status == "ready"
    Worker(jobs, sessionmaker(engine), listen=False).run_until_idle()

    assert ended[0] == ("write", "done", 2)
    with engine.connect() as connection:
        later = connection.execute(text("SELECT DISTINCT later_nullable, later_default FROM job")).all()
    assert later == [(None, 7)]


def test_f62_worker_runs_when_the_tables_lack_a_later_nullable_column(engine: Engine) -> None:
    """New workers serve tables that are not migrated yet, if what these lack is nullable and not needed."""

    class Base(DeclarativeBase):
        pass

    class LaterJob(JobMixin, Base):
        __tablename__ = "job"
        later_nullable: Mapped[str | None] = mapped_column(String(40))

    class LaterSchedule(ScheduleMixin, Base):
        __tablename__ = "schedule"
        later_nullable: Mapped[str | None] = mapped_column(String(40))

    thaw(engine, versions()[-1])

    ended = lead(engine, job=LaterJob, schedule=LaterSchedule)

    assert ended[0] == ("write", "done", 2)
    assert "later_nullable" not in {column["name"] for column in inspect(engine).get_columns("job")}


RUNNING: Final = (*LATER[:2], "CREATE INDEX later ON job (later_default)")

ENOUGH: Final = 8
"""Jobs in a row after which drivers have prepared each statement, or not."""


def migrate_while_running(app: App, handler: Any) -> None:
    """Have a worker do jobs one after the other, before, between and after the statements of a migration."""
    with app.worker(poll_interval=LONG):
        for statement in (None, *RUNNING):
            if statement is not None:
                with app.engine.begin() as connection:
                    connection.execute(text(statement))
            for _ in range(ENOUGH):
                app.add(handler)
                app.hear("done")


def test_f62_worker_goes_on_while_its_tables_are_migrated(app: App) -> None:
    """Columns and an index that come under a running worker cost no attempt, whatever its connections remember."""

    @app.jobs.handler
    def load(session: Session) -> int:
        job_id: int = current_job().load(session).id
        return job_id

    migrate_while_running(app, load)

    assert app.statuses() == ["done"] * ENOUGH * (len(RUNNING) + 1)


def test_f62_worker_with_async_sessions_goes_on_while_its_tables_are_migrated(async_app: App) -> None:
    """So it is with each async driver."""

    @async_app.jobs.handler
    async def load(session: AsyncSession) -> int:
        job_id: int = (await current_job().load(session)).id
        return job_id

    migrate_while_running(async_app, load)

    assert async_app.statuses() == ["done"] * ENOUGH * (len(RUNNING) + 1)


@pytest.mark.parametrize(("table", "column"), [("job", "refunds"), ("job", "result"), ("schedule", "slots_missed")])
def test_f62_worker_is_refused_when_the_tables_lack_a_column(table: str, column: str, engine: Engine) -> None:
    """It ends with one error that names table, column and command, before it has taken a job."""
    thaw(engine, versions()[-1])
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))

    with pytest.raises(WorkerError, match=rf"(?s){table}.*lacks.*{column}.*alembic upgrade head"):
        lead(engine)

    with engine.connect() as connection:
        assert connection.execute(text("SELECT status, attempts FROM job")).all() == [("ready", 0)]


@pytest.mark.parametrize("mixin", [JobMixin, ScheduleMixin, ArchivedJobMixin])
def test_f62_columns_are_nullable_or_have_a_default_when_they_come_later(mixin: type[Any]) -> None:
    """What a version adds to the first one's tables is nullable or has a constant default in the database."""
    tables = {JobMixin: "job", ScheduleMixin: "schedule", ArchivedJobMixin: "archived_job"}
    first = path(versions()[0], "sqlite").read_text("utf-8")
    model = {JobMixin: Job, ScheduleMixin: Schedule, ArchivedJobMixin: ArchivedJob}[mixin]
    made = next(part for part in first.split(";\n") if f"CREATE TABLE {tables[mixin]} (" in part)

    new = [column for column in inspect(model).local_table.c if f"\n\t{column.name} " not in made.replace('"', "")]

    assert all(column.nullable or column.server_default is not None for column in new)


def test_f62_frozen_tables_are_todays_when_nothing_was_released_since() -> None:
    """The newest frozen file is what the models say; when a column is added, freeze the version that has it."""
    for database in ("postgresql", "sqlite"):
        kept = path(versions()[-1], database).read_text("utf-8")

        assert kept == ";\n\n".join(statements(database)) + ";\n"
