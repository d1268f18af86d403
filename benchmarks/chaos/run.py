"""The order of events: start, disturb, heal, drain, judge."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import Session

from benchmarks.chaos import app
from benchmarks.chaos.crew import Crew
from benchmarks.chaos.faults import Faults, Urls
from benchmarks.chaos.judge import Verdict, judge
from benchmarks.chaos.people import People
from benchmarks.chaos.tables import Known, Planned, Schedule, Taken, Violation, create_tables
from sqla_jobs.testing import tick
from tests.servers import PostgresServer

WORKERS = 4
"""And half as many enqueuers."""

LONGEST_DRAIN = 75.0
"""Seconds: twice the longest wait after errors of the database, and some."""

SETTINGS = (
    "ALTER SYSTEM SET max_connections = 160",
    "ALTER SYSTEM SET superuser_reserved_connections = 10",
    "ALTER SYSTEM SET autovacuum = on",
    "ALTER SYSTEM SET autovacuum_naptime = 2",
    "CREATE ROLE app LOGIN",
    "GRANT ALL ON SCHEMA public TO app",
)

TELL = 10.0
"""Seconds of the drain after which it is told what is left."""

Say = Callable[[str], None]

LEFT = "SELECT count(*) FROM job WHERE status IN ('ready', 'running')"

UNFINISHED = """
SELECT id, type, status, 'attempt', attempts, 'refunds', refunds, 'due in', extract(epoch FROM run_at - now()),
    locked_by, 'lease', extract(epoch FROM locked_until - now()), split_part(last_error, chr(10), -1)
FROM job WHERE status IN ('ready', 'running') ORDER BY run_at LIMIT 20
"""

SCHEDULES = """
SELECT name, 'next', next_run_at - now(), 'last', last_slot - now(), slots_missed, overlaps_skipped, last_error
FROM schedule WHERE enabled
"""

BEHIND = """
SELECT count(*) FROM planned JOIN schedule ON schedule.id = schedule_id
WHERE next_run_at IS NULL OR next_run_at <= %s OR last_error IS NOT NULL
"""


@dataclass(slots=True)
class Report:
    """What a run has found, and what it was."""

    verdict: Verdict
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    is_drained: bool = True

    @property
    def is_clean(self) -> bool:
        return self.is_drained and self.verdict.is_clean


def run(seconds: float, seed: int, say: Say, *, workers: int = WORKERS) -> Report:
    """Disturb an app for that long, its start included, and judge what is left of it."""
    began = time.monotonic()
    draw = random.Random(seed)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sqla_jobs_chaos_"))
        stack.push(partial(_remove_when_interrupted, folder))
        server = stack.enter_context(PostgresServer())
        urls = Urls(server)
        first_slot = _set_up(server, urls)
        crew = stack.enter_context(closing(Crew(folder)))
        faults = Faults(server, urls, crew, random.Random(draw.random()), say)
        people = stack.enter_context(closing(People(urls.sqlalchemy, random.Random(draw.random()), first_slot)))
        crew.start(urls.sqlalchemy, workers=workers, enqueuers=max(1, workers // 2))
        crew.wait_until_serving()
        people.start()
        say(f"{time.monotonic() - began:.1f} s: all serve; logs are in {folder}")
        faults.run(max(began + seconds - time.monotonic(), seconds / 2))
        healed = time.monotonic()
        people.close()
        is_drained = _drained(urls, crew, say)
        recovery = time.monotonic() - healed
        crew.stop_workers()
        report = _judged(server, crew.known, [*crew.surprises, *people.surprises], is_drained=is_drained)
        report.figures |= {
            "kills": faults.counts["kill"] + faults.counts["kill_enqueuer"],
            "faults": dict(sorted(faults.counts.items())),
            "recovery_s": round(recovery, 1),
            "backends": dict(faults.backends),
            "acts": people.acts,
            "starts": sum(post.starts for post in (*crew.workers, *crew.enqueuers)),
        }
    if report.is_clean:
        shutil.rmtree(folder)
    report.figures |= {"seed": seed, "seconds": round(time.monotonic() - began, 1)}
    return report


def _remove_when_interrupted(folder: Path, kind: type[BaseException] | None, *_: object) -> None:
    if kind is not None and issubclass(kind, SystemExit):
        shutil.rmtree(folder)


def _set_up(server: PostgresServer, urls: Urls) -> datetime:
    """Make the role and the tables, and plan the schedules; gives the first slot of one that fires each second."""
    with psycopg.connect(urls.admin, autocommit=True) as connection:
        for statement in SETTINGS:
            connection.execute(statement)
        # What was committed outlives the server's crash: else a job that is lost would not be ours.
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    server.stop()
    server.start()
    engine = create_engine(urls.sqlalchemy, connect_args={"application_name": "harness"})
    create_tables(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Taken(id=1), *app.schedule_rows()])
        tick(session, app.jobs)
        first_slots: list[datetime] = []
        for recurring in app.RECURRING:
            schedule = session.scalars(select(Schedule).where(Schedule.name == recurring.name)).one()
            assert schedule.next_run_at is not None
            first_slots.append(schedule.next_run_at)
            planned = Planned(schedule_id=schedule.id, first_slot=schedule.next_run_at)
            planned.step, planned.leaves_out = recurring.step, recurring.leaves_out
            session.add(planned)
    engine.dispose()
    return min(first_slots)


def _drained(urls: Urls, crew: Crew, say: Say) -> bool:
    """Let the app come to rest: no more jobs, then no more slots, then nothing that is left to run."""
    crew.stop_enqueuers()
    with psycopg.connect(urls.app, autocommit=True) as connection:
        row = connection.execute("SELECT statement_timestamp()").fetchone()
        rest = _Rest(connection, say)
        is_caught_up = rest.comes(BEHIND, row)
        connection.execute("UPDATE schedule SET enabled = false")
        return rest.comes(LEFT) and is_caught_up


class _Rest:
    """Waits until there is nothing left of something, and tells now and then what there is."""

    def __init__(self, connection: psycopg.Connection[Any], say: Say) -> None:
        self._connection = connection
        self._say = say
        self._began = time.monotonic()
        self._tell_at = TELL
        self._pause = threading.Event()

    def comes(self, query: LiteralString, parameters: tuple[Any, ...] | None = None) -> bool:
        """Give whether a query that counts gives 0 in time."""
        while self._connection.execute(query, parameters).fetchone() != (0,):
            self._pause.wait(0.05)
            waited = time.monotonic() - self._began
            if waited > min(self._tell_at, LONGEST_DRAIN):
                self._tell(waited)
            if waited > LONGEST_DRAIN:
                return False
        return True

    def _tell(self, waited: float) -> None:
        self._tell_at += TELL
        for query in (UNFINISHED, SCHEDULES):
            for each in self._connection.execute(query).fetchall():
                self._say(f"after {waited:.0f} s: {' '.join(map(str, each))}")


def _judged(server: PostgresServer, known: dict[str, int | None], surprises: list[str], *, is_drained: bool) -> Report:
    engine = create_engine(server.url)
    with Session(engine) as session, session.begin():
        session.add_all([Known(batch=batch, entries=entries) for batch, entries in known.items()])
        session.add_all([Violation(what=surprise) for surprise in surprises])
    with engine.connect() as connection:
        connection.execute(text("ANALYZE"))
        report = Report(judge(connection), is_drained=is_drained)
        report.figures |= dict(connection.execute(FIGURES).mappings().one())
    engine.dispose()
    return report


FIGURES = text("""
SELECT (SELECT count(*) FROM final) AS jobs,
    (SELECT json_object_agg(status, jobs) FROM (SELECT status, count(*) AS jobs FROM final GROUP BY status) AS s)
        AS statuses,
    (SELECT count(*) FROM effect) AS effects,
    (SELECT count(*) FROM outside_run) AS outside_runs,
    (SELECT count(DISTINCT (schedule_id, slot)) FROM final WHERE slot IS NOT NULL) AS slots,
    (SELECT count(*) FROM archived_job) AS archived,
    (SELECT count(*) FROM removed) AS removed,
    (SELECT count(*) FROM known WHERE entries IS NOT NULL) AS commits,
    (SELECT count(*) FROM known WHERE entries IS NULL) AS rollbacks,
    (SELECT count(*) FROM entry WHERE is_duplicate) AS duplicates,
    (SELECT sum(claims) FROM final) AS claims,
    (SELECT sum(refunds) FROM final) AS refunds,
    (SELECT max(refunds) FROM final) AS most_refunds,
    (SELECT sum(lease_expirations) FROM final) AS expirations
""")
