"""Whether the tables are ones that this version can work with."""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidModel
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.tables import MappedTable
from sqla_jobs.schema.trouble import is_missing_column


def check_columns(session: Session, jobs: Jobs[Any]) -> None:
    """Refuse tables that lack a column we need: better before a job is taken than after.

    A missing job table raises the driver's error, as any statement on it would; others may still come.

    :raises InvalidModel: a table lacks one; migrate first, then deploy
    """
    _check(session, jobs.table)
    for table in (jobs.schedules if jobs.has_schedules else None, jobs.archive):
        try:
            if table is not None:
                _check(session, table)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise


def _check(session: Session, table: MappedTable) -> None:
    try:
        with session.begin_nested():
            session.execute(table.probe, bind_arguments={"mapper": table.mapper})
    except DBAPIError as error:
        if error.orig is None or not is_missing_column(error.orig):
            raise
        missing = ", ".join(_missing(session, table))
        raise InvalidModel(
            f"table {table.table.fullname} lacks columns that this version needs ({missing}): "
            "alembic upgrade head, after alembic revision --autogenerate if no revision has them, and then start"
        ) from error


def _missing(session: Session, table: MappedTable) -> list[str]:
    connection = session.connection(bind_arguments={"mapper": table.mapper})
    schemas: dict[str | None, str | None] = connection.get_execution_options().get("schema_translate_map", {})
    found = inspect(connection).get_columns(
        table.table.name, schema=schemas.get(table.table.schema, table.table.schema)
    )
    return sorted(set(table.needed) - {column["name"] for column in found})
