"""What statements are made of: parameters, and what databases say differently (`schema.dialects` has the words)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, Double, Text, bindparam
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeEngine

from sqla_jobs.schema.types import UtcDateTime

_PREFIX = "sqla_jobs_"


def parameter(name: str, *, type_: TypeEngine[Any] | None = None, **options: Any) -> BindParameter[Any]:
    """Give the parameter that `said` has a value for.

    SQLAlchemy takes a parameter called like a column for the column's new value, and an app may well have a column
    `limit`, or `lease`.
    """
    return bindparam(_PREFIX + name, type_=type_, **options)


def said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give *values* by the names that a statement has for its parameters."""
    return {_PREFIX + name: value for name, value in values.items()}


class db_now(FunctionElement[datetime]):  # noqa: N801  # a SQL function, written like SQLAlchemy's own
    """The database's clock at the start of the running statement.

    PostgreSQL: `now()` is the transaction's start, and `clock_timestamp()` is volatile, so no index can serve it.
    SQLite has milliseconds; they are padded to six digits, as the stock type stores them, so that text sorts as time.
    """

    type = UtcDateTime()
    inherit_cache = True


class later(FunctionElement[datetime]):  # noqa: N801
    """`later(instant, seconds)`: the instant that many seconds after."""

    type = UtcDateTime()
    inherit_cache = True


class epoch(FunctionElement[float]):  # noqa: N801
    """`epoch(instant)`: seconds since 1970 as a float; it reads 'infinity' too, which no driver loads as a datetime."""

    type: TypeEngine[float] = Double()
    inherit_cache = True


class from_epoch(FunctionElement[datetime]):  # noqa: N801
    """`from_epoch(seconds)`: the instant that `epoch` gave."""

    type = UtcDateTime()
    inherit_cache = True


class read_instant(FunctionElement[datetime]):  # noqa: N801
    """`read_instant(text)`: the instant that a cast to text has written."""

    type = UtcDateTime()
    inherit_cache = True


class written_instant(FunctionElement[str]):  # noqa: N801
    """`written_instant(instant)`: text that every session reads alike, whatever its zone and style of dates."""

    type: TypeEngine[str] = Text()
    inherit_cache = True


class durably(FunctionElement[Any]):  # noqa: N801
    """`durably()`: the open transaction is on disk when its commit is answered, whatever the role's settings say.

    A claim that a crash of the server undoes would be made a second time, with the same count, while the first runs.
    And the server ends it if no commit comes for five seconds: a frozen process keeps the rows from nobody.
    """

    inherit_cache = True
