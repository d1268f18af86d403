from __future__ import annotations

import queue
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Connection, Engine, literal, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from sqla_jobs import current_job, enqueue
from sqla_jobs.schema.trouble import injected
from sqla_jobs.schema.types import UtcDateTime
from tests.engines import build_async_engine, build_engine
from tests.runtime.app import PATIENCE, sync_url_of
from tests.runtime.calendars import NO_OFFSET, Base, Calendar, Owned, Schedule, listening, own_statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.runtime.app import Ear

HOUR: Final = timedelta(hours=1)

EVERY_SECOND: Final = "* * * * * *"

LOOK: Final = "AS is_retired"
"""What only a scheduler's look says."""

WARNING: Final = 30


@pytest.fixture
def app(engine: Engine) -> Iterator[Calendar]:
    app = Calendar(engine).create()
    yield app
    app.close()


def test_declared_schedule_has_a_row_while_the_code_has_it(app: Calendar) -> None:
    """It is planned once a worker has started, retired by a release without it, and revived by one that has it."""
    app.declare("nightly", cron="0 3 * * *", timezone="Europe/Zurich")
    later = app.registry()
    app.declare("weekly", later, cron="@weekly")

    app.run()
    planned = app.row("nightly")
    app.run(later)
    retired = app.row("nightly")
    app.run()

    assert (planned.declared_by, planned.retired_at, planned.planned_cron) == ("default", None, "0 3 * * *")
    assert planned.next_run_at is not None
    assert planned.next_run_at > app.next_hour - timedelta(hours=1)
    assert retired.retired_at is not None
    assert app.row("nightly").retired_at is None
    assert app.row("weekly").retired_at is not None
    assert app.made() == []


def test_run_until_idle_when_a_slot_is_due(app: Calendar) -> None:
    """It fires the slot and runs its job, which knows its slot."""
    app.declare("hourly")
    app.run()
    app.advance(HOUR)

    app.run()

    row, (job,) = app.row("hourly"), app.made()
    assert [app.wait_for_run(), app.ran.empty()] == [app.next_hour, True]
    assert (job.status, job.type, job.schedule_id) == ("done", "report", row.id)
    assert (job.slot, job.run_at) == (app.next_hour, app.next_hour)
    assert (row.last_slot, row.next_run_at) == (app.next_hour, app.next_hour + HOUR)


def test_job_of_a_slot_waits_for_its_offset(app: Calendar) -> None:
    """The slot is decided at once, and its job runs when the offset is over."""
    app.declare("hourly", offset=timedelta(minutes=50))
    app.run()

    app.advance(HOUR)
    app.run()
    (waiting,) = app.made()
    app.advance(timedelta(minutes=20))
    app.run()

    (done,) = app.made()
    assert (waiting.status, waiting.run_at) == ("ready", app.next_hour + timedelta(minutes=50))
    assert (done.status, done.slot, app.wait_for_run()) == ("done", app.next_hour, app.next_hour)


def test_embedded_worker_fires_as_time_goes_by(app: Calendar) -> None:
    """By the database's real clock, with no poll and no LISTEN: each second has its job, and it runs."""
    jobs = app.registry(now=None)
    app.declare("tick", jobs, cron=EVERY_SECOND, catch_up="all")  # a busy machine may be late for one

    with app.worker(jobs, concurrency=1):
        slots = [app.wait_for_run() for _ in range(3)]

    assert slots == [slots[0] + timedelta(seconds=number) for number in range(3)]


def test_edit_while_a_worker_runs_is_noticed(app: Calendar) -> None:
    """A cron text that plain SQL wrote counts from the next tick on."""
    jobs = app.registry(now=None)
    with app.sessions.begin() as session:
        session.add(Schedule(name="stored", job_type="report", cron="@yearly", offset=NO_OFFSET))
    app.run(jobs)

    with app.worker(jobs):
        app.execute(f"UPDATE schedule SET cron = '{EVERY_SECOND}'")
        app.wait_for_run()

    assert app.row("stored").planned_cron == EVERY_SECOND


def test_declaration_that_comes_after_the_start_has_its_row(app: Calendar) -> None:
    """A module that is imported late, as in an app that embeds its worker, needs no restart."""
    app.declare("early")
    scheduler = app.scheduler()
    scheduler.tick()

    app.declare("late")
    scheduler.tick()
    app.advance(HOUR)
    scheduler.tick()

    assert {job.schedule_id for job in app.made()} == {app.row(name).id for name in ("early", "late")}


def test_worker_whose_registry_has_no_schedules_has_no_scheduler(app: Calendar) -> None:
    """A thread and a connection for it are there only where a model is."""
    plain = app.registry(schedule=None)

    before = scheduler_threads()
    with app.worker(plain):
        without = scheduler_threads()
    with app.worker():
        threads = scheduler_threads()

    assert (without <= before, len(threads - before)) == (True, 1)


def scheduler_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "sqla_jobs scheduler"}


def test_worker_when_the_table_of_schedules_is_missing(app: Calendar, ear: Ear) -> None:
    """It says so once, runs its jobs, and fires once the table is there."""
    jobs = app.registry(now=None)
    app.declare("tick", jobs, cron=EVERY_SECOND)
    Base.metadata.tables["schedule"].drop(app.engine)

    with app.worker(jobs):
        ear.wait_for("the database does not serve the scheduler")
        with app.sessions.begin() as session:
            job = enqueue(session, app.report_of(jobs)).id
        assert app.heard.get(timeout=PATIENCE).job_id == job
        Base.metadata.tables["schedule"].create(app.engine)
        ear.wait_for("the database is back")
        while app.ran.get(timeout=PATIENCE) is None:
            pass

    assert len(ear.lines("the database does not serve", level=WARNING)) == 1
    assert ear.lines("can't be declared") == []  # no declaration is at fault


def test_scheduler_when_the_database_goes_and_comes_back(app: Calendar, ear: Ear) -> None:
    """A failed look ends neither the worker nor the thread: it goes on, and says once that it couldn't."""
    failures = iter([True] * 3)

    def fail(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if LOOK in statement and next(failures, False):
            raise OperationalError(statement, None, Exception("server closed the connection unexpectedly"))

    jobs = app.registry(now=None)
    app.declare("tick", jobs, cron=EVERY_SECOND)
    with listening(app, fail), app.worker(jobs) as worker:
        app.wait_for_run()
        is_healthy = worker.is_healthy

    assert is_healthy
    assert next(failures, None) is None
    assert len(ear.lines("the database does not serve", level=WARNING)) == 1
    assert len(ear.lines("the database is back")) == 1


def test_tick_when_a_batch_is_too_much_for_one_transaction(app: Calendar) -> None:
    """The next tick tries fewer schedules at once, until it gets through; then it takes more again."""
    for number in range(40):
        app.declare(f"schedule {number}")
    scheduler = app.scheduler()
    scheduler.tick()
    app.advance(HOUR)
    sizes = list[int]()

    def fail(_connection: Connection, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("INSERT INTO job "):
            sizes.append(len(parameters))
            if len(parameters) > 200:
                raise OperationalError(statement, None, injected("drop", "terminating connection", Exception))

    with listening(app, fail):
        for _ in range(2):
            with pytest.raises(OperationalError):
                scheduler.tick()
        while scheduler.tick() == 0.0:
            pass

    assert len({job.schedule_id for job in app.made()}) == len(app.made()) == 40
    assert sizes[0] == sizes[1] > 200 > sizes[3] > sizes[2]


def test_tick_when_nothing_is_due(app: Calendar) -> None:
    """It sends one statement, waits for nobody's lock, and writes nothing."""
    for name in ("first", "second", "third"):
        app.declare(name)

    with own_statements(app) as sent:
        scheduler = app.scheduler()
        scheduler.tick()
        before = len(sent)
        with app.engine.begin() as connection:
            connection.execute(text("UPDATE schedule SET name = name"))
            sent_by_us = len(sent) - before
            scheduler.tick()

    assert len(sent) == before + sent_by_us + 1
    assert LOOK in sent[-1]


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.5, 0.0, 0.5), (30.0, 0.9, 1.1)])
def test_tick_gives_the_time_until_the_next_slot(app: Calendar, seconds: float, least: float, most: float) -> None:
    """It is the wait for a slot that comes before the next look for edits, and for that look otherwise."""
    still = literal(app.next_hour - timedelta(seconds=seconds), UtcDateTime())
    jobs = app.registry(now=still)
    app.declare("hourly", jobs)
    scheduler = app.scheduler(jobs)

    planning, idle = scheduler.tick(), scheduler.tick()

    assert least <= planning <= most
    assert least <= idle <= most
    assert app.row("hourly").next_run_at == app.next_hour


def test_app_with_async_sessions_only_has_schedules(async_url: str) -> None:
    """The scheduler works the same on an async engine."""
    engine = build_engine(sync_url_of(async_url))
    app = Calendar(engine, build_async_engine(async_url)).create()
    ran: queue.SimpleQueue[datetime | None] = queue.SimpleQueue()

    @app.jobs.handler
    async def report_async(session: AsyncSession) -> None:
        ran.put(current_job().slot)

    app.jobs.schedule("hourly", report_async, cron="@hourly", offset=NO_OFFSET)

    app.run()
    app.advance(HOUR)
    app.run()

    assert [ran.get(timeout=PATIENCE), ran.empty()] == [app.next_hour, True]
    assert [job.status for job in app.made()] == ["done"]
    engine.dispose()


def test_name_that_somebody_else_has_taken_is_told(app: Calendar, ear: Ear) -> None:
    """A declaration leaves a row that was made at run time as it is, and the log says once which."""
    with app.sessions.begin() as session:
        session.add(Schedule(name="hourly", job_type="report", cron="@daily"))
    app.declare("hourly")
    app.declare("other")
    scheduler = app.scheduler()

    scheduler.tick()
    scheduler.tick()

    (line,) = ear.lines("hourly", level=WARNING)
    assert "is not that registry's" in line
    assert (app.row("hourly").cron, app.row("hourly").declared_by) == ("@daily", None)
    assert app.row("other").declared_by == "default"


def test_declaration_that_the_table_does_not_take_is_told(app: Calendar, ear: Ear) -> None:
    """A column of the app's own without a default refuses it; what is in the table fires all the same."""
    jobs = app.registry(schedule=Owned)
    app.declare("declared", jobs)
    with app.sessions.begin() as session:
        session.add(Owned(name="stored", job_type="report", cron="@hourly", offset=NO_OFFSET, owner="ann"))
    scheduler = app.scheduler(jobs)

    scheduler.tick()
    app.advance(HOUR)
    scheduler.tick()

    (line,) = ear.lines("can't be declared", level=WARNING)
    assert "owner" in line
    assert [job.slot for job in app.made()] == [app.next_hour]


def test_two_workers_of_one_process_share_the_slots(app: Calendar) -> None:
    """Each slot has one job, whichever of their schedulers comes first."""
    app.declare("hourly")
    app.run()

    slots: list[datetime] = []
    with app.worker(), app.worker():
        for _ in range(3):
            app.advance(HOUR)
            slots.append(app.wait_for_run())

    assert slots == [app.next_hour + HOUR * number for number in range(3)]
    assert [job.slot for job in app.made()] == slots
    assert app.row("hourly").slots_missed == 0


def test_old_and_new_release_on_one_table_leave_each_other_s_schedules_alive(app: Calendar) -> None:
    """What the new one retires the old one revives at its next tick, and no slot is lost in between."""
    new = app.registry()
    app.declare("old")
    app.declare("new", new)
    old_scheduler, new_scheduler = app.scheduler(), app.scheduler(new)
    old_scheduler.tick()
    app.advance(timedelta(minutes=29))
    new_scheduler.tick()
    retired = app.row("old").retired_at

    app.advance(timedelta(minutes=2))
    for _ in range(2):
        old_scheduler.tick()
        new_scheduler.tick()

    made = {(job.schedule_id, job.slot) for job in app.made()}
    assert retired is not None
    assert made == {(app.row(name).id, app.next_hour) for name in ("old", "new")}
