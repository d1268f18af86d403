from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text, update

from tests.engines import build_engine
from tests.runtime.app import AT_ONCE, App, Ear, Job, have_tick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqla_jobs import Worker

REFUSALS = {
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'too sad'; END $$",
        """CREATE TRIGGER refuse BEFORE UPDATE ON job FOR EACH ROW WHEN (NEW.last_error LIKE '%boom%')
           EXECUTE FUNCTION refuse()""",
    ],
    "sqlite": [
        """CREATE TRIGGER refuse BEFORE UPDATE ON job WHEN NEW.last_error LIKE '%boom%'
           BEGIN SELECT RAISE(ABORT, 'too sad'); END"""
    ],
}
"""No row may say that something went `boom`."""

CHECK_MARK = "✓"
"""A letter that LATIN1 lacks."""


@pytest.fixture
def latin_app(postgresql_server: str) -> Iterator[App]:
    """Give an app on a PostgreSQL database whose encoding is LATIN1."""
    server, name = make_url(postgresql_server).set(drivername="postgresql+psycopg"), f"sqla_jobs_{uuid4().hex}"
    owner = create_engine(server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with closing(owner.connect()) as connection:
        # Each of a server's other providers has its own encodings; those before 15 have one.
        provider = "LOCALE_PROVIDER libc" if (connection.dialect.server_version_info or ()) >= (15,) else ""
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' {provider} LOCALE 'C'")
        engine = build_engine(server.set(database=name).render_as_string(hide_password=False))
        yield App(engine).create()
        engine.dispose()
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


def look_for_strays(worker: Worker) -> None:
    """Have a running worker look now for jobs of its name that it does not hold."""
    machinery = worker._machinery  # pyright: ignore[reportPrivateUsage]
    assert machinery is not None
    machinery.dispatcher._strays_at = 0.0  # pyright: ignore[reportPrivateUsage]  # its time is no test's
    have_tick(worker, "dispatcher")


def test_job_when_its_row_refuses_the_end(app: App, ear: Ear) -> None:
    """A job whose end can't be written waits for its lease to run out, and its next run is counted as one."""
    runs: list[None] = []

    @app.jobs.handler(max_attempts=2, backoff=AT_ONCE)
    def break_once() -> None:
        runs.append(None)
        if len(runs) == 1:
            raise ValueError("boom")

    @app.jobs.handler
    def other() -> None: ...

    with app.engine.begin() as connection:
        for statement in REFUSALS[app.engine.dialect.name]:
            connection.execute(text(statement))
    job = app.add(break_once)

    with app.worker() as worker:
        ear.wait_for(f"job {job} can't be settled")
        for _ in range(2):  # the first, so that the refusal is dealt with; the second, so that a stray would be
            following = app.add(other)
            assert app.hear("done").job_id == following
            look_for_strays(worker)
        waiting = app.row(job)
        with app.sessions.begin() as session:
            session.execute(update(Job).where(Job.id == job).values(locked_until=datetime(2026, 1, 1, tzinfo=UTC)))
        have_tick(worker, "heartbeat")
        worker.reap()
        ends = [app.hear(name).job_id for name in ("lease_expired", "retried", "done")]

    row = app.row(job)
    assert (waiting.status, waiting.claims, waiting.locked_by) == ("running", 1, worker.name)
    assert ends == [job] * 3
    assert (row.status, row.attempts, row.refunds, row.lease_expirations, len(runs)) == ("done", 2, 0, 1, 2)


def test_errors_when_the_database_can_not_hold_their_letters(latin_app: App) -> None:
    """An error that the database's encoding can't hold is stored in ASCII, in each attempt."""

    @latin_app.jobs.handler(max_attempts=2, backoff=AT_ONCE)
    def tick() -> None:
        raise ValueError(f"not {CHECK_MARK} right")

    job = latin_app.add(tick)

    latin_app.run()

    row = latin_app.row(job)
    assert (row.status, row.attempts, row.refunds, row.lease_expirations) == ("dead", 2, 0, 0)
    assert (row.last_error or "").endswith(r"ValueError: not \u2713 right")
    assert [error["error"].endswith(r"ValueError: not \u2713 right") for error in row.errors] == [True, True]
    assert latin_app.heard() == ["retried", "dead"]


def test_result_when_the_database_can_not_hold_its_letters(latin_app: App) -> None:
    """Work that is done stays done, without the result, and the row says why; others in the batch are as ever."""

    @latin_app.jobs.handler(max_attempts=1)
    def say(is_plain: bool) -> str:
        return "plain" if is_plain else CHECK_MARK

    jobs = [latin_app.add(say, is_plain) for is_plain in (True, False, True)]

    latin_app.run()

    rows = [latin_app.row(job) for job in jobs]
    assert [(row.status, row.result) for row in rows] == [("done", "plain"), ("done", None), ("done", "plain")]
    assert [row.last_error for row in rows] == [None, "the result was not stored: the database refuses it", None]
    assert latin_app.heard() == ["done"] * 3
