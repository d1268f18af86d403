from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, ProgrammingError

from sqla_jobs import enqueue_many
from sqla_jobs.runtime import refusals
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.counters import Tally
from sqla_jobs.runtime.reporting import Reporter
from sqla_jobs.runtime.services import Reaper
from tests.runtime.app import PATIENCE, App, Ear, Job, MakeEngine, have_tick, wait_for
from tests.runtime.statements import Statements

RAISES = """
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
CREATE {kind} TRIGGER refuse {when} UPDATE ON job {later} FOR EACH ROW
WHEN (OLD.idempotency_key LIKE 'bad%') EXECUTE FUNCTION refuse()
"""

RAISES_IN_A_FILE = """
CREATE TRIGGER refuse BEFORE UPDATE ON job WHEN OLD.idempotency_key LIKE 'bad%'
BEGIN SELECT RAISE({how}, 'not this one'); END
"""

CHECK = "ALTER TABLE job ADD CONSTRAINT refuse CHECK (idempotency_key NOT LIKE 'bad%') NOT VALID"

WAYS = {
    "trigger": ("postgresql", RAISES.format(kind="", when="BEFORE", later="")),
    "commit": ("postgresql", RAISES.format(kind="CONSTRAINT", when="AFTER", later="INITIALLY DEFERRED")),
    "check": ("postgresql", CHECK),
    "abort": ("sqlite", RAISES_IN_A_FILE.format(how="ABORT")),
    "rollback": ("sqlite", RAISES_IN_A_FILE.format(how="ROLLBACK")),
}
"""Ways in which a database refuses to change the rows whose key begins with `bad`."""


@pytest.fixture(params=WAYS)
def refusing(request: pytest.FixtureRequest, make_engine: MakeEngine) -> Refusing:
    """Give an app on a database that can be made to refuse changes, in one way after the other."""
    database, statement = WAYS[request.param]
    engine = make_engine(request.getfixturevalue(f"{database}_url"))
    return Refusing(App(engine).create(), statement)


class Refusing:
    def __init__(self, app: App, statement: str) -> None:
        self.app = app
        self._statement = statement

        @app.jobs.handler
        def send() -> None: ...

        self.send = send

    def begin(self) -> None:
        """Refuse to change bad rows from now on."""
        with self.app.engine.begin() as connection:
            connection.exec_driver_sql(self._statement.replace("%", "%%"))

    def end(self) -> None:
        """Refuse nothing any more."""
        with self.app.engine.begin() as connection:
            table = " ON job" if self.app.engine.dialect.name == "postgresql" else ""
            is_check = self._statement == CHECK
            connection.exec_driver_sql(
                "ALTER TABLE job DROP CONSTRAINT refuse" if is_check else f"DROP TRIGGER refuse{table}"
            )


def test_claim_when_rows_refuse_to_be_changed(refusing: Refusing, ear: Ear) -> None:
    """Rows that the database refuses to change block none behind them, and the log names each once."""
    app = refusing.app
    keys = ["bad1", "bad2", "bad3", "good1", "bad4", "good2", "good3", "bad5", "good4"]
    ids = {key: app.add(refusing.send.using(key=key)) for key in keys}
    refusing.begin()

    app.run(concurrency=4)

    rows = {key: app.row(job) for key, job in ids.items()}
    assert {(row.status, row.claims) for key, row in rows.items() if key.startswith("good")} == {("done", 1)}
    assert {(row.status, row.claims) for key, row in rows.items() if key.startswith("bad")} == {("ready", 0)}
    for key, job in ids.items():
        assert len(ear.lines(f"job {job} can't be claimed", level=30)) == key.startswith("bad")
    assert ear.lines("does not serve") == []


def test_reap_when_rows_refuse_to_be_changed(refusing: Refusing, ear: Ear) -> None:
    """Jobs whose worker vanished are given back, whatever the database refuses beside them."""
    app = refusing.app
    past = datetime(2026, 1, 1, tzinfo=UTC)
    values = {"type": "send", "status": "running", "attempts": 1, "claims": 1, "locked_by": "gone"}
    with app.sessions.begin() as session:
        for key in ("bad1", "good1", "bad2", "good2"):
            session.add(Job(**values, payload={}, idempotency_key=key, locked_until=past, started_at=past))
            session.flush()
    refusing.begin()
    connector = Connector.of_app(app.engine, Opening(app.engine))
    reaper = Reaper(app.jobs, connector, Reporter(app.jobs, Tally()), beat=timedelta(seconds=10))

    reaper.tick()
    seen_first = app.statuses()
    reaper.tick()
    connector.close()

    assert seen_first == ["running"] * 4  # live workers may renew first
    assert app.statuses() == ["running", "ready", "running", "ready"]
    assert [len(ear.lines(f"job {job} can't be reaped", level=30)) for job in (1, 2, 3, 4)] == [1, 0, 1, 0]


def test_heartbeat_when_a_running_row_refuses_to_be_changed(refusing: Refusing, ear: Ear) -> None:
    """A running row that the database does not let renew costs no other job of its worker the lease."""
    app, is_over = refusing.app, threading.Event()
    running = threading.Barrier(3)

    @app.jobs.handler
    def hold() -> None:
        running.wait(PATIENCE)
        wait_for(is_over)

    bad, good = app.add(hold.using(key="bad")), app.add(hold)
    with app.worker() as worker:
        running.wait(PATIENCE)
        with app.sessions.begin() as session:  # the leases of both are over
            session.execute(update(Job).values(locked_until=datetime(2026, 1, 1, tzinfo=UTC)))
        refusing.begin()
        for _ in range(2):
            have_tick(worker, "heartbeat")
        reaped, rows = worker.reap(), [app.row(job) for job in (bad, good)]
        is_over.set()
        assert app.hear("done").job_id == good
        refusing.end()

    assert (reaped, [row.locked_until > row.run_at for row in rows if row.locked_until]) == (0, [False, True])
    assert len(ear.lines(f"job {bad} can't be reaped", level=30)) == 1
    assert len(ear.lines(f"job {bad} can't be renewed", level=30)) == 1
    assert ear.lines("does not serve the heartbeat") == []


def test_claim_when_hundreds_of_the_oldest_refuse(refusing: Refusing, ear: Ear) -> None:
    """However many of the oldest are bad, the job behind them runs; the log names ten, and says that there are more."""
    app = refusing.app
    with app.sessions.begin() as session:
        enqueue_many(session, [refusing.send.using(key=f"bad{number}").job() for number in range(150)])
    last = app.add(refusing.send)
    refusing.begin()

    app.run(concurrency=1)

    assert app.row(last).status == "done"
    assert app.count("ready") == 150
    assert len(ear.lines("can't be claimed", level=30)) == refusals.NAMED + 1


def test_refused_rows_when_the_cause_is_gone(refusing: Refusing, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused rows are tried again after a while, all of them if none is refused again; the log names none twice."""
    now = [1000.0]
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(refusals, "RETRIED", 1)
    app = refusing.app
    jobs = [app.add(refusing.send.using(key=f"bad{number}")) for number in range(9)]
    refusing.begin()

    with app.worker(poll_interval=timedelta(milliseconds=100)):
        ear.wait_for(f"job {jobs[-1]} can't be claimed")
        refusing.end()
        now[0] += refusals.RETRY_SECONDS

        assert sorted(app.hear("done").job_id for _ in jobs) == jobs

    assert len(ear.lines("can't be claimed", level=30)) == 9


def test_refused_rows_when_a_retry_is_refused(refusing: Refusing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that meets a bad row ends there: those behind it wait for the next one."""
    now = [1000.0]
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(refusals, "RETRIED", 1)
    app = refusing.app
    past = datetime(2026, 1, 1, tzinfo=UTC)
    values = {"type": "send", "status": "running", "attempts": 1, "claims": 1, "locked_by": "gone"}
    with app.sessions.begin() as session:
        for number in range(8):
            session.add(Job(**values, payload={}, idempotency_key=f"bad{number}", locked_until=past, started_at=past))
            session.flush()
    refusing.begin()
    connector = Connector.of_app(app.engine, Opening(app.engine))
    reaper = Reaper(app.jobs, connector, Reporter(app.jobs, Tally()), beat=timedelta(seconds=10))
    seen = [reap_all(reaper)]
    refusing.end()
    with app.sessions.begin() as session:
        for number in (0, 1, 2, 4, 5, 6, 7):
            session.get_one(Job, number + 1).idempotency_key = f"good{number}"
    refusing.begin()

    for _ in range(3):
        now[0] += refusals.RETRY_SECONDS
        seen.append(reap_all(reaper))
    connector.close()

    # One, then two, then four with the bad one among them; the last waits, and then that one's turn comes again.
    assert seen == [[], [1, 2, 3, 5, 6, 7], [8], []]
    assert app.statuses() == ["ready"] * 3 + ["running"] + ["ready"] * 4


def reap_all(reaper: Reaper) -> list[int]:
    """Reap until there is no more to reap now, and give the ids."""
    reaped = [settlement.lease.id for settlement in reaper.reap()]
    while reaper.has_more:
        reaped += [settlement.lease.id for settlement in reaper.reap()]
    return sorted(reaped)


def test_claim_when_nothing_is_refused(pg_app: App) -> None:
    """The ordinary claim is one statement, and no row is looked at before it."""
    claims, looks = Statements(pg_app.engine, "SET status='running'"), Statements(pg_app.engine, "NOT IN")

    @pg_app.jobs.handler
    def send() -> None: ...

    pg_app.add(send)

    pg_app.run(concurrency=1)

    assert pg_app.statuses() == ["done"]
    assert (claims.answered > 0, looks.answered) == (True, 0)


class Said(Exception):
    """What a driver raises."""

    def __init__(self, sqlstate: str | None = None) -> None:
        super().__init__("…")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProgrammingError("UPDATE", {}, Said("P0001")), True),
        (IntegrityError("UPDATE", {}, Said("23514")), True),
        (IntegrityError("UPDATE", {}, Said()), True),  # SQLite
        (OperationalError("UPDATE", {}, Said()), False),  # "connection refused"
        (InterfaceError("UPDATE", {}, Said()), False),  # "connection is closed"
        (OperationalError("UPDATE", {}, Said("57P01")), False),
        (ProgrammingError("UPDATE", {}, Said("42P01")), False),
    ],
)
def test_refusal_is_told_from_a_database_that_is_away(error: DBAPIError, expected: bool) -> None:
    """While the database is away, no row is passed over, no completion fails, and no lease is given up."""
    assert refusals.is_refusal(error) is expected
