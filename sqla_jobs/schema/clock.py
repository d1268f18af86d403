"""A clock that tests can move: the database's own, and an offset that is kept in a table."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Insert,
    Integer,
    MetaData,
    Select,
    Table,
    Update,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.schema import Column
from sqlalchemy.types import TypeEngine

from sqla_jobs.schema.constructs import db_now, later, parameter

CLOCK_TABLE = "sqla_jobs_clock"

_DOUBLE: TypeEngine[float] = Double()


def clock_table(metadata: MetaData) -> Table:
    """The table of one row, with the seconds that the clock is ahead."""
    key = CLOCK_TABLE if metadata.schema is None else f"{metadata.schema}.{CLOCK_TABLE}"
    if key in metadata.tables:
        return metadata.tables[key]
    return Table(
        CLOCK_TABLE,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("seconds", _DOUBLE, nullable=False),
    )


def moved_now(clock: Table) -> ColumnElement[Any]:
    """The moved time, as an expression; like `db_now()` it is one value for a statement, and an index serves it."""
    return later(db_now(), func.coalesce(select(clock.c.seconds).scalar_subquery(), 0.0))


def read_clock(clock: Table) -> Select[Any]:
    """The moved time."""
    return select(moved_now(clock))


def advance_clock(clock: Table) -> Update:
    """Move it by `by` seconds."""
    return update(clock).values(seconds=clock.c.seconds + parameter("by"))


def start_clock(clock: Table) -> Insert:
    """Move it for the first time, by `by` seconds."""
    return insert(clock).values(id=1, seconds=parameter("by"))
