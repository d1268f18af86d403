"""A transaction that somebody has left open: vacuum must keep every version of a row that it may still want to see."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.plans import Base, Job, explain, explaining, fill, statements_to_explain
from sqla_jobs import Backoff, Jobs, stats
from sqla_jobs.operations import leases
from sqla_jobs.rules.settlement import Returned, decide
from tests.engines import build_engine
from tests.operations.leasing import take_one
from tests.operations.shop import timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.sql.base import Executable

JOBS: Final = Jobs(Job)

LEASE: Final = timedelta(seconds=60)

BACKLOG_PAGES: Final = 400
"""That 20,000 rows take, and more."""


@pytest.fixture
def busy_engine(postgresql_url: str) -> Iterator[Engine]:
    """Give a database with jobs that are due, some that run, and more that are done: so many that indexes are used."""
    engine = explaining(build_engine(postgresql_url))
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        fill(connection, 10_000, status="done", due=-7200)
        fill(connection, 1000)
        fill(connection, 100, status="running", lease=600)
        connection.execute(text("ANALYZE"))
    yield engine
    engine.dispose()


def pages(connection: Connection, statement: Executable, parameters: dict[str, Any]) -> int:
    """Count the pages that a statement touches; it is rolled back."""
    plan = explain(connection, statement, parameters)
    return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", plan.split("\n")[1])))


def look(engine: Engine) -> dict[str, int]:
    """Count the pages that each of a worker's statements touches."""
    with engine.connect() as connection:
        said = statements_to_explain(connection)
        return {name: pages(connection, statement, parameters) for name, statement, parameters in said}


def one_walk(engine: Engine) -> int:
    """Count the pages between the head of the index and the first job that is ready: no look can do with less."""
    first = select(Job.id).where(Job.status == "ready", Job.queue == "served", Job.type == "known")
    with engine.connect() as connection:
        return pages(connection, first.order_by(Job.run_at, Job.id).limit(1), {})


def work_off(engine: Engine, thousands: int) -> None:
    """Have so many jobs come and go."""
    demand = leases.Demand(("known",), ("served",))
    for _ in range(thousands):
        with engine.begin() as connection:
            fill(connection, 1000)
        for _ in range(10):
            with Session(engine) as session, session.begin():
                taken = leases.claim(session, JOBS.table, demand, limit=100, locked_by="w", lease=LEASE)
                ends = [decide(lease, Returned(), backoff=Backoff(), draw=0) for lease in taken]
                assert len(leases.settle(session, JOBS.table, ends)) == 100
    with engine.begin() as connection:
        connection.execute(text("ANALYZE"))


def test_f17_old_transaction_costs_a_claim_one_walk_over_what_vacuum_must_keep(busy_engine: Engine) -> None:
    """However many jobs came and went since it began, a look for work passes over what they left once, and no more."""
    before = look(busy_engine)
    with busy_engine.connect().execution_options(isolation_level="REPEATABLE READ") as held:
        held.execute(select(Job.id).limit(1))
        work_off(busy_engine, 3)
        after, walk = look(busy_engine), one_walk(busy_engine)
        with Session(busy_engine) as session:
            seen = stats(session, JOBS).oldest_transaction

    assert walk > 30
    for name in ("claim 1", "next due"):
        assert after[name] - before[name] <= 1.2 * walk, name
    assert seen is not None
    assert seen > timedelta(0)
    with Session(busy_engine) as session:
        assert stats(session, JOBS).oldest_transaction == timedelta(0)


def test_f17_backlog_of_done_jobs_costs_a_claim_nothing(busy_engine: Engine) -> None:
    """What a worker says goes by the indexes of ready and running jobs: no page of 20,000 done ones is read."""
    before = look(busy_engine)

    with busy_engine.begin() as connection:
        fill(connection, 20_000, status="done", due=-7200)
        connection.execute(text("ANALYZE"))

    after = look(busy_engine)
    for name in ("claim 1", "next due", "settle 1", "reap", "strays"):
        assert after[name] < before[name] + BACKLOG_PAGES // 10, name


def test_f17_heartbeat_writes_no_index(postgresql_sessions: sessionmaker[Session]) -> None:
    """The server counts it as a HOT update."""
    counts = text("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'job'")
    with postgresql_sessions() as session:
        lease = take_one(session)

    with postgresql_sessions() as session:
        before = session.execute(counts).one()
        for _ in range(3):
            leases.renew(session, timed.table, [lease], lease=LEASE)
        after = session.execute(counts).one()

    assert [now - then for now, then in zip(after, before, strict=True)] == [3, 3]
