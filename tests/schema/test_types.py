from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from sqlalchemy.exc import StatementError

from sqla_jobs.schema.types import UtcDateTime

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

metadata = MetaData()
events = Table("events", metadata, Column("id", Integer, primary_key=True), Column("at", UtcDateTime()))

NOON = datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")


@pytest.fixture
def connection(engine: Engine) -> Any:
    """Give a connection whose session is in a zone far from UTC, where the database has such a thing."""
    metadata.create_all(engine)
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET TIME ZONE 'Asia/Tokyo'")
        yield connection


def stored(connection: Connection, value: Any) -> Any:
    row_id = connection.execute(insert(events).values(at=value).returning(events.c.id)).scalar_one()
    return connection.execute(select(events.c.at).where(events.c.id == row_id)).scalar_one()


@pytest.mark.parametrize(
    "given",
    [
        NOON,
        NOON.astimezone(timezone(timedelta(hours=-8))),
        NOON.astimezone(ZoneInfo("Asia/Kathmandu")),
        datetime(2024, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=0),
        datetime(2024, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=1),
        datetime(2024, 3, 10, 2, 30, tzinfo=NEW_YORK),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    ids=["UTC", "-08:00", "+05:45", "fold 0", "fold 1", "gap", "epoch", "last"],
)
def test_aware_datetime_comes_back_as_the_same_instant_in_utc(connection: Connection, given: datetime) -> None:
    """An instant of any zone is stored to the microsecond and read back aware, in UTC, whatever the session's zone."""
    read = stored(connection, given)

    assert read == given.astimezone(UTC)
    assert read.tzinfo is UTC


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    value=st.datetimes(
        datetime(1971, 1, 1),
        datetime(9990, 1, 1),
        timezones=st.timezones(),
    )
)
def test_any_aware_datetime_round_trips(connection: Connection, value: datetime) -> None:
    """No zone and no moment of its history shifts an instant."""
    assert stored(connection, value) == value.astimezone(UTC)


def test_null_stays_null(connection: Connection) -> None:
    """No time is no time."""
    assert stored(connection, None) is None


@pytest.mark.parametrize("value", [datetime(2024, 7, 1, 12), datetime(2024, 7, 1, 12, fold=1)])
def test_naive_datetime_is_refused_with_the_remedy(connection: Connection, value: datetime) -> None:
    """A datetime without a zone is a ValueError that says what to write, on every database."""
    with pytest.raises(StatementError, match=r"naive datetime .*tzinfo=UTC") as caught:
        stored(connection, value)

    assert isinstance(caught.value.orig, ValueError)


@pytest.mark.parametrize("value", [date(2024, 7, 1), "2024-07-01 12:00:00", 1719835200], ids=["date", "str", "int"])
def test_value_that_is_no_datetime_is_refused(connection: Connection, value: Any) -> None:
    """A date, a text or a number is no instant: the error names its type and no driver guesses."""
    with pytest.raises(StatementError, match=f"is a {type(value).__name__}"):
        stored(connection, value)


def test_filters_compare_instants(connection: Connection) -> None:
    """A range given in one zone finds what was stored in another."""
    for hours in (-1, 0, 1):
        stored(connection, (NOON + timedelta(hours=hours)).astimezone(timezone(timedelta(hours=9))))

    half_an_hour = timedelta(minutes=30)
    low, high = ((NOON + offset).astimezone(NEW_YORK) for offset in (-half_an_hour, half_an_hour))
    found = connection.scalars(select(events.c.at).where(events.c.at.between(low, high))).all()

    assert found == [NOON]


def test_ordering_is_by_instant(connection: Connection) -> None:
    """Rows sort by when they are, also where times are text, and also between whole and split seconds."""
    instants = [NOON + timedelta(microseconds=step) for step in (-123456, -1, 0, 1, 876544)]
    for instant in reversed(instants):
        stored(connection, instant.astimezone(NEW_YORK))

    assert connection.scalars(select(events.c.at).order_by(events.c.at)).all() == instants


def test_type_is_written_as_the_stock_type() -> None:
    """A migration shows `DateTime(timezone=True)` of SQLAlchemy, with nothing of ours to import."""
    column_type = UtcDateTime()

    assert repr(column_type) == "DateTime(timezone=True)"
    assert type(column_type).__module__ == "sqlalchemy.types"
