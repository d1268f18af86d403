from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from sqla_jobs.schema import archiving, listing, reports, schedules, statements
from sqla_jobs.schema.dialects import capabilities
from sqla_jobs.schema.tables import job_table
from tests.schema.models import job_model
from tests.schema.spoken import DIALECTS, JOBS, built, compiled, page, parameters, path, spoken

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

POSTGRESQL, SQLITE = spoken(DIALECTS["postgresql"]), spoken(DIALECTS["sqlite"])
BOTH = [pytest.param(said, id=name) for name, said in (("postgresql", POSTGRESQL), ("sqlite", SQLITE))]

FENCE = re.compile(
    r"job\.id = (given\.id|\S*held_id\S*|\?) AND \(?job\.status \|\| ''\)? = 'running' "
    r"AND job\.claims = (given\.claims|\S*held_claims\S*|\?) "
    r"AND job\.locked_by (IS|IS NOT DISTINCT FROM) (given\.locked_by|\S*held_by|\?)"
)

# Other versions of SQLAlchemy write the same statements with other brackets.
is_written_so = pytest.mark.skipif(
    not sqlalchemy.__version__.startswith("2.1."), reason="the pages are written with SQLAlchemy 2.1"
)


@is_written_so
@pytest.mark.parametrize("name", DIALECTS)
def test_statements_are_those_on_the_page(name: str) -> None:
    """What we say to each database is written down; after a change on purpose, `python -m tests.schema.spoken`."""
    assert page(DIALECTS[name]) == path(name).read_text()


def builders(module: ModuleType) -> list[str]:
    """Return the calls that give a whole statement; what gives a part of one says so by its type."""
    return [
        f"{module.__name__.rpartition('.')[2]}.{name}("
        for name, thing in vars(module).items()
        if callable(thing)
        and not name.startswith("_")
        and getattr(thing, "__module__", "") == module.__name__
        and getattr(thing, "__annotations__", {}).get("return") in {"Executable", "Select[Any]"}
    ]


def test_every_builder_is_on_the_page() -> None:
    """No statement is said without standing on a page."""
    source = path("spoken").parent.parent.joinpath("spoken.py").read_text()
    said = [call for module in (statements, schedules, listing, reports, archiving) for call in builders(module)]

    assert len(said) > 30
    assert [call for call in said if call not in source] == []


@pytest.mark.parametrize("database", DIALECTS)
def test_parameters_have_names_that_no_column_has(database: str) -> None:
    """SQLAlchemy takes a parameter called like a column for its new value, and an app calls its columns as it likes."""
    dialect = DIALECTS[database]
    names = {name: parameters(statement, dialect) for name, statement in built(dialect).items()}

    assert {"sqla_jobs_lease", "sqla_jobs_limit", "sqla_jobs_locked_by"} <= names["claim"]
    assert {each for found in names.values() for each in found if not each.startswith("sqla_jobs_")} == set()


@pytest.mark.parametrize("name", ["claim", "next due", "lanes", "lane counts"])
def test_lanes_are_found_one_by_one_whatever_the_plan(name: str) -> None:
    """The limits of the loose scan are written out: hidden from a generic plan, each step would read the table."""
    scan = POSTGRESQL[name].partition("UNION ALL")
    recursive = scan[2].partition("\n)")[0] if "\n)" in scan[2] else scan[2]

    assert "LIMIT 1" in scan[0]
    assert recursive.count("LIMIT 1") >= 2
    assert "LIMIT %" not in scan[0]


@pytest.mark.parametrize("name", ["claim", "claim from every queue"])
def test_claim_locks_in_materialized_ctes_and_skips_what_is_locked(name: str) -> None:
    """On PostgreSQL rows are locked once, by CTEs that no plan can repeat, without the key, and without a wait."""
    locking, _, updating = POSTGRESQL[name].partition("UPDATE job SET")

    parts = locking.split(" AS MATERIALIZED")
    assert [part.count("FOR NO KEY UPDATE SKIP LOCKED") for part in parts] == [0] + [1] * (len(parts) - 1)
    assert len(parts) > 1
    assert "SKIP LOCKED" not in updating
    assert "FOR UPDATE" not in locking


@pytest.mark.parametrize("name", ["claim", "claim from every queue", "renew", "expired"])
def test_locking_clauses_are_left_out_where_rows_are_not_locked(name: str) -> None:
    """On SQLite the transaction holds the one write lock, and the statement says nothing of locks."""
    assert "SKIP LOCKED" not in SQLITE[name]
    assert "SKIP LOCKED" in POSTGRESQL[name]
    assert "FOR NO KEY UPDATE" in POSTGRESQL[name]


def test_settle_waits_for_locks() -> None:
    """A settle passes over nothing: its answer is final."""
    assert "SKIP LOCKED" not in POSTGRESQL["settle"]
    assert "NOWAIT" not in POSTGRESQL["settle"]


@pytest.mark.parametrize("said", BOTH)
@pytest.mark.parametrize("name", ["renew", "held", "settle", "complete", "complete one"])
def test_fence_is_the_same_in_every_statement_that_has_it(said: dict[str, str], name: str) -> None:
    """Id, status, claim and worker: whoever lacks one of them writes nothing."""
    assert FENCE.search(said[name])


@pytest.mark.parametrize("said", BOTH)
@pytest.mark.parametrize("name", ["renew", "settle", "complete"])
def test_fenced_write_returns_what_it_matched(said: dict[str, str], name: str) -> None:
    """What came back tells whose fence held."""
    assert re.search(r"RETURNING (job\.)?id, (job\.)?claims$", said[name])


@pytest.mark.parametrize("said", BOTH)
@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("claim", "ready"),
        ("claim from every queue", "ready"),
        ("next due", "ready"),
        ("expired", "running"),
        ("strays", "running"),
    ],
)
def test_predicates_of_partial_indexes_are_literals(said: dict[str, str], name: str, status: str) -> None:
    """A planner that sees a parameter can't know that the partial index serves, in a generic plan least of all."""
    compared = re.findall(r"WHERE \w+\.status = (\S+)", said[name])

    assert compared
    assert set(compared) == {f"'{status}'"}


@pytest.mark.parametrize("said", BOTH)
def test_heartbeat_writes_the_lease_alone(said: dict[str, str]) -> None:
    """A column more, and an index might have to know of each beat."""
    (written,) = re.findall(r"UPDATE job SET (.*) WHERE ", said["renew"])

    assert re.findall(r"(?:^|, )(\w+)=", written) == ["locked_until"]


@pytest.mark.parametrize("said", BOTH)
@pytest.mark.parametrize("name", ["claim", "claim from every queue", "expired", "strays", "next due"])
def test_batches_are_ordered_and_limited(said: dict[str, str], name: str) -> None:
    """Each batch has its order and its limit."""
    assert "ORDER BY" in said[name]
    assert "LIMIT" in said[name]


@pytest.mark.parametrize("said", BOTH)
@pytest.mark.parametrize("name", ["insert job with a key", "insert jobs with keys"])
def test_key_alone_is_ignored_when_taken(said: dict[str, str], name: str) -> None:
    """The conflict is on the key and its index, so the app's own unique columns still raise."""
    assert "ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING" in said[name]


@pytest.mark.parametrize("said", BOTH)
@pytest.mark.parametrize("name", ["insert job", "insert job with a delay", "insert job at a time", "insert jobs"])
def test_insert_without_a_key_ignores_nothing(said: dict[str, str], name: str) -> None:
    """A job without a key is inserted or raises."""
    assert "ON CONFLICT" not in said[name]


def test_notify_rides_in_the_insert() -> None:
    """The wake-up costs no round trip, and its payload is the queue."""
    assert re.search(r"RETURNING .*, pg_notify\(\S+, job\.queue\) AS \w+$", POSTGRESQL["insert job"])
    assert not any("pg_notify" in said for said in SQLITE.values())


@pytest.mark.parametrize("clock", ["now()", "clock_timestamp", "CURRENT_TIMESTAMP", "LOCALTIME"])
def test_no_other_clock_is_said(clock: str) -> None:
    """On PostgreSQL the time is the statement's: not the transaction's, and not one that no index serves."""
    assert not [name for name, said in POSTGRESQL.items() if clock.lower() in said.lower()]


TIMED: dict[str, Callable[[Any, Any], Any]] = {
    "claim": lambda jobs, can: statements.claim(jobs, can, every_queue=False),
    "next due": lambda jobs, can: statements.next_due(jobs, every_queue=False),
    "renew": statements.renew,
    "settle": statements.settle,
    "expired": lambda jobs, can: statements.expired(jobs),
    "current time": lambda jobs, can: statements.current_time(jobs),
    "insert job": lambda jobs, can: statements.insert_job(
        jobs, can, has_key=False, has_time=False, is_delayed=False, channel=None
    ),
    "insert job with a delay": lambda jobs, can: statements.insert_job(
        jobs, can, has_key=False, has_time=False, is_delayed=True, channel=None
    ),
    "insert jobs": lambda jobs, can: statements.insert_jobs(jobs, can, {"run_at": jobs.now}, has_keys=False),
    "insert jobs with keys": lambda jobs, can: statements.insert_jobs(jobs, can, {"run_at": jobs.now}, has_keys=True),
}


@pytest.mark.parametrize("database", DIALECTS)
@pytest.mark.parametrize("name", TIMED)
def test_every_time_is_the_clock_that_was_given(database: str, name: str) -> None:
    """With `Jobs(…, now=…)`, each statement that has a time has that expression, and the real clock nowhere."""
    dialect = DIALECTS[database]
    moved = job_table(job_model(), sqlalchemy.func.my_clock())

    said = compiled(TIMED[name](moved, capabilities(dialect)), dialect)

    assert "my_clock()" in said
    assert "statement_timestamp" not in said
    assert "'now'" not in said


def test_statement_is_built_once_for_a_table() -> None:
    """A statement is kept: SQLAlchemy's cache and ours meet the same object again."""
    can = capabilities(DIALECTS["postgresql"])

    assert statements.settle(JOBS, can) is statements.settle(JOBS, can)
    assert statements.claim(JOBS, can, every_queue=True) is not statements.claim(JOBS, can, every_queue=False)
