"""The oldest transaction that keeps vacuum from its work, as figures tell it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.orm import Session

from sqla_jobs.operations.stats import stats
from tests.engines import build_engine
from tests.operations.timetable import emptied, jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from datetime import datetime

    from sqlalchemy import Connection, Engine

NOTHING: Final = timedelta(0)


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    """Give an engine on a PostgreSQL database where nobody else is, and that keeps no connection."""
    engine = build_engine(emptied(postgresql_url), poolclass=NullPool)
    yield engine
    engine.dispose()


@contextmanager
def opened(engine: Engine, statement: str = "SELECT txid_current()") -> Generator[tuple[Connection, datetime]]:
    """Open a transaction that has said *statement* and is idle now; give it and its start."""
    with engine.connect() as connection:
        connection.execute(text(statement))
        began: datetime = connection.execute(text("SELECT now()")).scalar_one()
        yield connection, began


def oldest(engine: Engine) -> timedelta | None:
    """Give the figure, asked in a transaction of its own."""
    with Session(engine) as session:
        return stats(session, jobs).oldest_transaction


def is_since(engine: Engine, began: datetime) -> bool:
    """Tell whether the figure is the time since *began*."""
    clock = text("SELECT clock_timestamp()")
    with engine.connect() as connection:
        before: datetime = connection.execute(clock).scalar_one()
        age = oldest(engine)
        after: datetime = connection.execute(clock).scalar_one()
    return age is not None and before - began <= age <= after - began


def test_oldest_transaction_is_told_among_several(engine: Engine) -> None:
    """Of transactions that have written, the one that began first counts; once all have ended it is zero."""
    assert oldest(engine) == NOTHING

    with opened(engine) as (first, began), opened(engine) as (_, began_later):
        assert is_since(engine, began)
        first.rollback()
        assert is_since(engine, began_later)

    assert oldest(engine) == NOTHING


def test_transaction_with_a_snapshot_counts(engine: Engine) -> None:
    """One that only reads, and must go on seeing what it saw, keeps vacuum as well: a forgotten console, or a dump."""
    snapshots = engine.execution_options(isolation_level="REPEATABLE READ")

    with opened(snapshots, "SELECT 1") as (_, began):
        assert is_since(engine, began)


def test_transactions_that_hold_up_nothing_are_passed_over(engine: Engine, make_database: Callable[[], str]) -> None:
    """Neither one that is idle between its reads, nor one of another database, nor the session's own."""
    other = build_engine(make_database(), poolclass=NullPool)

    with opened(engine, "SELECT 1"), opened(other), Session(engine) as session:
        session.execute(text("SELECT txid_current()"))

        assert stats(session, jobs).oldest_transaction == NOTHING


def test_prepared_transaction_counts(engine: Engine) -> None:
    """What a two-phase commit has left behind holds up vacuum without any session."""
    with engine.connect() as connection:
        if connection.execute(text("SHOW max_prepared_transactions")).scalar_one() == "0":
            pytest.skip("the server allows no prepared transactions")
    prepared = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("SELECT txid_current()"))
        connection.exec_driver_sql("PREPARE TRANSACTION 'left behind'")
    with prepared.connect() as connection, ExitStack() as stack:
        stack.callback(connection.exec_driver_sql, "ROLLBACK PREPARED 'left behind'")
        began: datetime = connection.execute(text("SELECT prepared FROM pg_prepared_xacts")).scalar_one()
        assert is_since(engine, began)

    assert oldest(engine) == NOTHING


@pytest.fixture
def plain(engine: Engine) -> Iterator[Engine]:
    """Give an engine for a role that may read the tables, and may not look into the sessions of others."""
    role = f"plain_{uuid4().hex}"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
        connection.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    url = engine.url.set(username=role, password=role)
    plain = build_engine(url.render_as_string(hide_password=False), poolclass=NullPool)
    yield plain
    plain.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
        connection.exec_driver_sql(f"DROP ROLE {role}")


def test_role_that_may_not_look_into_other_sessions_is_told_what_it_may(engine: Engine, plain: Engine) -> None:
    """It is told of its own role's transactions; as long as others are there and it has none, None and not zero."""
    assert oldest(plain) == NOTHING

    with opened(engine), plain.connect() as watching:
        watching.rollback()
        assert oldest(plain) is None
        with opened(plain.execution_options(isolation_level="REPEATABLE READ"), "SELECT 1") as (_, began):
            age = oldest(plain)
            elapsed: timedelta = watching.execute(text("SELECT clock_timestamp()")).scalar_one() - began

    assert age is not None
    assert NOTHING < age <= elapsed
