"""Job tables in the ways that apps map them, each in a MetaData of its own, for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import CheckConstraint, MetaData, Table, inspect, make_url
from sqlalchemy.orm import DeclarativeBase

from sqla_jobs.schema.mixins import JobMixin

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

COLUMNS = [
    *("id", "type", "payload", "queue", "idempotency_key", "status", "run_at", "attempts", "max_attempts", "refunds"),
    *("claims", "locked_by", "locked_until", "last_error", "errors", "result", "lease_expirations"),
    *("last_lease_expired_at", "schedule_id", "slot", "trace", "created_at", "started_at", "finished_at"),
]
"""The columns of a job, in the order in which DESIGN lists them."""

NULLABLE = {
    *("idempotency_key", "locked_by", "locked_until", "last_error", "result", "last_lease_expired_at", "schedule_id"),
    *("slot", "trace", "started_at", "finished_at"),
}

INDEXES = ("expired", "finished", "key", "ready", "running", "schedule")


def job_model(*, table: str = "job", naming: Any = None, schema: str | None = None) -> type[Any]:
    """Map a job table the usual way, on a base of its own."""

    class Base(DeclarativeBase):
        metadata = MetaData(naming_convention=naming, schema=schema)

    class Job(JobMixin, Base):
        __tablename__ = table

    return Job


def new_dialect(name: str) -> Any:
    """Give a dialect that has connected to nothing."""
    kind: Any = make_url(f"{name}://").get_dialect()
    return kind()


def table_of(model: type[Any]) -> Table:
    """Give the table that a model is mapped to."""
    return cast("Table", inspect(model).local_table)


def parts_of(table: Table) -> tuple[set[str], set[str]]:
    """Give the names of the table's indexes and of its CHECK constraints, as far as Python knows them."""
    checks = {str(each.name) for each in table.constraints if isinstance(each, CheckConstraint)}
    return {str(index.name) for index in table.indexes}, checks


def insert_rows(connection: Connection, table: Table, *rows: dict[str, Any]) -> list[int]:
    """Insert rows of a job table, with a type for each that names none, and give their ids."""
    return [
        connection.execute(table.insert().values({"type": "send"} | row).returning(table.c.id)).scalar_one()
        for row in rows
    ]


def names_in_database(engine: Engine, table: str, schema: str | None = None) -> tuple[set[str], set[str]]:
    """Give the names of the table's indexes and of its CHECK constraints, as the database has them."""
    found = inspect(engine)
    indexes = {str(index["name"]) for index in found.get_indexes(table, schema=schema)}
    return indexes, {str(check["name"]) for check in found.get_check_constraints(table, schema=schema)}
