"""What figures cost: what is read for them, by the plans of PostgreSQL and the steps of SQLite, not by time."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import DeclarativeBase, Session

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stats import stats
from sqla_jobs.schema.mixins import JobMixin, ScheduleMixin
from tests.engines import build_engine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlalchemy import Connection, Engine


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


jobs = Jobs(Job, schedule=Schedule)

FILLED = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :count)
INSERT INTO job (type, queue, status, run_at, created_at, finished_at, locked_by, last_lease_expired_at)
SELECT 'type' || n % 5, 'default', :status, '{at}', '{past}', '{past}', 'w', '{past}' FROM number
"""
PAST, FUTURE = "2024-01-01 00:00:00", "2999-01-01 00:00:00"


def fill(connection: Connection, status: str, count: int, *, at: str = PAST) -> None:
    """Insert jobs of five types, all of which have lost a lease, long ago."""
    connection.execute(text(FILLED.format(at=at, past=PAST)), {"status": status, "count": count})


def fill_usually(engine: Engine) -> Engine:
    """Make the tables, with some jobs of each kind."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        fill(connection, "ready", 50)
        fill(connection, "ready", 500, at=FUTURE)
        fill(connection, "running", 200)
        fill(connection, "failed", 200)
        fill(connection, "dead", 300)
        fill(connection, "done", 5000)
        connection.execute(text("ANALYZE"))
    return engine


@pytest.fixture
def postgresql_engine(postgresql_url: str) -> Iterator[Engine]:
    """Give an engine on PostgreSQL with the usual jobs, analyzed."""
    engine = build_engine(postgresql_url)
    yield fill_usually(engine)
    engine.dispose()


@pytest.fixture
def sqlite_engine(sqlite_url: str) -> Iterator[Engine]:
    """Give an engine on SQLite with the usual jobs, analyzed."""
    engine = build_engine(sqlite_url)
    yield fill_usually(engine)
    engine.dispose()


@contextmanager
def explaining(engine: Engine) -> Generator[list[dict[str, Any]]]:
    """Collect the scans of the job table in the plans of all that is executed meanwhile."""
    scans: list[dict[str, Any]] = []

    def put(_: Any, cursor: Any, sql: str, parameters: Any, *rest: Any) -> None:
        cursor.execute("EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF, FORMAT JSON) " + sql, parameters)
        ((plans,),) = cursor.fetchall()
        scans.extend(node for node in nodes(plans[0]["Plan"]) if node.get("Relation Name") == "job")

    event.listen(engine, "before_cursor_execute", put)
    try:
        yield scans
    finally:
        event.remove(engine, "before_cursor_execute", put)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def scanned(engine: Engine, *, cap: int = 10_000) -> tuple[set[str], int]:
    """Give the kinds of scans that figures need, and how many rows these read, with those that they passed over."""
    with explaining(engine) as scans, Session(engine) as session:
        stats(session, jobs, cap=cap)
    passed_over = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    rows = sum(
        (node["Actual Rows"] + sum(node.get(name, 0) for name in passed_over)) * node["Actual Loops"] for node in scans
    )
    return {node["Node Type"] for node in scans}, round(rows)


def steps(engine: Engine, *, cap: int = 10_000) -> int:
    """Give how many steps figures are for the machine of SQLite, in tens."""
    counted = Counter[str]()
    with Session(engine) as session:
        driver: Any = session.connection().connection.driver_connection
        driver.set_progress_handler(lambda: counted.update(["steps"]), 10)
        stats(session, jobs, cap=cap)
        driver.set_progress_handler(None, 0)
    return counted["steps"]


SITUATIONS: dict[str, tuple[str, ...]] = {
    "analyzed": ("ANALYZE job",),
    "statistics of the time before": (),
    "no statistics": (
        "DELETE FROM pg_statistic WHERE starelid = 'job'::regclass",
        "UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = 'job'::regclass",
    ),
    "taken for ready jobs": (
        "UPDATE job SET status = 'ready' WHERE id > 6250",
        "ANALYZE job",
        "UPDATE job SET status = 'done' WHERE id > 6250",
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_f63_done_rows_are_not_looked_at(postgresql_engine: Engine, situation: str) -> None:
    """Five times as many done rows, and as many rows are read as before, by indexes, whatever the statistics say."""
    _, before = scanned(postgresql_engine)
    with postgresql_engine.begin() as connection:
        fill(connection, "done", 20_000)
        for statement in SITUATIONS[situation]:
            connection.execute(text(statement))

    kinds, after = scanned(postgresql_engine)

    # A bitmap of all dead jobs where PostgreSQL knows nothing of them at all.
    assert kinds <= {"Index Scan", "Index Only Scan", *(["Bitmap Heap Scan"] if situation == "no statistics" else [])}
    assert after == before < 3000


def fill_more(connection: Connection) -> None:
    """Insert more jobs of each kind that is counted."""
    fill(connection, "ready", 1000)
    fill(connection, "ready", 5000, at=FUTURE)
    for status in ("running", "failed", "dead"):
        fill(connection, status, 3000)


@pytest.mark.parametrize("is_analyzed", [True, False])
def test_f63_rows_past_the_cap_are_not_looked_at(postgresql_engine: Engine, is_analyzed: bool) -> None:
    """Where each kind has reached the cap, ten times as many jobs of it are not one row more to read."""
    with postgresql_engine.begin() as connection:
        connection.execute(text("UPDATE job SET last_lease_expired_at = now() WHERE id % 4 = 0"))
    _, before = scanned(postgresql_engine, cap=10)
    with postgresql_engine.begin() as connection:
        fill_more(connection)
        connection.execute(text("UPDATE job SET last_lease_expired_at = now() WHERE id % 4 = 0"))
        connection.execute(text("ANALYZE job" if is_analyzed else "SELECT 1"))

    kinds, after = scanned(postgresql_engine, cap=10)

    assert kinds == {"Index Scan", "Index Only Scan"}
    assert after == before < 300


@pytest.mark.parametrize("is_analyzed", [True, False])
def test_f63_done_rows_are_no_step_more(sqlite_engine: Engine, is_analyzed: bool) -> None:
    """On SQLite, too: five times as many done rows, and its machine takes hardly a step more."""
    before = steps(sqlite_engine)
    with sqlite_engine.begin() as connection:
        fill(connection, "done", 20_000)
        connection.execute(text("ANALYZE" if is_analyzed else "SELECT 1"))

    assert steps(sqlite_engine) == pytest.approx(before, rel=0.05)


def test_f63_rows_past_the_cap_are_no_step_more(sqlite_engine: Engine) -> None:
    """On SQLite, too: where each kind has reached the cap, ten times as many jobs of it cost nothing."""
    before = steps(sqlite_engine, cap=10)
    with sqlite_engine.begin() as connection:
        fill_more(connection)

    assert steps(sqlite_engine, cap=10) == pytest.approx(before, rel=0.05)


def test_f63_figures_are_few_statements(postgresql_engine: Engine) -> None:
    """However many lanes and schedules there are, it takes five trips to the database."""
    said: list[str] = []

    def hear(_: Any, cursor: Any, sql: str, *rest: Any) -> None:
        said.append(sql)

    event.listen(postgresql_engine, "before_cursor_execute", hear)
    with Session(postgresql_engine) as session:
        found = stats(session, jobs)

    assert len(found.lanes) == 5
    assert len(said) == 5
