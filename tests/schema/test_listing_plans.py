"""What the statements of people read on PostgreSQL, where most of a table is finished jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import event, text

from sqla_jobs.schema import listing
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import as_rows, capabilities
from sqla_jobs.schema.listing import OF_ONE_KEY, OF_THE_ARCHIVE, Condition, Stretch
from sqla_jobs.status import JobStatus
from tests.engines import build_engine, fresh_database
from tests.schema.spoken import ARCHIVE, DIALECTS, JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine, Executable

CAN: Final = capabilities(DIALECTS["postgresql"])

COUNTS: Final = {"done": 20_000, "failed": 2_000, "dead": 2_000, "ready": 2_000, "running": 200}

FILLED: Final = """
INSERT INTO job (type, queue, status, run_at, created_at, started_at, finished_at, locked_by, last_error,
                 idempotency_key)
SELECT CASE WHEN n % 2 = 0 THEN 'send' ELSE 'report' END, CASE WHEN n % 4 < 2 THEN 'default' ELSE 'mail' END, status,
       at, at, at, CASE WHEN status IN ('done', 'failed', 'dead') AND n % 50 > 0 THEN at END,
       CASE WHEN status = 'running' AND n % 50 > 0 THEN 'w' || n % 10 END, 'OSError: ' || n,
       CASE WHEN n % 5 > 0 THEN status || ':' || n END
FROM (SELECT n, CAST(:status AS text) AS status, timestamptz '2024-01-01 00:00:00+00' - n * interval '1 minute' AS at
      FROM generate_series(1, :count) AS n) AS numbers
"""

ARCHIVED: Final = """
INSERT INTO archived_job (id, type, payload, queue, idempotency_key, status, run_at, errors, created_at, archived_at)
SELECT id, type, payload, queue, CASE WHEN id % 2 = 0 THEN 'nightly:' || id % 500 ELSE 'often' END, status, run_at,
       errors, created_at, run_at
FROM job WHERE status IN ('done', 'dead')
"""

LIMIT: Final = 50

CAP: Final = 100


@pytest.fixture(scope="module")
def engine(postgresql_server: str) -> Iterator[Engine]:
    """Give an engine on a database with the jobs, whose statistics are up to date."""
    with fresh_database(postgresql_server) as url:
        engine = build_engine(url)
        JOBS.table.create(engine)
        ARCHIVE.table.create(engine)
        with engine.begin() as connection:
            for status, count in COUNTS.items():
                connection.execute(text(FILLED), {"status": status, "count": count})
            connection.execute(text(ARCHIVED))
            connection.execute(text("ANALYZE job, archived_job"))
        yield engine
        engine.dispose()


def scans(connection: Connection, statement: Executable, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a statement, and give the parts of its plan that read jobs."""
    plans: list[Any] = []

    def explain(_: Any, cursor: Any, sql: str, values: Any, *rest: Any) -> None:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", values)
        (plan,) = cursor.fetchone()
        plans.append(plan if isinstance(plan, list) else json.loads(plan))

    event.listen(connection, "before_cursor_execute", explain)
    connection.execute(statement, parameters)
    event.remove(connection, "before_cursor_execute", explain)
    return list(_job_scans(plans[0][0]["Plan"]))


def _job_scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if node.get("Relation Name") in {"job", "archived_job"} and "Scan" in node["Node Type"]:
        yield node
    for part in node.get("Plans", ()):
        yield from _job_scans(part)


def rows_read(scan: dict[str, Any]) -> float:
    """Give how many rows a part of a plan has looked at, in all of its turns."""
    removed = sum(scan.get(f"Rows Removed by {reason}", 0) for reason in ("Filter", "Index Recheck"))
    read: float = (scan["Actual Rows"] + removed) * scan["Actual Loops"]
    return read


def stretch(key: str, *statuses: str, **more: Any) -> Stretch:
    return Stretch(tuple(JobStatus(status) for status in statuses), key, **more)


TIME = "2023-12-31 21:00:00+00"
LANE = {"queue": "default", "type": "send"}

WINDOWS: dict[str, tuple[Stretch, Condition, tuple[str, int] | None]] = {
    "dead letters": (stretch("finished_at", "failed", "dead"), Condition(), None),
    "dead letters, further on": (stretch("finished_at", "failed", "dead"), Condition(), (TIME, 7)),
    "dead letters, undated": (stretch("finished_at", "failed", "dead", is_empty=True), Condition(), ("", 10**6)),
    "dead letters, of a type": (stretch("finished_at", "dead"), Condition(type="send"), None),
    "dead letters, with a text": (stretch("finished_at", "dead"), Condition(error="nowhere"), None),
    "dead letters, old": (stretch("finished_at", "dead"), Condition(older_than=3600.0), None),
    "dead letters, new": (stretch("finished_at", "dead"), Condition(newer_than=3600.0), None),
    "finished": (stretch("finished_at", "done", "failed", "dead"), Condition(), None),
    "ready": (stretch("run_at", "ready", **LANE), Condition(), None),
    "ready, further on": (stretch("run_at", "ready", **LANE), Condition(), (TIME, 7)),
    "ready, old": (stretch("run_at", "ready", **LANE), Condition(older_than=3600.0), None),
    "running": (stretch("locked_by", "running"), Condition(), None),
    "running, further on": (stretch("locked_by", "running"), Condition(), ("w3", 7)),
    "running nowhere": (stretch("locked_by", "running", is_empty=True), Condition(), None),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_window_reads_its_rows_and_hardly_more(engine: Engine, name: str) -> None:
    """Each window goes along an index from its place on, once for each status, and never through the table."""
    part, condition, after = WINDOWS[name]
    statement = listing.window(JOBS, part, condition, after=after)

    with engine.connect() as connection:
        found = scans(connection, statement, said({"limit": LIMIT}))
        rows = connection.execute(statement, said({"limit": LIMIT})).all()

    assert "Seq Scan" not in {scan["Node Type"] for scan in found}
    # Its place once more for the rows themselves.
    assert sum(rows_read(scan) for scan in found) <= (len(part.statuses) + 1) * LIMIT + 5
    assert 0 < len(rows) <= LIMIT or name in {"running nowhere", "dead letters, new"}


EVERY = tuple(JobStatus)

BY_KEY: dict[str, tuple[Any, Condition, int, int]] = {
    "live": (JOBS, Condition(key="done:7", statuses=EVERY), 1, 2),
    "live, of another status": (JOBS, Condition(key="done:7", statuses=(JobStatus.READY,)), 1, 2),
    "nowhere": (JOBS, Condition(key="done:5", statuses=EVERY), 0, 0),
    # All that hold the key, once, and the rows of the window.
    "archived": (ARCHIVE, Condition(key="nightly:8", statuses=EVERY), 44, 88),
}


@pytest.mark.parametrize("name", BY_KEY)
def test_key_is_found_by_its_index(engine: Engine, name: str) -> None:
    """A key is looked up in its index, and nothing is read but rows that hold it."""
    table, condition, found, most = BY_KEY[name]
    statement = listing.window(table, OF_ONE_KEY, condition, after=None)

    with engine.connect() as connection:
        plan = scans(connection, statement, said({"limit": LIMIT}))
        rows = connection.execute(statement, said({"limit": LIMIT})).all()

    assert "Seq Scan" not in {scan["Node Type"] for scan in plan}
    assert len(rows) == found
    assert sum(rows_read(scan) for scan in plan) <= most


@pytest.mark.parametrize("after", [None, (TIME, 10**6)])
@pytest.mark.parametrize("condition", [Condition(statuses=EVERY), Condition(type="send", statuses=(JobStatus.DEAD,))])
def test_window_of_the_archive_reads_its_rows_and_hardly_more(
    engine: Engine, condition: Condition, after: tuple[str, int] | None
) -> None:
    """It goes along the index of the archive from its place on, whatever the condition leaves of the rows."""
    statement = listing.window(ARCHIVE, OF_THE_ARCHIVE, condition, after=after)

    with engine.connect() as connection:
        plan = scans(connection, statement, said({"limit": LIMIT}))

    assert {scan["Index Name"] for scan in plan} == {"ix_archived_job_archived", "archived_job_pkey"}
    assert LIMIT < sum(rows_read(scan) for scan in plan) <= 2 * LIMIT + 5


def given(status: str) -> dict[str, Any]:
    """Give rows as parameters: the first of that status, and some that there are not."""
    first = 1 + sum(COUNTS[before] for before in list(COUNTS)[: list(COUNTS).index(status)])
    return said({"rows": as_rows([{"id": job_id} for job_id in (*range(first, first + LIMIT), 10**9)])})


LETTERS = (JobStatus.DEAD, JobStatus.FAILED)

OPEN = (JobStatus.READY, JobStatus.RUNNING)

ENDED = (JobStatus.DEAD, JobStatus.DONE, JobStatus.FAILED)

MOVES: dict[str, tuple[Executable, dict[str, Any]]] = {
    "requeue": (
        listing.requeue(JOBS, CAN, statuses=LETTERS, skip_locked=False),
        given("dead") | said({"new_max_attempts": None}),
    ),
    "requeue a batch": (
        listing.requeue(JOBS, CAN, statuses=LETTERS, skip_locked=True),
        given("failed") | said({"new_max_attempts": 3}),
    ),
    "cancel": (listing.cancel(JOBS, CAN, statuses=OPEN, skip_locked=False), given("running") | said({"reason": "x"})),
    "cancel a batch": (
        listing.cancel(JOBS, CAN, statuses=OPEN, skip_locked=True),
        given("ready") | said({"reason": "x"}),
    ),
    "delete": (listing.remove(JOBS, CAN, statuses=ENDED, skip_locked=False), given("done")),
    "delete a batch": (listing.remove(JOBS, CAN, statuses=ENDED, skip_locked=True), given("dead")),
    "statuses": (listing.statuses_of(JOBS, CAN), given("done")),
}


@pytest.mark.parametrize("name", MOVES)
def test_move_goes_by_the_primary_key(engine: Engine, name: str) -> None:
    """A move reads the rows that it was given, whatever else the table holds, and locks them by the same way."""
    statement, parameters = MOVES[name]

    with engine.connect() as connection:
        found = scans(connection, statement, parameters)
        connection.rollback()

    assert "Seq Scan" not in {scan["Node Type"] for scan in found}
    assert {scan["Index Name"] for scan in found if "Index Name" in scan} <= {"job_pkey"}
    assert 0 < sum(rows_read(scan) for scan in found) <= 2 * LIMIT


def test_look_at_one_job_reads_little(engine: Engine) -> None:
    """A job is found by its key; those before it are counted along the index of ready jobs, up to the cap of a lane."""
    with engine.connect() as connection:
        ready = (
            connection.execute(text("SELECT id FROM job WHERE status = 'ready' ORDER BY run_at DESC")).scalars().first()
        )
        details = scans(connection, listing.details(JOBS), said({"of_id": ready}))
        ahead = scans(connection, listing.ahead(JOBS), said({"of_id": ready, "of_queue": "default", "cap": CAP}))
        lanes = scans(connection, listing.lanes_of(JOBS), {})

    assert [(scan["Index Name"], scan["Actual Rows"]) for scan in details] == [("job_pkey", 1)]
    for found, most in ((ahead, 2 * CAP + 30), (lanes, 20)):
        assert "Seq Scan" not in {scan["Node Type"] for scan in found}
        assert 0 < sum(rows_read(scan) for scan in found) <= most
