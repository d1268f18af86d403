from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from sqla_jobs.schema import archiving
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import as_rows, capabilities
from sqla_jobs.status import JobStatus
from tests.operations.archives import DAY, jobs, made_once
from tests.schema.test_schedule_plans import explaining

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine, Executable

    from sqla_jobs.schema.dialects import Capabilities

COUNT = 20_000

# A tenth of the rows have not ended; among the others a hundredth is failed, and a hundredth doesn't say when it ended.
FILLED = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
INSERT INTO job (type, status, run_at, created_at, finished_at)
SELECT 'send', CASE WHEN n % 10 = 0 THEN 'ready' WHEN n % 100 = 1 THEN 'failed' ELSE 'done' END, '2024-01-01 00:00:00',
       '2024-01-01 00:00:00', '2024-01-01 00:00:00' FROM numbers
"""
UNDATED = "UPDATE job SET finished_at = NULL WHERE status = 'ready' OR id % 100 = 2"
ARCHIVED = """
INSERT INTO archived_job (id, type, status, owner, page, run_at, created_at, finished_at, archived_at)
SELECT -id, type, 'done', 'house', 1, run_at, created_at, finished_at, run_at FROM job
"""

GONE = {"age": DAY.total_seconds(), "after_at": "2024-01-01 00:00:00", "after_id": COUNT // 2, "limit": 500}

IDS = as_rows([{"id": 10 * number + 3} for number in range(500)])


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def filled(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with made_once(request.param, request) as engine:
        with engine.begin() as connection:
            connection.execute(text(FILLED), {"count": COUNT})
            connection.execute(text(UNDATED))
            connection.execute(text(ARCHIVED))
            connection.execute(text("ANALYZE"))
        yield engine


STATEMENTS: dict[str, tuple[Callable[[Capabilities], Executable], str]] = {
    **{
        f"{status} jobs, {'first' if is_first else 'next'} batch": (
            lambda _, status=status, is_first=is_first: archiving.locked(  # type: ignore[misc]
                archiving.finished(jobs.table, status, is_first=is_first), jobs.table
            ),
            "ix_job_finished",
        )
        for status in (JobStatus.DONE, JobStatus.FAILED, JobStatus.DEAD)
        for is_first in (True, False)
    },
    "jobs without a time": (
        lambda _: archiving.locked(archiving.undated(jobs.table, JobStatus.DONE, is_first=False), jobs.table),
        "ix_job_finished",
    ),
    "count": (
        lambda _: archiving.counted(archiving.finished(jobs.table, JobStatus.DONE, is_first=True)),
        "ix_job_finished",
    ),
    "archived jobs": (
        lambda _: archiving.locked(archiving.archived(archive(), is_first=False), archive()),
        "ix_archived_job_archived",
    ),
    "copy": (lambda can: archiving.copy(jobs.table, archive(), can), "job_pkey"),
    "remove": (lambda can: archiving.remove(jobs.table, can), "job_pkey"),
    "date": (lambda can: archiving.date(jobs.table, can), "job_pkey"),
}
"""By name, each statement, and the index that serves it."""


def archive() -> Any:
    return jobs.archive


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_goes_by_its_index(filled: Engine, name: str) -> None:
    """A batch reads its own rows, in the index's order, whatever else is in the table."""
    build, index = STATEMENTS[name]
    statement = build(capabilities(filled.dialect))

    with filled.connect() as connection:
        prefix = "EXPLAIN (COSTS OFF) " if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
        with explaining(connection, prefix) as lines:
            connection.execute(statement, said(GONE | {"rows": IDS}))
        connection.rollback()

    scans = [line for line in lines if re.search(r"\b(Scan|SCAN|SEARCH)\b.*\b(job|archived_job)\b", line)]
    assert [line for line in scans if not re.search(rf"{index}|PRIMARY KEY", line)] == []
    assert scans
    assert [line for line in lines if re.search(r"\bSort\b|TEMP B-TREE", line)] == []
