from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import JSON, BigInteger, DateTime, Index, Integer, String, Text, delete, inspect, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateIndex, CreateTable

from sqla_jobs.schema.mixins import JobMixin
from sqla_jobs.status import JobStatus
from tests.schema.models import (
    COLUMNS,
    INDEXES,
    NULLABLE,
    insert_rows,
    job_model,
    names_in_database,
    new_dialect,
    table_of,
)

if TYPE_CHECKING:
    from sqlalchemy import Engine

Job = job_model()
table = table_of(Job)

LENGTHS = {"type": 255, "queue": 255, "idempotency_key": 255, "status": 16, "locked_by": 255}
INTEGERS = {"attempts", "max_attempts", "refunds", "claims", "lease_expirations"}
BIG = {"id", "schedule_id"}
TIMES = {"run_at", "locked_until", "last_lease_expired_at", "slot", "created_at", "started_at", "finished_at"}
DOCUMENTS = {"payload", "errors", "result", "trace"}

DEFAULTS: dict[str, Any] = {
    "payload": {},
    "queue": "default",
    "status": "ready",
    "attempts": 0,
    "max_attempts": 5,
    "refunds": 0,
    "claims": 0,
    "errors": [],
    "lease_expirations": 0,
}


@pytest.fixture
def tables(engine: Engine) -> Engine:
    """Give an engine on a database that has the job table."""
    table.metadata.create_all(engine)
    return engine


def is_postgresql(engine: Engine) -> bool:
    return engine.dialect.name == "postgresql"


def expected_type(name: str, *, postgresql: bool) -> type[Any]:
    if name in DOCUMENTS:
        return JSONB if postgresql else JSON
    if name in TIMES:
        return DateTime
    if name in BIG:
        return BigInteger if postgresql else Integer
    return Integer if name in INTEGERS else Text if name == "last_error" else String


def test_table_has_the_columns_of_the_design_in_order(tables: Engine) -> None:
    """The database has each column once, in the order in which they are documented, and null where it may be."""
    found = inspect(tables).get_columns("job")

    assert [column["name"] for column in found] == COLUMNS
    assert {column["name"] for column in found if column["nullable"]} == NULLABLE
    assert inspect(tables).get_pk_constraint("job")["constrained_columns"] == ["id"]


def test_columns_have_stock_types(tables: Engine) -> None:
    """Each column is of a type that the database has by itself, with its length or its zone."""
    found = {column["name"]: column["type"] for column in inspect(tables).get_columns("job")}
    postgresql = is_postgresql(tables)

    for name, column_type in found.items():
        assert isinstance(column_type, expected_type(name, postgresql=postgresql)), name
        if postgresql and name in TIMES:
            assert getattr(column_type, "timezone", None) is True, name
    assert {name: getattr(found[name], "length", None) for name in LENGTHS} == LENGTHS


def test_constants_have_server_defaults_and_times_have_none(tables: Engine) -> None:
    """Plain SQL may leave out what is constant; no database's clock is frozen into the table."""
    found = {column["name"]: column["default"] for column in inspect(tables).get_columns("job")}

    with_default = {name for name, default in found.items() if default is not None and name != "id"}
    assert with_default == set(DEFAULTS)


def test_row_inserted_by_plain_sql_is_a_ready_job(tables: Engine) -> None:
    """A row with a type and its times alone is a job with every default."""
    with tables.begin() as connection:
        connection.execute(
            text("INSERT INTO job (type, run_at, created_at) VALUES ('send', '2024-01-01', '2024-01-01')")
        )

    with Session(tables) as session:
        job = session.scalars(select(Job)).one()
        assert {name: getattr(job, name) for name in DEFAULTS} == DEFAULTS


def test_row_inserted_through_the_orm_has_its_times(tables: Engine) -> None:
    """A job added as an object gets `run_at` and `created_at` from the database's clock, aware and in UTC."""
    with Session(tables) as session:
        job = Job(type="send")
        session.add(job)
        session.commit()

        assert job.run_at.utcoffset() is not None
        assert job.run_at == job.created_at
        assert (job.status, job.payload, job.result) == ("ready", {}, None)


def test_status_is_checked_by_the_database(tables: Engine) -> None:
    """Only the five statuses can be stored, whoever writes them."""
    with tables.connect() as connection:
        insert_rows(connection, table, *({"status": status} for status in JobStatus))

        for status in ("paused", "READY", "ready ", ""):
            with pytest.raises(IntegrityError, match="ck_job_status"), connection.begin_nested():
                insert_rows(connection, table, {"status": status})


def test_columns_that_are_not_nullable_refuse_null(tables: Engine) -> None:
    """A job is never without what every job has."""
    with tables.connect() as connection:
        for name in sorted(set(COLUMNS) - NULLABLE - {"id"}):
            values = {"type": "'send'", "run_at": "'2024-01-01'", "created_at": "'2024-01-01'"} | {name: "NULL"}
            row = f"({', '.join(values)}) VALUES ({', '.join(values.values())})"
            with pytest.raises(IntegrityError, match=name), connection.begin_nested():
                connection.exec_driver_sql(f"INSERT INTO job {row}")


def test_id_is_never_reused_when_the_last_row_was_deleted(tables: Engine) -> None:
    """An id names one job for ever: what a log says of it stays true."""
    with tables.begin() as connection:
        ids = insert_rows(connection, table, {}, {})
        connection.execute(delete(table))
    with tables.begin() as connection:
        (next_id,) = insert_rows(connection, table, {})

    assert next_id > max(ids)


def test_key_is_unique_and_null_is_not(tables: Engine) -> None:
    """Two jobs without a key stand beside each other; two with one key don't."""
    with tables.connect() as connection:
        insert_rows(connection, table, {}, {}, {"idempotency_key": "k"}, {"idempotency_key": "K"})

        with pytest.raises(IntegrityError):
            insert_rows(connection, table, {"idempotency_key": "k"})


def test_indexes_and_check_are_named_after_the_table(tables: Engine) -> None:
    """The database has exactly the six indexes and the one CHECK, by names that say whose they are."""
    assert names_in_database(tables, "job") == ({f"ix_job_{token}" for token in INDEXES}, {"ck_job_status"})


INDEX_TEXTS = {
    "ready": "ON job (queue, type, run_at, id) WHERE status = 'ready'",
    "running": "ON job (locked_by, id) WHERE status = 'running'",
    "finished": "ON job (status, finished_at, id) WHERE status IN ('done', 'failed', 'dead')",
    "key": "ON job (idempotency_key) WHERE idempotency_key IS NOT NULL",
    "expired": "ON job (last_lease_expired_at) WHERE last_lease_expired_at IS NOT NULL",
    "schedule": "ON job (schedule_id, slot) WHERE schedule_id IS NOT NULL AND status IN ('ready', 'running')",
}


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_indexes_are_partial_on_both_databases(database: str) -> None:
    """Each index holds only the rows that it serves: its text, with a literal as predicate, is migration history."""
    ddl = {str(index.name): str(CreateIndex(index).compile(dialect=new_dialect(database))) for index in table.indexes}

    assert ddl == {
        f"ix_job_{name}": f"CREATE {'UNIQUE ' if name == 'key' else ''}INDEX ix_job_{name} {text}"
        for name, text in INDEX_TEXTS.items()
    }


def test_lease_is_in_no_index() -> None:
    """A heartbeat stays a HOT update on PostgreSQL: what it writes is in no index, in no predicate either."""
    written = {"locked_until"}

    for index in table.indexes:
        where = str(index.dialect_options["postgresql"]["where"])
        assert not written & {column.name for column in index.columns}
        assert not any(name in where for name in written)


def test_table_numbers_rows_by_autoincrement_on_sqlite(sqlite_engine: Engine) -> None:
    """SQLite needs the word to never give an id again."""
    ddl = str(CreateTable(table).compile(sqlite_engine))

    assert "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT" in ddl


def test_mixin_has_no_annotations_left_for_the_mapping() -> None:
    """What SQLAlchemy reads of the mixin are its columns alone, so an app's `type_annotation_map` isn't asked."""
    assert not JobMixin.__annotations__
    assert isinstance(JobMixin.__doc__, str)
    assert all(not isinstance(part, Index) for part in vars(JobMixin).values())
