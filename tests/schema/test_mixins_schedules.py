from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Index,
    Integer,
    MetaData,
    String,
    UniqueConstraint,
    delete,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.schema import CreateIndex, CreateTable

from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.status import JobStatus
from tests.schema.models import COLUMNS, NULLABLE, new_dialect, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

SCHEDULE_COLUMNS = [
    *("id", "name", "job_type", "payload", "queue", "cron", "timezone", "offset", "enabled", "catch_up"),
    *("catch_up_limit", "overlap", "declared_by", "retired_at", "planned_cron", "planned_timezone", "planned_enabled"),
    *("next_run_at", "last_slot", "slots_missed", "overlaps_skipped", "last_error", "created_at"),
]
SCHEDULE_NULLABLE = {
    *("queue", "offset", "declared_by", "retired_at", "planned_cron", "planned_timezone", "planned_enabled"),
    *("next_run_at", "last_slot", "last_error"),
}
DEFAULTS: dict[str, Any] = {
    "payload": {},
    "queue": None,
    "timezone": "UTC",
    "offset": None,
    "enabled": True,
    "catch_up": "latest",
    "catch_up_limit": 100,
    "overlap": "allow",
    "slots_missed": 0,
    "overlaps_skipped": 0,
    "last_error": None,
}
NEW: dict[str, Any] = {"name": "nightly", "job_type": "send", "cron": "0 2 * * *"}

LONG = "t" * 63
"""As long as PostgreSQL lets a table's name be."""

ALEMBICS = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}


def models(*, prefix: str = "", naming: Any = None, arguments: Any = None) -> SimpleNamespace:
    """Map the three tables on a base of their own; *arguments* are the `__table_args__` of the schedules'."""

    class Base(DeclarativeBase):
        metadata = MetaData(naming_convention=naming)

    class Job(JobMixin, Base):
        __tablename__ = f"{prefix}job"

    class Schedule(ScheduleMixin, Base):
        __tablename__ = prefix or "schedule"
        __table_args__ = arguments if arguments is not None else ()
        tenant: Mapped[str] = mapped_column(String(50), server_default="house")

    class ArchivedJob(ArchivedJobMixin, Base):
        __tablename__ = f"{prefix}archived_job"[-63:]

    return SimpleNamespace(Base=Base, Job=Job, Schedule=Schedule, ArchivedJob=ArchivedJob)


MODELS = models()
Schedule, ArchivedJob = MODELS.Schedule, MODELS.ArchivedJob


@pytest.fixture
def tables(engine: Engine) -> Engine:
    """Give an engine on a database that has the three tables."""
    MODELS.Base.metadata.create_all(engine)
    return engine


def test_schedules_have_the_columns_of_the_design_in_order(tables: Engine) -> None:
    """The database has each column once, ours first and in the documented order, and null where it may be."""
    found = inspect(tables).get_columns("schedule")

    assert [column["name"] for column in found] == [*SCHEDULE_COLUMNS, "tenant"]
    assert {column["name"] for column in found if column["nullable"]} == SCHEDULE_NULLABLE
    assert {column["name"] for column in found if column["default"] is not None} - {"id"} == {
        *("payload", "timezone", "enabled", "catch_up", "catch_up_limit", "overlap", "slots_missed"),
        *("overlaps_skipped", "tenant"),
    }


def test_archive_has_a_jobs_columns_and_when_it_was_archived(tables: Engine) -> None:
    """A finished job fits in as it was, and its times and defaults are those of the job table."""
    archive, jobs = (inspect(tables).get_columns(name) for name in ("archived_job", "job"))

    assert [column["name"] for column in archive] == [*COLUMNS, "archived_at"]
    assert {column["name"] for column in archive if column["nullable"]} == NULLABLE
    for kept, lived in zip(archive[1:], jobs[1:], strict=False):
        assert (kept["default"], repr(kept["type"])) == (lived["default"], repr(lived["type"]))
    assert archive[0]["default"] is None


def test_columns_have_stock_types() -> None:
    """Each column is of a type that a revision can write, with its length, and times have their zone."""
    found = {column.name: column.type for column in table_of(Schedule).columns}

    lengths = {name: each.length for name, each in found.items() if isinstance(each, String) and name != "last_error"}
    assert lengths == dict.fromkeys(
        ("name", "job_type", "queue", "cron", "timezone", "declared_by", "planned_cron", "planned_timezone"), 255
    ) | {"catch_up": 16, "overlap": 16, "tenant": 50}
    times = {name for name, each in found.items() if repr(each) == repr(DateTime(timezone=True))}
    assert times == {"retired_at", "next_run_at", "last_slot", "created_at"}
    for name, kind in {"enabled": Boolean, "catch_up_limit": Integer, "slots_missed": BigInteger}.items():
        assert isinstance(found[name], kind)
    assert (repr(found["offset"]), type(found["offset"]).__module__) == ("Double()", "sqlalchemy.types")


def test_row_inserted_by_plain_sql_is_a_schedule(tables: Engine) -> None:
    """A name, a type, a cron text and a time are all that plain SQL has to write; the rest has its defaults."""
    row = (
        "INSERT INTO schedule (name, job_type, cron, created_at) VALUES ('nightly', 'send', '0 2 * * *', '2024-01-01')"
    )
    with tables.begin() as connection:
        connection.execute(text(row))

    with Session(tables) as session:
        schedule = session.scalars(select(Schedule)).one()
        assert {name: getattr(schedule, name) for name in DEFAULTS} == DEFAULTS


def test_row_inserted_through_the_orm_has_its_time(tables: Engine) -> None:
    """A schedule added as an object has `created_at` from the database's clock, in UTC, and every default."""
    with Session(tables) as session:
        session.add(schedule := Schedule(**NEW))
        session.commit()

        assert schedule.created_at.utcoffset() == timedelta(0)
        assert {name: getattr(schedule, name) for name in DEFAULTS | NEW} == DEFAULTS | NEW


def test_columns_that_are_not_nullable_refuse_null(tables: Engine) -> None:
    """A schedule is never without what every schedule has."""
    with tables.connect() as connection:
        for name in sorted(set(SCHEDULE_COLUMNS) - SCHEDULE_NULLABLE - {"id"}):
            values = {"name": "'n'", "job_type": "'s'", "cron": "'x'", "created_at": "'2024-01-01'"} | {name: "NULL"}
            row = f"({', '.join(values)}) VALUES ({', '.join(values.values())})"
            with pytest.raises(IntegrityError, match=name), connection.begin_nested():
                connection.exec_driver_sql(f"INSERT INTO schedule {row}")


def test_name_is_unique(tables: Engine) -> None:
    """Two schedules of one name are refused, however they are written; upper and lower case are two."""
    with Session(tables) as session:
        session.add_all(Schedule(**NEW | {"name": name}) for name in ("nightly", "Nightly"))
        session.commit()

        session.add(Schedule(**NEW))
        with pytest.raises(IntegrityError):
            session.flush()


def test_key_comes_again_in_the_archive(tables: Engine) -> None:
    """A key is free once its job is archived, so the archive may have it twice; ids are the jobs' own."""
    kept = {"type": "send", "idempotency_key": "k", "status": "done"}
    with Session(tables) as session:
        session.add_all(ArchivedJob(id=number, **kept) for number in (7, 3))
        session.commit()

        found = session.scalars(select(ArchivedJob).order_by(ArchivedJob.id)).all()
        assert [(job.id, job.idempotency_key) for job in found] == [(3, "k"), (7, "k")]
        assert all(job.archived_at.utcoffset() is not None for job in found)


def test_status_is_checked_in_the_archive(tables: Engine) -> None:
    """Also in the archive only the five statuses can be stored."""
    with tables.connect() as connection:
        for number, status in enumerate([*JobStatus, "gone"]):
            row = insert(ArchivedJob).values(id=number, type="send", status=status)
            if status in list(JobStatus):
                connection.execute(row)
            else:
                with pytest.raises(IntegrityError, match="ck_archived_job_status"):
                    connection.execute(row)


def test_id_is_never_reused_when_the_last_schedule_was_deleted(tables: Engine) -> None:
    """A slot's key has the schedule's id in it: a new schedule must never find the jobs of one that is gone."""
    with Session(tables) as session:
        session.add_all([Schedule(**NEW), last := Schedule(**NEW | {"name": "last"})])
        session.commit()
        last_id = last.id
        session.execute(delete(Schedule))
        session.commit()
        session.add(new := Schedule(**NEW))
        session.commit()

        assert new.id > last_id


def test_only_tables_that_number_their_rows_do_so_by_autoincrement(sqlite_engine: Engine) -> None:
    """On SQLite the schedules' ids are AUTOINCREMENT; an archived job brings its own."""
    schedules, archive = (str(CreateTable(table_of(model)).compile(sqlite_engine)) for model in (Schedule, ArchivedJob))

    assert "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT" in schedules
    assert "AUTOINCREMENT" not in archive
    assert "id BIGINT NOT NULL" in str(CreateTable(table_of(ArchivedJob)).compile(dialect=new_dialect("postgresql")))


EDITED = (
    "planned_cron IS NULL OR cron != planned_cron OR planned_timezone IS NULL OR timezone != planned_timezone "
    "OR planned_enabled IS NULL OR enabled != planned_enabled OR enabled = (next_run_at IS NULL)"
)
INDEX_TEXTS = {
    "ix_schedule_due": "ON schedule (next_run_at, id) WHERE retired_at IS NULL",
    "ix_schedule_edited": f"ON schedule (id) WHERE retired_at IS NULL AND ({EDITED})",
    "ix_schedule_retired": "ON schedule (retired_at) WHERE retired_at IS NOT NULL",
    "ix_archived_job_key": "ON archived_job (idempotency_key) WHERE idempotency_key IS NOT NULL",
    "ix_archived_job_archived": "ON archived_job (archived_at, id)",
}


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_indexes_are_the_same_on_both_databases(database: str) -> None:
    """The text of each index is migration history: it changes on purpose only, and holds no literal of a database."""
    indexes = [*table_of(Schedule).indexes, *table_of(ArchivedJob).indexes]

    ddl = {str(index.name): str(CreateIndex(index).compile(dialect=new_dialect(database))) for index in indexes}

    assert ddl == {name: f"CREATE INDEX {name} {text}" for name, text in INDEX_TEXTS.items()}


def parts_in_database(engine: Engine, table: str) -> tuple[set[str], set[str], set[str]]:
    """Give the names of the table's indexes, of its unique constraints and of its checks."""
    found = inspect(engine)
    unique = {str(key["name"]) for key in found.get_unique_constraints(table)}
    indexes = {str(index["name"]) for index in found.get_indexes(table)} - unique
    return indexes, unique, {str(check["name"]) for check in found.get_check_constraints(table)}


@pytest.mark.parametrize(
    ("naming", "index", "unique", "check"),
    [
        (None, "ix_{}_{}", "uq_schedule_name", "ck_archived_job_status"),
        (ALEMBICS, "ix_{}_{}", "uq_schedule_name", "ck_archived_job_status"),
        ({"uq": "%(table_name)s_%(constraint_name)s_key"}, "ix_{}_{}", "schedule_name_key", "ck_archived_job_status"),
        ({"ix": "%(table_name)s_%(constraint_name)s_idx"}, "{}_{}_idx", "uq_schedule_name", "ck_archived_job_status"),
        ({"uq": "uq_%(column_0_N_name)s"}, "ix_{}_{}", "uq_schedule_name", "ck_archived_job_status"),
    ],
    ids=["none", "alembic's", "uq with a name", "ix with a name", "uq of columns"],
)
def test_names_respect_the_apps_naming_convention(
    engine: Engine, naming: Any, index: str, unique: str, check: str
) -> None:
    """A convention that asks for a name gets a short one to put in; else our names are final."""
    models(naming=naming).Base.metadata.create_all(engine)

    due = {index.format("schedule", token) for token in ("due", "edited", "retired")}
    kept = {index.format("archived_job", token) for token in ("key", "archived")}
    assert parts_in_database(engine, "schedule") == (due, {unique}, set())
    assert parts_in_database(engine, "archived_job") == (kept, set(), {check})


@pytest.mark.parametrize(
    "naming",
    [None, ALEMBICS, {"uq": "unique_of_%(table_name)s_for_%(constraint_name)s"}],
    ids=["none", "short", "long"],
)
def test_names_fit_when_the_table_has_63_bytes(engine: Engine, naming: Any) -> None:
    """What is longer than the database takes is shortened by SQLAlchemy, stays apart, and is the same at each run."""
    made = models(prefix=LONG, naming=naming)

    for model in (made.Schedule, made.ArchivedJob):
        table_of(model).create(engine)

    found = [parts_in_database(engine, table_of(model).name) for model in (made.Schedule, made.ArchivedJob)]
    assert [[len(names) for names in parts] for parts in found] == [[3, 1, 0], [2, 0, 1]]
    if engine.dialect.name == "postgresql":
        names = set[str]().union(*(names for parts in found for names in parts))
        assert len(names) == 7
        assert all(len(name.encode()) <= 63 for name in names)
        # The server would have cut what SQLAlchemy doesn't: then names would differ from the model's, for ever.
        prepared = engine.dialect.identifier_preparer
        known = {prepared.format_index(index) for index in table_of(made.Schedule).indexes}
        assert known == found[0][0]


def own() -> tuple[Any, ...]:
    return (Index("ix_of_the_app", "tenant"), CheckConstraint("length(tenant) > 0", name="ck_of_the_app"))


@pytest.mark.parametrize(
    "arguments",
    [own, lambda: (*own(), {"comment": "x"}), lambda: {"comment": "x"}, tuple, dict],
    ids=["tuple", "both", "dict", "empty tuple", "empty dict"],
)
def test_table_args_of_the_app_drop_none_of_our_parts(arguments: Callable[[], Any]) -> None:
    """What an app says in `__table_args__` comes beside our parts and not instead of them."""
    table = table_of(models(arguments=arguments()).Schedule)

    names = {str(index.name) for index in table.indexes} | {str(each.name) for each in table.constraints}
    assert names >= {"ix_schedule_due", "ix_schedule_edited", "ix_schedule_retired", "uq_schedule_name"}
    assert ({"ix_of_the_app", "ck_of_the_app"} <= names) == ("ix_of_the_app" in str(arguments()))
    assert sum(isinstance(part, UniqueConstraint) for part in table.constraints) == 1
