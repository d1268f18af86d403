from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Connection, Engine, event, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sqla_jobs import GiveUp, InvalidOption, JobEvent, Snooze
from sqla_jobs.rules.retention import Retention
from sqla_jobs.runtime.counters import Counters, Span, Tally
from sqla_jobs.runtime.holdings import Holdings
from sqla_jobs.runtime.probe import Probe
from sqla_jobs.schema.statements import current_time
from tests.runtime.app import AT_ONCE, LONG, PATIENCE, App, Job, Note, wait_for

if TYPE_CHECKING:
    from tests.runtime.app import Ear, MakeEngine

SOON: Final = timedelta(seconds=PATIENCE)


def test_counters_tell_how_attempts_ended(app: App) -> None:
    """By the event's name and the type; each handler's time counts once, and what never ran has none."""
    runs: list[None] = []

    @app.jobs.handler(max_attempts=2, backoff=AT_ONCE)
    def fail() -> None:
        runs.append(None)
        if len(runs) == 1:
            raise Snooze(delay=timedelta(0))
        raise RuntimeError("no")

    @app.jobs.handler
    def give_up() -> None:
        raise GiveUp("no")

    @app.jobs.handler
    def write(session: Session, text: str) -> None:
        session.add(Note(text=text))

    app.add(fail)
    app.add(give_up)
    for number in range(3):
        app.add(write, str(number))
    worker = app.worker()

    worker.run_until_idle()

    counters = worker.counters
    assert counters.ends == {
        ("snoozed", "fail"): 1,
        ("retried", "fail"): 1,
        ("dead", "fail"): 1,
        ("failed", "give_up"): 1,
        ("done", "write"): 3,
    }
    assert {type_: span.count for type_, span in counters.job_seconds.items()} == {"fail": 3, "give_up": 1, "write": 3}
    assert all(span.seconds > 0 for span in counters.job_seconds.values())
    assert counters.claimed == 7
    assert counters.claims.count >= 3
    # Each commit of a session with a completion in it, and each statement for the others.
    assert 3 + 3 <= counters.settles.count <= 3 + 4
    assert 0 < counters.settles.seconds < PATIENCE
    assert 0 < counters.claims.seconds < PATIENCE
    assert (counters.running, counters.held, counters.slots, counters.outages) == (0, 0, 10, 0)


def test_commit_that_fails_is_no_settle_and_its_end_is(app: App) -> None:
    """A handler's commit that breaks on the app's own rule settled nothing; the write of that failure did."""

    @app.jobs.handler(max_attempts=1)
    def orphan(session: Session) -> None:
        session.add(Note(text="orphan", parent_id=99))

    app.add(orphan)
    worker = app.worker()

    worker.run_until_idle()

    assert worker.counters.ends == {("dead", "orphan"): 1}
    assert worker.counters.settles.count == 1


def test_counters_while_handlers_run(app: App) -> None:
    """What runs and what is held is as it is now, and the figures that grow can be read at any time."""
    started, gate = threading.Semaphore(0), threading.Event()

    @app.jobs.handler
    def hold() -> None:
        started.release()
        gate.wait(PATIENCE)

    before = app.worker(concurrency=3)
    assert before.counters == Counters(slots=3)
    with app.worker(concurrency=3) as worker:
        for _ in range(2):
            app.add(hold)
        for _ in range(2):
            assert started.acquire(timeout=PATIENCE)
        during = worker.counters
        gate.set()

    assert (during.running, during.held, during.slots, during.claimed) == (2, 2, 3, 2)
    assert (during.ends, during.job_seconds) == ({}, {})
    after = worker.counters
    assert (after.running, after.held, after.ends) == (0, 0, {("done", "hold"): 2})
    assert during.ends == {}  # a snapshot stays as it was


def test_lost_and_expired_leases_are_counted(app: App) -> None:
    """The one by the worker that lost the job, the other by the one that reaped it, unknown types included."""
    lost = threading.Event()

    @app.jobs.on("lease_lost")
    def hear(event: JobEvent) -> None:
        lost.set()

    @app.jobs.handler
    def steal(session: Session) -> None:
        with app.engine.begin() as other:
            other.execute(update(Job).values(claims=Job.claims + 1, locked_until=Job.created_at))

    app.add(steal)
    with app.worker(lease=LONG) as worker:
        wait_for(lost)
        ends = worker.counters.ends
    other = app.registry()
    with app.worker(other, lease=LONG) as reaper:
        assert reaper.reap() == 1
        reaped = reaper.counters

    assert ends == {("lease_lost", "steal"): 1}
    assert reaped.ends == {("lease_expired", "steal"): 1, ("retried", "steal"): 1}
    assert reaped.job_seconds == {}


def test_outages_are_counted_once_for_all_parts(app: App, ear: Ear) -> None:
    """However many parts notice it, and however often they try."""
    fails = iter([True] * 3)

    def fail(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "lane" in statement and next(fails, False):
            raise OperationalError(statement, None, Exception("server closed the connection unexpectedly"))

    @app.jobs.handler
    def work() -> None: ...

    target: Any = Engine if app.engine.dialect.name == "sqlite" else app.engine
    event.listen(target, "before_cursor_execute", fail)
    with app.worker() as worker:
        ear.wait_for("the database is back")
    event.remove(target, "before_cursor_execute", fail)

    assert worker.counters.outages == 1


def test_counts_of_many_threads_add_up() -> None:
    """None is lost when threads count at the same time."""
    tally = Tally()

    def count() -> None:
        for _ in range(2000):
            tally.ended("done", "work", 2.0)
            tally.claimed(3, 0.5)
            tally.settled(0.25)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    counters = tally.counters(Holdings(1), outages=0)
    assert counters.ends == {("done", "work"): 8000}
    assert counters.job_seconds["work"].count == 8000
    assert counters.job_seconds["work"].seconds == pytest.approx(16)
    assert (counters.claimed, counters.claims, counters.settles) == (24_000, Span(8000, 4000.0), Span(8000, 2000.0))


def test_worker_with_other_options_is_another_one(app: App) -> None:
    """What is not changed is as it was, sessions included, and the first worker stays as it is."""
    retention = Retention(done=LONG)
    first = app.worker(queues=iter(["mail", "default"]), concurrency=3, name="pod", retention=retention)

    second = first.with_options(concurrency=7, queues=["mail"])
    third = second.with_options(retention=None)

    assert (first.queues, first.counters.slots, first.retention) == (("mail", "default"), 3, retention)
    assert (second.queues, second.counters.slots, second.retention) == (("mail",), 7, retention)
    assert (third.queues, third.counters.slots, third.retention) == (("mail",), 7, None)
    assert len({worker.name for worker in (first, second, third)}) == 3
    assert all(worker.name.startswith("pod:") for worker in (first, second, third))
    assert app.worker().queues is None
    with pytest.raises(InvalidOption, match="concurrency"):
        first.with_options(concurrency=0)
    with second:
        pass
    with third, pytest.raises(TypeError, match="unexpected keyword argument 'slots'"):
        third.with_options(slots=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_heartbeat_has_an_age_once_it_has_beaten(app: App) -> None:
    """It says how long ago the database last heard of the worker; before the first beat it is unknown."""
    worker = app.worker(lease=LONG)
    before = worker.heartbeat_age

    with worker:
        worker._machinery._services["heartbeat"].tick_now(PATIENCE)  # type: ignore[union-attr]
        during = worker.heartbeat_age

    assert before is None
    assert during is not None
    assert timedelta(0) <= during < SOON


def test_database_that_answers_can_be_reached(app: App) -> None:
    """Before the start, while the worker runs and after its end, on a connection that is closed again."""
    worker = app.worker()

    before = worker.can_reach_database(SOON)
    with worker:
        during = worker.can_reach_database(SOON)

    assert (before, during, worker.can_reach_database(SOON)) == (True, True, True)


def test_database_that_is_away_cannot_be_reached(make_engine: MakeEngine, postgresql_url: str) -> None:
    """The error is no one's but the answer's."""
    engine = make_engine(postgresql_url.replace("sqla_jobs_", "no_such_database_"))

    assert App(engine).worker().can_reach_database(SOON) is False


def test_probe_of_a_database_that_hangs_gives_up(app: App) -> None:
    """It takes no longer than it may, and asks no second question while the first has no answer."""
    asked, gate = threading.Semaphore(0), threading.Event()

    def ask() -> None:
        asked.release()
        gate.wait(PATIENCE)

    probe = Probe(ask)
    answers = [probe.is_answered(0.0) for _ in range(3)]
    assert asked.acquire(timeout=PATIENCE)
    assert not asked.acquire(blocking=False)
    gate.set()

    assert answers == [False, False, False]
    assert probe.is_answered(PATIENCE)


def test_new_connector_works_through_any_driver(async_app: App) -> None:
    """The command line's own connection is made as the worker's are, and needs no event loop of its caller's."""
    worker = async_app.worker()
    connector = worker.new_connector()

    now = connector.read(lambda session: session.scalars(current_time(async_app.jobs.table)).one())
    connector.run(lambda session: session.execute(text("INSERT INTO note (text) VALUES ('by hand')")))
    connector.close()

    assert worker.can_reach_database(SOON)
    assert now.tzinfo is not None
    assert async_app.notes() == ["by hand"]
