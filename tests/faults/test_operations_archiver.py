"""An archiver beside workers, killed again and again."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any, Final

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from sqla_jobs import enqueue_many, stats
from sqla_jobs.schema.statements import current_time
from tests.crash.app import build_app_engine
from tests.crash.archivers import DAY, ArchivedJob, Base, Job, jobs, speak
from tests.crash.processes import Crew, Said

DONE: Final = 20_000

MULTIPLY: Final = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count - 1)
INSERT INTO job (type, status, run_at, created_at, finished_at, locked_by, locked_until, claims)
SELECT type, status, run_at, created_at, finished_at, locked_by, locked_until, claims FROM job, numbers WHERE id = :id
"""

PLACES: Final = [("SELECT job.id", 7), ("INSERT INTO archived_job", 3), ("DELETE FROM job", 5)]
"""Where archivers are killed: with rows locked, with a copy made, with the row deleted and nothing committed."""


def fill(session: Session, count: int, status: str, **columns: Any) -> None:
    """Insert jobs that are sixty days old."""
    now = session.scalars(current_time(jobs.table)).one()
    job = Job(**{"type": "speak", "status": status, "run_at": now - 60 * DAY, "created_at": now - 60 * DAY} | columns)
    session.add(job)
    session.flush()
    session.execute(text(MULTIPLY), {"count": count, "id": job.id})


def fill_all(session: Session) -> None:
    """Insert what is to be archived, and what is not."""
    now = session.scalars(current_time(jobs.table)).one()
    fill(session, DONE, "done", finished_at=now - 50 * DAY)
    fill(session, 30, "failed", finished_at=now - 50 * DAY, last_error="cancelled")
    fill(session, 20, "dead", finished_at=now - 50 * DAY)
    # By plain SQL: it says not when, or just now.
    fill(session, 10, "dead")
    fill(session, 10, "failed", finished_at=now)
    # Pending: of a type that nobody here knows, due in a year, and running on a host that is alive.
    fill(session, 500, "ready", type="unknown")
    fill(session, 500, "ready", run_at=now + 365 * DAY)
    fill(session, 10, "running", locked_by="elsewhere", locked_until=now + DAY)


def counted(session: Session, model: type[Job | ArchivedJob]) -> Counter[tuple[str, str]]:
    """Count the rows by type and status."""
    return Counter((row[0], row[1]) for row in session.execute(select(model.type, model.status)))


@pytest.mark.slow
def test_f63_archiving_a_big_table_with_kills_in_between(database_url: str) -> None:
    """What ended long ago is in the archive exactly once, all else is where it was, and claims go on meanwhile."""
    engine = build_app_engine(database_url)  # without the statement timeout of the processes
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        fill_all(session)
        before = set(session.scalars(select(Job.id)))

    with Crew() as crew:
        steady = crew.start(database_url, role="archive", archives=False)
        live: set[int] = set()
        for place, number in PLACES:
            killed = crew.start(database_url, role="archive", archives=True, place=place, number=number)
            with Session(engine) as session, session.begin():
                live |= {each.id for each in enqueue_many(session, [speak.job() for _ in range(50)])}
                figures = stats(session, jobs)
            assert (figures.unknown, figures.later, figures.running >= 10) == (500, 500, True)
            assert killed.ended() == -signal.SIGKILL
        last = crew.start(database_url, role="archive", archives=True)
        last.expect_log("done jobs are archived")
        waiting = set(live)
        crew.wait(lambda said: strike(waiting, said))
        assert [last.stopped(), steady.stopped()] == [0, 0]

    with Session(engine) as session:
        moved, left = set(session.scalars(select(ArchivedJob.id))), set(session.scalars(select(Job.id)))
        assert counted(session, ArchivedJob) == {
            ("speak", "done"): DONE,
            ("speak", "failed"): 30,
            ("speak", "dead"): 20,
        }
        assert counted(session, Job) == {
            ("speak", "done"): len(live),
            ("speak", "dead"): 10,
            ("speak", "failed"): 10,
            ("unknown", "ready"): 500,
            ("speak", "ready"): 500,
            ("speak", "running"): 10,
        }
        assert None not in set(session.scalars(select(Job.finished_at).where(Job.status == "dead")))
    assert not moved & left
    assert moved | left == before | live
    engine.dispose()


def strike(waiting: set[int], said: Said) -> bool:
    """Strike a job that is done from the list; give whether none is left."""
    if said.facts.get("end") == "done":
        waiting.discard(said.facts["job"])
    return not waiting
