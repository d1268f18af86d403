from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Dialect, String, bindparam, create_engine, func, literal, make_url, select, text
from sqlalchemy.exc import DBAPIError

from sqla_jobs.errors import UnsupportedDatabase
from sqla_jobs.schema.constructs import db_now, epoch, later, said
from sqla_jobs.schema.dialects import as_rows, capabilities, check_server, is_in_memory
from sqla_jobs.schema.trouble import is_outage, is_read_only
from sqla_jobs.schema.types import UtcDateTime
from tests.schema.models import new_dialect

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123000, tzinfo=UTC)


@pytest.fixture
def connection(engine: Engine) -> Any:
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET TIME ZONE 'Asia/Tokyo'")
        yield connection


def test_clock_is_the_databases_in_utc(connection: Connection) -> None:
    """`db_now()` is the database's own time, read aware and in UTC, whatever zone the session or the process is in."""
    own = "now() AT TIME ZONE 'UTC'" if connection.dialect.name == "postgresql" else "strftime('%Y-%m-%d %H:%M', 'now')"

    before = connection.execute(text(f"SELECT CAST({own} AS VARCHAR)")).scalar_one()
    now = connection.execute(select(db_now())).scalar_one()

    assert now.tzinfo is UTC
    assert now - datetime.fromisoformat(str(before)[:16]).replace(tzinfo=UTC) < timedelta(minutes=5)


def test_clock_stands_still_within_a_statement(connection: Connection) -> None:
    """All times of one statement are one time."""
    first, second = connection.execute(select(db_now(), db_now().label("again"))).one()

    assert first == second


def test_clock_moves_on_within_a_transaction(postgresql_engine: Engine) -> None:
    """The time is the statement's, not the start of a transaction that may be hours old."""
    with postgresql_engine.connect() as connection:
        connection.execute(select(1))

        assert connection.execute(select(db_now() > func.now())).scalar_one()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, MOMENT),
        (0.877, datetime(2024, 3, 1, tzinfo=UTC)),
        (60, MOMENT + timedelta(minutes=1)),
        (-86400.5, MOMENT - timedelta(days=1, milliseconds=500)),
        (3650 * 86400, MOMENT + timedelta(days=3650)),
    ],
)
def test_later_adds_seconds_to_an_instant(connection: Connection, seconds: float, expected: datetime) -> None:
    """`later` reckons in seconds, over days, months and leap years, to the millisecond at least."""
    moved = later(literal(MOMENT, UtcDateTime()), bindparam("seconds", seconds))

    assert connection.execute(select(moved)).scalar_one() == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(milliseconds=st.integers(0, 3650 * 86_400_000))
def test_later_is_exact_to_the_millisecond(connection: Connection, milliseconds: int) -> None:
    """No delay is rounded by more than a database's own clock is."""
    moved = later(literal(MOMENT, UtcDateTime()), bindparam("seconds", milliseconds / 1000))

    assert connection.execute(select(moved)).scalar_one() == MOMENT + timedelta(milliseconds=milliseconds)


def test_clock_sorts_with_stored_times(connection: Connection) -> None:
    """What `db_now()` and `later` give compares with what the column type stores, where times are text, too."""
    now = connection.execute(select(db_now())).scalar_one()
    before, after = (
        literal(now + timedelta(microseconds=step), UtcDateTime()) for step in (-3_600_000_001, 3_600_000_001)
    )

    row = connection.execute(
        select(before < db_now(), after > db_now(), later(after, 1) > after, later(before, 0.001) > before)
    ).one()

    assert [bool(each) for each in row] == [True] * 4


def test_epoch_is_seconds_since_1970(connection: Connection) -> None:
    """`epoch` gives an instant as a number, to less than a millisecond."""
    seconds = connection.execute(select(epoch(literal(MOMENT, UtcDateTime())))).scalar_one()

    assert seconds == pytest.approx(MOMENT.timestamp(), abs=0.0005)


@pytest.mark.parametrize("instant", ["infinity", "-infinity", "12000-01-01 00:00:00+00"])
def test_epoch_reads_times_that_no_driver_loads(engine: Engine, instant: str) -> None:
    """A time past what Python can hold is still a number, so that it fails no batch."""
    if engine.dialect.name != "postgresql":
        pytest.skip("such a time is text here")
    with engine.connect() as connection:
        seconds = connection.execute(select(epoch(text(f"TIMESTAMPTZ '{instant}'")))).scalar_one()

    assert isinstance(seconds, float)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"id": 1, "name": "a"}],
        [{"id": 2**40, "name": 'quote " and \\ and é and 😀'}, {"id": 3, "name": None}],
        [{"id": number, "name": "x" * 100} for number in range(5000)],
    ],
    ids=["none", "one", "text", "many"],
)
def test_given_rows_come_back_as_they_were_sent(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """A batch of any size is one parameter: no limit of parameters, no text that breaks it."""
    given = capabilities(connection.dialect).given({"id": BigInteger(), "name": String()})

    read = connection.execute(select(given.c.id, given.c.name), said({"rows": as_rows(rows)}))

    assert [dict(row) for row in read.mappings()] == rows


def test_rows_with_what_json_has_not_are_refused() -> None:
    """NaN is no JSON: it fails here, and not in the database."""
    with pytest.raises(ValueError, match="JSON"):
        as_rows([{"delay": float("nan")}])


@pytest.mark.parametrize("dialect", [new_dialect("mysql"), new_dialect("oracle")], ids=lambda dialect: dialect.name)
def test_database_of_another_kind_is_refused(dialect: Any) -> None:
    """What isn't served is told at once, with what is."""
    with pytest.raises(UnsupportedDatabase, match="postgresql and sqlite are"):
        capabilities(dialect)


def server(name: str, *version: int) -> Dialect:
    """Give the dialect as it is after a first connect to a server of that version."""
    dialect = new_dialect(name)
    dialect.server_version_info = version or None
    return cast("Dialect", dialect)


@pytest.mark.parametrize(
    ("dialect", "says"),
    [
        (server("postgresql", 12, 22), "postgresql 12.22, and at least 13 is needed; upgrade"),
        (server("postgresql", 9, 6, 24), "postgresql 9.6.24"),
        (server("sqlite", 3, 34, 1), "sqlite 3.34.1, and at least 3.35 is needed; upgrade"),
    ],
)
def test_server_that_is_too_old_is_refused(dialect: Dialect, says: str) -> None:
    """An old server is refused by its version, before any statement fails on it."""
    with pytest.raises(UnsupportedDatabase, match=says):
        check_server(dialect)


@pytest.mark.parametrize(
    "dialect",
    [
        server("postgresql", 13, 0),
        server("postgresql", 18, 1),
        server("postgresql"),
        server("sqlite", 3, 35, 0),
    ],
)
def test_server_that_is_new_enough_is_let_in(dialect: Dialect) -> None:
    """The oldest that is served, newer ones, and one that doesn't tell its version."""
    assert check_server(dialect) is None  # type: ignore[func-returns-value]  # it raises, or says nothing


def test_servers_of_these_tests_are_new_enough(connection: Connection) -> None:
    """The check reads the version of a real server."""
    check_server(connection.dialect)
    assert connection.dialect.server_version_info


@pytest.mark.parametrize(
    ("url", "is_so"),
    [
        ("sqlite://", True),
        ("sqlite:///:memory:", True),
        ("sqlite+aiosqlite:///:memory:", True),
        ("sqlite:///file::memory:?cache=shared&uri=true", True),
        ("sqlite:///file:jobs?mode=memory&cache=shared&uri=true", True),
        ("sqlite:///jobs.db", False),
        ("sqlite:////tmp/memory.db", False),
        ("sqlite:///file:jobs.db?mode=ro&uri=true", False),
        ("postgresql+psycopg://localhost/memory", False),
    ],
)
def test_database_in_memory_is_told_by_its_url(url: str, *, is_so: bool) -> None:
    """A database that lives in one connection can't be shared by a worker's threads."""
    parsed = make_url(url)

    assert is_in_memory(new_dialect(parsed.drivername), parsed) is is_so


class DriverError(Exception):
    def __init__(self, text: str = "", **facts: str) -> None:
        super().__init__(text)
        vars(self).update(facts)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        *((DriverError(sqlstate=state), True) for state in ("40001", "40P01", "25006", "57P01", "57P03", "08006")),
        *((DriverError(sqlstate=state), True) for state in ("08001", "53300", "55P03", "57P02")),
        *((DriverError(sqlstate=state), False) for state in ("23505", "23503", "22P02", "42601", "57014", "25P02")),
        (DriverError(pgcode="40001"), True),
        (DriverError(pgcode="23505"), False),
        (DriverError("database is locked"), True),
        (DriverError("database table is locked: job"), True),
        (DriverError("disk I/O error"), True),
        (DriverError("UNIQUE constraint failed: job.reference"), False),
        (DriverError("no such table: job"), False),
    ],
    ids=lambda value: str(vars(value) or value) if isinstance(value, Exception) else None,
)
def test_outage_is_told_from_a_fault_of_the_statement(error: Exception, *, is_one: bool) -> None:
    """Lost connections, deadlocks, serialization failures and busy files are outages; faulty statements are none."""
    assert is_outage(error) is is_one


def test_read_only_server_is_told() -> None:
    """A server that has become a standby refuses writes by a state of its own."""
    assert is_read_only(DriverError(sqlstate="25006"))
    assert not is_read_only(DriverError(sqlstate="40001"))


def test_busy_file_is_an_outage(sqlite_url: str) -> None:
    """The real driver's error for a database that another connection is writing to."""
    engine = create_engine(sqlite_url, connect_args={"timeout": 0})
    with engine.connect() as writer, engine.connect() as other:
        writer.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(DBAPIError) as caught:
            other.exec_driver_sql("BEGIN IMMEDIATE")
    engine.dispose()

    assert is_outage(cast("Any", caught.value.orig))


def test_lock_timeout_and_read_only_are_outages(postgresql_engine: Engine) -> None:
    """The real driver's errors for a lock that didn't come, and for a write in a read-only transaction."""
    with postgresql_engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (id INTEGER)")

    with postgresql_engine.connect() as holder, postgresql_engine.connect() as other:
        holder.exec_driver_sql("LOCK TABLE t")
        other.exec_driver_sql("SET LOCAL lock_timeout = '1ms'")
        with pytest.raises(DBAPIError) as timed_out:
            other.exec_driver_sql("LOCK TABLE t")
    with postgresql_engine.connect() as connection:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        with pytest.raises(DBAPIError) as read_only:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")

    assert is_outage(cast("Any", timed_out.value.orig))
    assert is_outage(cast("Any", read_only.value.orig))
    assert is_read_only(cast("Any", read_only.value.orig))


def test_json_rows_are_compact() -> None:
    """A batch is sent without the spaces that nobody reads."""
    assert as_rows([{"id": 1, "result": json.dumps([1])}]) == '[{"id":1,"result":"[1]"}]'
