"""Whether a table is one that this version can work with."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidModel
from sqla_jobs.schema.dialects import is_missing_column
from sqla_jobs.schema.tables import MappedTable


def check_columns(session: Session, table: MappedTable) -> None:
    """Refuse a table that lacks a column we need: better before a job is taken than after.

    :raises InvalidModel: it lacks one; migrate first, then deploy
    """
    try:
        session.execute(table.probe, bind_arguments={"mapper": table.mapper})
    except DBAPIError as error:
        if error.orig is None or not is_missing_column(error.orig):
            raise
        first = str(error.orig).partition("\n")[0]
        raise InvalidModel(
            f"table {table.table.fullname} lacks a column that this version needs ({first}): "
            "alembic revision --autogenerate, then alembic upgrade head, then start"
        ) from error
