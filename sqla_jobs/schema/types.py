"""Column types that read the same on every database and that migrations write as stock types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import DateTime, Dialect, Double, Interval
from sqlalchemy.types import TypeDecorator, TypeEngine

INTERVAL: TypeEngine[timedelta] = Interval()


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

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        # `Job.run_at - timedelta(days=1)`: what is added to an instant is none.
        return INTERVAL if isinstance(value, timedelta) else self

    def __repr__(self) -> str:
        return "DateTime(timezone=True)"


class Seconds(TypeDecorator[timedelta]):
    """A duration, stored as a number of seconds: plain SQL writes it the same way on every database."""

    impl = Double()
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: Dialect) -> float | None:
        if value is None:
            return None
        if not isinstance(cast("object", value), timedelta):
            raise TypeError(f"a timedelta is wanted, and this is a {type(value).__name__}: timedelta(seconds=…)")
        return value.total_seconds()

    def process_result_value(self, value: float | None, dialect: Dialect) -> timedelta | None:
        return None if value is None else timedelta(seconds=value)

    def __repr__(self) -> str:
        return "Double()"


# Autogenerate writes types of sqlalchemy.* by their repr, with no import: a revision shows the stock type.
UtcDateTime.__module__ = "sqlalchemy.types"
Seconds.__module__ = "sqlalchemy.types"


class Garbled(str):
    """Text that is none in its encoding, with a sign for each byte that makes no sense: SQLite stores any bytes."""

    __slots__ = ()


def any_text(raw: bytes) -> str:
    """Decode what the database says is text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Garbled(raw.decode(errors="replace"))
