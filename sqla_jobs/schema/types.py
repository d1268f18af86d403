"""Column types that read the same on every database and that migrations write as stock types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

from sqlalchemy import DateTime, Dialect
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An instant. Takes aware datetimes of any zone, gives aware UTC; a naive one is refused.

    On SQLite the stock type keeps the wall-clock fields and drops the zone, so the value is brought to UTC first.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if not isinstance(cast("object", value), datetime):
            raise TypeError(f"an aware datetime is wanted, and this is a {type(value).__name__}")
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}: give it a zone, for example datetime(…, tzinfo=UTC)")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def __repr__(self) -> str:
        return "DateTime(timezone=True)"


# Autogenerate writes types of sqlalchemy.* by their repr, with no import: a revision shows the stock type.
UtcDateTime.__module__ = "sqlalchemy.types"
