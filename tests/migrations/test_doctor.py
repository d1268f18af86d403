from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import MetaData, create_engine, event
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from sqla_jobs import ArchivedJobMixin, InvalidOption, JobMixin, Jobs, ScheduleMixin
from sqla_jobs.migrations import doctor
from tests.engines import build_async_engine, build_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine

    from sqla_jobs.migrations import Finding

OF_THE_TEST_SERVER = {"fsync", "autovacuum-off", "untuned"}
"""What is found on a server for tests, and tables that no revision has tuned, whatever a test does."""

CONVENTION = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}


def build_jobs(metadata: MetaData | None = None, *, prefix: str = "", **columns: Any) -> Jobs[Any]:
    class Base(DeclarativeBase):
        pass

    Base.metadata = metadata or MetaData()
    job = type("Job", (JobMixin, Base), {"__tablename__": f"{prefix}job"} | columns)
    schedule = type("Schedule", (ScheduleMixin, Base), {"__tablename__": f"{prefix}schedule"})
    archive = type("Archived", (ArchivedJobMixin, Base), {"__tablename__": f"{prefix}archived_job"})
    return Jobs(job, schedule=schedule, archive=archive)


def metadata_of(jobs: Jobs[Any]) -> MetaData:
    return jobs.table.table.metadata


def dataclasses() -> Jobs[Any]:
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class Job(JobMixin, Base):
        __tablename__ = "job"
        tenant_id: Mapped[int | None] = mapped_column(default=None)

    return Jobs(Job)


def inherited() -> Jobs[Any]:
    class Base(DeclarativeBase):
        pass

    class Job(JobMixin, Base):
        __tablename__ = "job"
        kind: Mapped[str | None]
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012  # as SQLAlchemy types it

    class Mail(Job):
        address: Mapped[str | None] = mapped_column(index=True)
        __mapper_args__ = {"polymorphic_identity": "mail"}  # noqa: RUF012  # as SQLAlchemy types it

    return Jobs(Mail)


SHAPES: dict[str, Callable[[], Jobs[Any]]] = {
    "plain": build_jobs,
    "schema": lambda: build_jobs(MetaData(schema="other")),
    "naming convention": lambda: build_jobs(MetaData(naming_convention=CONVENTION)),
    "odd names": lambda: build_jobs(MetaData(schema="other"), prefix="Müll, 'or' not "),
    "long names": lambda: build_jobs(prefix="x" * 50),
    "dataclasses": dataclasses,
    "single-table inheritance": inherited,
    "own parts": lambda: build_jobs(
        tenant=mapped_column(sa.String(9), nullable=False),
        __table_args__=(
            sa.Index("lowered", sa.text("lower(queue)")),
            sa.Index("some", "tenant", postgresql_where=sa.text("tenant LIKE 'a%'")),
            sa.CheckConstraint("tenant > ''"),
            sa.UniqueConstraint("tenant", "idempotency_key"),
        ),
    ),
}


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    """Give an engine on an empty database of each kind, which has a schema `other`."""
    engine = build_engine(database_url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def attach(connection: Any, _record: object) -> None:
            connection.execute(f"ATTACH '{tmp_path / 'other.sqlite'}' AS other")
    else:
        run(engine, "CREATE SCHEMA other")
    yield engine
    engine.dispose()


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def found_by(engine: Engine, jobs: Jobs[Any]) -> list[Finding]:
    """Let the doctor look, and leave out what the test server is to blame for."""
    return [finding for finding in doctor(engine, jobs) if finding.code not in OF_THE_TEST_SERVER]


@pytest.mark.parametrize("shape", SHAPES)
def test_doctor_finds_nothing_when_tables_are_new(shape: str, engine: Engine) -> None:
    """Tables as `create_all` makes them are all well, in whatever shape an app maps them."""
    jobs = SHAPES[shape]()
    metadata_of(jobs).create_all(engine)

    assert found_by(engine, jobs) == []


def test_doctor_follows_schema_translate_map(engine: Engine) -> None:
    """The tables are looked for where the engine's execution options say that they are."""
    jobs = build_jobs(MetaData(schema="tenant"))
    translated = engine.execution_options(schema_translate_map={"tenant": "other"})
    metadata_of(jobs).create_all(translated)

    assert found_by(translated, jobs) == []
    assert {finding.code for finding in found_by(engine, jobs)} == {"missing-table"}

    run(engine, "DROP INDEX other.ix_job_ready")
    (missing,) = found_by(translated, jobs)
    assert "CREATE INDEX" in missing.remedy
    cure(translated, missing)
    assert found_by(translated, jobs) == []


def test_doctor_sees_two_job_tables_apart(engine: Engine) -> None:
    """Each registry's tables are looked at, and no other's."""
    metadata = MetaData()
    first, second = build_jobs(metadata), build_jobs(metadata, prefix="b_")
    metadata.create_all(engine)
    run(engine, "DROP INDEX ix_b_job_ready")

    assert found_by(engine, first) == []
    assert [finding.code for finding in found_by(engine, second)] == ["missing-index"]


def test_doctor_names_each_missing_table(engine: Engine) -> None:
    """Without tables there is an error for each that the registry has, and none of what follows from it."""
    jobs = build_jobs()

    found = found_by(engine, jobs)

    assert [(finding.code, finding.severity) for finding in found] == [("missing-table", "error")] * 3
    assert "archived_job" in found[2].what
    assert "alembic upgrade head" in found[0].remedy


POSTGRESQL = {
    "column": ("missing-column", "error", "ALTER TABLE job DROP COLUMN trace"),
    "own column": ("missing-column", "error", "ALTER TABLE job DROP COLUMN tenant_id"),
    "column nobody fills": ("unfilled-column", "error", "ALTER TABLE job ADD COLUMN shop_id INT NOT NULL"),
    "shorter text": ("column-type", "error", "ALTER TABLE job ALTER last_error TYPE VARCHAR(100)"),
    "smaller number": ("column-type", "error", "ALTER TABLE job ALTER id TYPE INTEGER"),
    "no zone": ("column-type", "error", "ALTER TABLE job ALTER locked_until TYPE TIMESTAMP"),
    "other json": ("column-type", "error", "ALTER TABLE job ALTER result TYPE JSON"),
    "other number": ("column-type", "error", 'ALTER TABLE schedule ALTER "offset" TYPE NUMERIC'),
    "not null": ("column-nullable", "error", "ALTER TABLE job ALTER trace SET NOT NULL"),
    "null": ("column-nullable", "warning", "ALTER TABLE job ALTER run_at DROP NOT NULL"),
    "default": ("missing-default", "error", "ALTER TABLE job ALTER status DROP DEFAULT"),
    "default of json": ("missing-default", "error", "ALTER TABLE job ALTER errors DROP DEFAULT"),
    "other default": ("column-default", "warning", "ALTER TABLE schedule ALTER enabled SET DEFAULT false"),
    "sequence": ("no-autoincrement", "error", "ALTER TABLE job ALTER id DROP DEFAULT"),
    "primary key": ("primary-key", "error", "ALTER TABLE job DROP CONSTRAINT job_pkey"),
    "check": ("missing-check", "warning", "ALTER TABLE job DROP CONSTRAINT ck_job_status"),
    "narrower check": (
        "check-text",
        "error",
        "ALTER TABLE job DROP CONSTRAINT ck_job_status, ADD CHECK (status IN ('ready', 'running', 'done', 'failed'))",
    ),
    "unique": ("missing-unique", "error", "ALTER TABLE schedule DROP CONSTRAINT uq_schedule_name"),
}

SQLITE = {
    "column": ("missing-column", "error", "trace JSON,", ""),
    "column nobody fills": ("unfilled-column", "error", "trace JSON,", "trace JSON, shop_id INT NOT NULL,"),
    "other type": ("column-type", "error", "locked_until DATETIME", "locked_until TEXT"),
    "not null": ("column-nullable", "error", "trace JSON", "trace JSON NOT NULL"),
    "null": ("column-nullable", "warning", "run_at DATETIME NOT NULL", "run_at DATETIME"),
    "default": ("missing-default", "error", "DEFAULT 'ready' ", ""),
    "other default": ("column-default", "warning", "DEFAULT '5'", "DEFAULT '7'"),
    "autoincrement": ("no-autoincrement", "error", "AUTOINCREMENT", ""),
    "check": ("missing-check", "warning", "CHECK (status IN", "CHECK (queue NOT IN"),
    "wider check": ("check-text", "warning", "'dead')", "'dead', 'lost')"),
    "unique": ("missing-unique", "error", "UNIQUE (name)", "CHECK (name > '')"),
}

INDEXES = {
    "no index": ("missing-index", "warning", "ix_job_ready", None),
    "no key": ("missing-index", "error", "ix_job_key", None),
    "other rows": ("index-predicate", "warning", "ix_job_running", "(locked_by, id) WHERE status = 'ready'"),
    "all rows": ("index-predicate", "warning", "ix_job_running", "(locked_by, id)"),
    "other columns": ("index-columns", "warning", "ix_job_running", "(id, locked_by) WHERE status = 'running'"),
    "not unique": ("index-unique", "error", "ix_job_key", "(idempotency_key) WHERE idempotency_key IS NOT NULL"),
}

CURED_BY_AUTOGENERATE = {"missing-column", "column-type", "missing-unique"}


@pytest.mark.parametrize("case", POSTGRESQL)
def test_doctor_finds_what_differs_on_postgresql(case: str, postgresql_url: str) -> None:
    """Each difference is one finding, that comes with what to do about it; done, it is gone."""
    jobs = build_jobs(tenant_id=mapped_column(sa.Integer))
    engine = build_engine(postgresql_url)
    metadata_of(jobs).create_all(engine)
    code, severity, statement = POSTGRESQL[case]
    run(engine, statement)

    (found,) = found_by(engine, jobs)

    assert (found.code, found.severity) == (code, severity)
    assert found.remedy
    if code not in CURED_BY_AUTOGENERATE:
        cure(engine, found)
        assert found_by(engine, jobs) == []
    engine.dispose()


@pytest.mark.parametrize("case", SQLITE)
def test_doctor_finds_what_differs_on_sqlite(case: str, sqlite_url: str) -> None:
    """Each difference is one finding, and its remedy, a copy of the table, loses nothing else."""
    jobs = build_jobs()
    engine = build_engine(sqlite_url)
    metadata_of(jobs).create_all(engine)
    code, severity, old, new = SQLITE[case]
    remake(engine, old, new)

    (found,) = found_by(engine, jobs)

    assert (found.code, found.severity) == (code, severity)
    assert found.remedy
    if code not in CURED_BY_AUTOGENERATE:
        cure(engine, found)
        assert found_by(engine, jobs) == []
    engine.dispose()


@pytest.mark.parametrize("case", INDEXES)
def test_doctor_finds_what_differs_in_indexes(case: str, engine: Engine) -> None:
    """An index that is missing or other than the model's is found, and its remedy is the statement that mends it."""
    jobs = build_jobs()
    metadata_of(jobs).create_all(engine)
    code, severity, name, other = INDEXES[case]
    run(engine, f"DROP INDEX {name}", *([f"CREATE INDEX {name} ON job {other}"] if other else []))

    (found,) = found_by(engine, jobs)

    assert (found.code, found.severity) == (code, severity)
    assert name in found.what
    cure(engine, found)
    assert found_by(engine, jobs) == []


@pytest.mark.parametrize(
    "predicate",
    [
        "status = 'ready'",
        "(status)='ready'",
        "\n  status\n  =\n  'ready'",
        "\"status\" = 'ready'",
    ],
)
def test_doctor_reads_a_predicate_however_it_is_written(predicate: str, engine: Engine) -> None:
    """White space, quotes, parentheses and casts make no other predicate; nor does another name another index."""
    jobs = build_jobs()
    metadata_of(jobs).create_all(engine)
    run(engine, "DROP INDEX ix_job_ready", f"CREATE INDEX mine ON job (queue, type, run_at, id) WHERE {predicate}")

    assert found_by(engine, jobs) == []


def test_doctor_finds_an_index_that_failed_to_be_built(postgresql_url: str) -> None:
    """What CREATE INDEX CONCURRENTLY leaves when it fails is there by name, and is no index."""
    jobs = build_jobs()
    engine = build_engine(postgresql_url)
    metadata_of(jobs).create_all(engine)
    twice = "INSERT INTO job (type, run_at, created_at, idempotency_key) VALUES ('a', now(), now(), 'k')"
    run(engine, "DROP INDEX ix_job_key", twice, twice)
    by_itself = engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(IntegrityError):
        run(
            by_itself,
            "CREATE UNIQUE INDEX CONCURRENTLY ix_job_key ON job (idempotency_key) WHERE idempotency_key IS NOT NULL",
        )

    (found,) = found_by(engine, jobs)

    assert (found.code, found.severity) == ("index-invalid", "error")
    run(engine, "DELETE FROM job")
    run(by_itself, found.remedy)
    assert found_by(engine, jobs) == []
    engine.dispose()


def test_doctor_puts_errors_first(engine: Engine) -> None:
    """Errors come before warnings, and warnings before hints."""
    jobs = build_jobs()
    metadata_of(jobs).create_all(engine)
    run(engine, "DROP INDEX ix_job_ready", "DROP INDEX ix_job_key")

    severities = [finding.severity for finding in doctor(engine, jobs)]

    assert severities == sorted(severities, key=["error", "warning", "hint"].index)
    assert severities[:2] == ["error", "warning"]


async def look(url: str, jobs: Jobs[Any]) -> list[Finding]:
    engine = build_async_engine(url)
    found = await doctor(engine, jobs)
    await engine.dispose()
    return found


def test_doctor_is_awaited_for_an_async_engine(async_url: str) -> None:
    """An AsyncEngine gets the same answers, from each driver."""
    jobs = build_jobs()
    sync_url = async_url.replace("+asyncpg", "+psycopg").replace("+aiosqlite", "+pysqlite")
    engine = build_engine(sync_url)
    metadata_of(jobs).create_all(engine)
    run(engine, "DROP INDEX ix_job_running")

    found = asyncio.run(look(async_url, jobs))

    assert found == doctor(engine, jobs)
    assert "missing-index" in {finding.code for finding in found}
    engine.dispose()


def test_doctor_raises_the_drivers_error_when_the_database_is_away() -> None:
    """A database that can't be reached is no finding."""
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")

    with pytest.raises(OperationalError):
        doctor(engine, build_jobs())


def test_doctor_refuses_what_is_no_engine(engine: Engine) -> None:
    """A connection or a session is refused by name."""
    with engine.connect() as connection, pytest.raises(InvalidOption, match="not a Connection"):
        doctor(connection, build_jobs())  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue,reportArgumentType]


def cure(engine: Engine, finding: Finding) -> None:
    """Do what the remedy says, where it says it in code."""
    with engine.begin() as connection:
        if operation := re.search(r"(with op\.batch_alter_table|op\.execute\().*?(?=, and setval|$)", finding.remedy):
            with Operations.context(MigrationContext.configure(connection)) as op:
                exec(operation[0], {"op": op, "sa": sa})  # noqa: S102  # it is Python for a revision
            return
        statements = re.search(r"(DROP|CREATE) .*?(?= \(in a revision|$)", finding.remedy, re.DOTALL)
        assert statements, finding.remedy
        for statement in statements[0].split("; "):
            connection.exec_driver_sql(statement)


def remake(engine: Engine, old: str, new: str) -> None:
    """Make the tables of an SQLite file anew, with other words in their definitions."""
    with engine.begin() as connection:
        made = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").scalars()
        definitions = list(made)
        assert any(old in definition for definition in definitions)
        for name in ("job", "schedule", "archived_job"):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        is_changed = False
        for definition in definitions:
            is_first = old in definition and not is_changed
            connection.exec_driver_sql(definition.replace(old, new, 1) if is_first else definition)
            is_changed = is_changed or is_first
