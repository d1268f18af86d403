from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event, select, update
from sqlalchemy.orm import Session

from sqla_jobs.rules.lease import Lease
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.counters import Tally
from sqla_jobs.runtime.heartbeat import RETRIES, Heartbeat
from sqla_jobs.runtime.holdings import Holding, Holdings
from sqla_jobs.runtime.reporting import Reporter
from tests.runtime.app import PATIENCE, App, Ear, Job, MakeEngine, Note, have_tick, wait_for
from tests.runtime.statements import HEARTBEAT

PAST = datetime(2026, 1, 1, tzinfo=UTC)

REFUSES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON job FOR EACH ROW WHEN (OLD.idempotency_key LIKE 'bad%%')
EXECUTE FUNCTION refuse()
"""


def test_heartbeat_when_handlers_take_every_connection(database_url: str, make_engine: MakeEngine) -> None:
    """Handlers that hold the app's whole pool stop no heartbeat: nobody reaps their jobs, and each runs once."""
    app = App(make_engine(database_url, pool_size=1, max_overflow=0)).create()
    seen = App(make_engine(database_url))
    started, is_over = threading.Event(), threading.Event()
    runs: list[int] = []

    @app.jobs.handler
    def hold(session: Session, number: int) -> None:
        with app.engine.connect():
            runs.append(number)
            started.set()
            wait_for(is_over)
        session.add(Note(text=f"{number}"))

    jobs = [app.add(hold, number) for number in range(3)]

    with app.worker(concurrency=3) as worker:
        wait_for(started)
        with seen.sessions.begin() as session:
            session.execute(update(Job).values(locked_until=PAST))
        have_tick(worker, "heartbeat")
        reaped = worker.reap()
        is_over.set()
        for _ in jobs:
            app.hear("done")

    rows = [app.row(job) for job in jobs]
    assert reaped == 0
    assert sorted(runs) == [0, 1, 2]
    assert [(row.status, row.claims, row.lease_expirations) for row in rows] == [("done", 1, 0)] * 3


def test_heartbeat_when_its_row_is_locked(pg_app: App) -> None:
    """A row that somebody has locked is passed over and still held; the others' leases are renewed meanwhile."""
    is_over, running = threading.Event(), threading.Barrier(3)

    @pg_app.jobs.handler
    def slow() -> None:
        running.wait(PATIENCE)
        wait_for(is_over)

    locked, free = pg_app.add(slow), pg_app.add(slow)

    with pg_app.worker() as worker:
        running.wait(PATIENCE)
        with pg_app.sessions.begin() as session:
            session.get_one(Job, locked, with_for_update=True)
            before = [pg_app.row(job).locked_until for job in (locked, free)]
            have_tick(worker, "heartbeat")
            after = [pg_app.row(job).locked_until for job in (locked, free)]
        is_over.set()
        ends = [pg_app.hear("done").job_id for _ in range(2)]

    assert None not in before + after
    assert [then == now for then, now in zip(before, after, strict=True)] == [True, False]
    assert sorted(ends) == [locked, free]


class Beats:
    """A heartbeat without its thread, and what it says. Of the held rows the first ones are bad: they refuse."""

    def __init__(self, app: App, *, good: int, bad: int) -> None:
        self._app = app
        values: dict[str, Any] = {"type": "send", "status": "running", "locked_by": "me", "payload": {}}
        values |= {"attempts": 1, "claims": 1, "locked_until": PAST, "started_at": PAST}
        with app.sessions.begin() as session:
            keys = [*(f"bad{number}" for number in range(bad)), *(f"good{number}" for number in range(good))]
            session.add_all(Job(**values, idempotency_key=key) for key in keys)
        with app.engine.begin() as connection:
            connection.exec_driver_sql(REFUSES)
        self.holdings = Holdings(good + bad)
        spec = app.jobs.handlers.find("send")
        self.held = [Holding(held(row), spec, 0.0) for row in self.rows()]
        self.holdings.offer(self.held)
        self._said: list[str] = []
        event.listen(app.engine, "before_cursor_execute", self._before)
        self.connector = Connector.of_app(app.engine, Opening(app.engine))
        self.heartbeat = Heartbeat(
            app.jobs, self.connector, self.holdings, Reporter(app.jobs, Tally()), lease=timedelta(hours=1)
        )

    def _before(self, _connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if HEARTBEAT in statement:
            self._said.append(statement)

    def rows(self) -> list[Job]:
        with self._app.sessions() as session:
            return list(session.scalars(select(Job).order_by(Job.id)))

    def beat(self) -> tuple[int, int]:
        """Give how many renewals a beat sends, and of how many rows the lease is longer then."""
        before = {row.id: row.locked_until for row in self.rows()}
        self._said.clear()
        self.heartbeat.tick()
        return len(self._said), sum(row.locked_until != before[row.id] for row in self.rows())

    def repair(self) -> None:
        """Let all rows be changed."""
        with self._app.engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER refuse ON job")


def held(row: Job) -> Lease:
    assert row.started_at is not None
    return Lease(row.id, "send", "default", {}, 1, 5, 0, 1, "me", row.started_at, None, ())


@pytest.fixture
def sending(pg_app: App) -> App:
    """Give an app with a handler."""

    @pg_app.jobs.handler
    def send() -> None: ...

    return pg_app


def test_beat_when_one_row_of_many_refuses(sending: App) -> None:
    """One bad row costs a few statements once, and one in each later beat; all others are renewed each time."""
    beats = Beats(sending, good=127, bad=1)

    seen = [beats.beat() for _ in range(3)]
    beats.connector.close()

    assert seen == [(1 + 2 * 7, 127), (2, 127), (2, 127)]


def test_beat_when_many_rows_refuse(sending: App) -> None:
    """Of many bad rows a beat tries some; once the cause is gone, a few statements renew them all."""
    beats = Beats(sending, good=10, bad=70)

    beats.beat()
    refused = beats.beat()
    beats.repair()
    repaired = [beats.beat(), beats.beat()]
    beats.connector.close()

    assert refused == (1 + RETRIES, 10)
    assert repaired == [(1 + 7, 80), (1, 80)]


def test_beat_when_a_refused_row_is_no_more_held(sending: App) -> None:
    """A row that was refused costs nothing once its job has ended."""
    beats = Beats(sending, good=3, bad=1)
    beats.beat()

    beats.holdings.settled(beats.held[:1])
    seen = beats.beat()
    beats.connector.close()

    assert seen == (1, 3)


def test_beat_when_a_snapshot_begins_between_its_statements(sending: App, ear: Ear) -> None:
    """A handler need not wait for the end of a beat to begin its snapshot; from then on its row is left alone."""
    beats = Beats(sending, good=3, bad=1)
    waited: list[bool] = []

    def begin_snapshot(_: object) -> bool:
        waited.append(beats.heartbeat.between_beats.locked())
        beats.held[1].is_left_alone = True
        return True

    ear.addFilter(begin_snapshot)  # told of the bad row, the first of the rows that are tried alone
    seen = beats.beat()
    beats.connector.close()

    assert waited == [False]
    assert seen == (4, 2)
