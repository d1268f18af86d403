from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs.errors import (
    InvalidOption,
    InvalidSchedule,
    PayloadError,
    UnknownHandler,
)
from sqla_jobs.operations.schedules import LONGEST_PREVIEW, pause, preview, resume, trigger
from sqla_jobs.operations.scheduling import Fired
from sqla_jobs.testing import drain, tick
from tests.engines import fresh_database
from tests.operations.timetable import (
    HALF_PAST,
    HOUR,
    NOON,
    OPERATIONS,
    Base,
    Job,
    Operation,
    Report,
    Schedule,
    add_hourly,
    all_jobs,
    clock,
    emptied,
    jobs,
    set_clock,
    slots_of,
    starts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(scope="module")
def shared_url(postgresql_server: str) -> Iterator[str]:
    """Give the URL of the one PostgreSQL database of this file."""
    with fresh_database(postgresql_server) as url:
        yield url


@pytest.fixture
def postgresql_url(shared_url: str) -> str:
    """Give it with empty tables."""
    return emptied(shared_url)


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    """Give a session factory where the tables of the timetable are."""
    Base.metadata.create_all(engine)
    return sessionmaker(engine)


# --- trigger ----------------------------------------------------------------------------------------------------------


def test_trigger_makes_one_job_that_is_due_now(session: Session) -> None:
    """It is a job of the schedule like any other, but it stands for no slot and has no key."""
    schedule = add_hourly(session)
    before = clock.read(session)

    job = trigger(session, jobs, "hourly")

    assert all_jobs(session) == [job]
    assert type(job) is Job
    assert (job.type, job.payload, job.schedule_id) == ("report", {"title": "sales"}, schedule.id)
    assert (job.queue, job.max_attempts, job.status) == ("reports", 3, "ready")
    assert (job.slot, job.idempotency_key, job.is_duplicate, job.tenant) == (None, None, False, "house")
    assert before <= job.run_at <= clock.read(session)
    assert [event.name for event in drain(session, jobs)] == ["done"]
    assert session.scalars(select(Report.text)).all() == ["sales None"]


def test_trigger_leaves_the_slots_of_the_schedule_alone(session: Session) -> None:
    """What is planned stays planned, what was decided stays decided, and the next slot fires as ever."""
    schedule = add_hourly(session)
    tick(session, jobs)
    set_clock(session, HALF_PAST + HOUR)
    tick(session, jobs)
    planned = (schedule.next_run_at, schedule.last_slot)

    trigger(session, jobs, "hourly")
    trigger(session, jobs, "hourly")

    session.expire_all()
    assert (schedule.next_run_at, schedule.last_slot) == planned == (NOON + 2 * HOUR, NOON + HOUR)
    set_clock(session, HALF_PAST + 2 * HOUR)
    assert [fired.slot for fired in tick(session, jobs)] == [NOON + 2 * HOUR]
    assert slots_of(session) == [NOON + HOUR, None, None, NOON + 2 * HOUR]


def test_trigger_of_a_schedule_with_a_queue_puts_the_job_there(session: Session) -> None:
    """The row's queue goes before the handler's."""
    add_hourly(session, queue="slow")

    assert trigger(session, jobs, "hourly").queue == "slow"


@pytest.mark.parametrize(
    "parts", [{"enabled": False}, {"retired_at": NOON, "declared_by": "shop"}], ids=["paused", "retired"]
)
def test_trigger_works_where_no_slot_fires(session: Session, parts: dict[str, Any]) -> None:
    """A person may want a job of a schedule that is paused or retired: it stays what it is."""
    add_hourly(session, **parts)

    job = trigger(session, jobs, "hourly")

    set_clock(session, HALF_PAST + HOUR)
    assert tick(session, jobs) == []
    assert all_jobs(session) == [job]


def test_trigger_works_where_the_cron_text_is_broken(session: Session) -> None:
    """No slot is asked for."""
    add_hourly(session)
    session.execute(update(Schedule).values(cron="no cron", timezone="Mars/Phobos"))

    assert trigger(session, jobs, "hourly").slot is None


def test_trigger_when_overlaps_are_skipped_counts_as_a_job_of_the_schedule(session: Session) -> None:
    """While what a person has started is unfinished, a slot finds an earlier job there."""
    schedule = add_hourly(session, overlap="skip")
    tick(session, jobs)
    trigger(session, jobs, "hourly")

    set_clock(session, HALF_PAST + HOUR)
    fired = tick(session, jobs)

    assert (fired, schedule.overlaps_skipped) == ([], 1)


def test_trigger_of_an_unknown_type_stores_nothing(session: Session) -> None:
    """A registry without the handler says so, and names one that is near."""
    add_hourly(session, job_type="reprot")

    with pytest.raises(UnknownHandler, match=r"'reprot' \(did you mean 'report'\?\)"):
        trigger(session, jobs, "hourly")

    assert all_jobs(session) == []


@pytest.mark.parametrize("payload", [{}, {"title": 5}, {"title": "a", "colour": "red"}, ["sales"]], ids=str)
def test_trigger_when_the_payload_does_not_fit_stores_nothing(session: Session, payload: object) -> None:
    """No job is made that can't run: the person is there to hear of it, and the session goes on."""
    add_hourly(session, payload=payload)

    with pytest.raises(PayloadError, match="handler 'report'"):
        trigger(session, jobs, "hourly")

    assert all_jobs(session) == []


def test_trigger_wakes_the_workers_of_its_queue(sessions: sessionmaker[Session]) -> None:
    """Once, after the commit, as an enqueue does."""
    woken: list[set[str]] = []

    def waker(queues: frozenset[str]) -> None:
        woken.append(set(queues))

    jobs.add_waker(waker)
    with sessions() as session:
        add_hourly(session)
        trigger(session, jobs, "hourly")
        before = [*woken]
        session.commit()
    jobs.remove_waker(waker)

    assert (before, woken) == ([], [{"reports"}])


# --- pause, resume ----------------------------------------------------------------------------------------------------


def test_pause_ends_the_firing_until_resume(session: Session) -> None:
    """No slot fires in between, those of the pause are not caught up, and the next one after it fires."""
    schedule = add_hourly(session, catch_up="all")
    tick(session, jobs)

    pause(session, jobs, "hourly")
    fired: list[Fired] = []
    for hours in (1, 2, 3):
        set_clock(session, HALF_PAST + hours * HOUR)
        fired += tick(session, jobs)
    resume(session, jobs, "hourly")
    fired += tick(session, jobs)
    assert (fired, schedule.slots_missed, schedule.next_run_at) == ([], 0, NOON + 4 * HOUR)

    set_clock(session, HALF_PAST + 4 * HOUR)
    assert [each.slot for each in tick(session, jobs)] == [NOON + 4 * HOUR]


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_pause_that_no_scheduler_saw_is_not_caught_up(session: Session, catch_up: str) -> None:
    """The slots of a pause are not fired either where no worker ran in the meantime."""
    add_hourly(session, catch_up=catch_up)
    tick(session, jobs)

    pause(session, jobs, "hourly")
    set_clock(session, HALF_PAST + 3 * HOUR)
    resume(session, jobs, "hourly")

    assert tick(session, jobs) == []
    set_clock(session, HALF_PAST + 4 * HOUR)
    assert [fired.slot for fired in tick(session, jobs)] == [NOON + 4 * HOUR]


def test_resume_of_a_schedule_that_is_not_paused_changes_nothing(session: Session) -> None:
    """A slot that is due is fired, not planned away."""
    add_hourly(session)
    tick(session, jobs)
    set_clock(session, HALF_PAST + HOUR)

    resume(session, jobs, "hourly")

    assert [fired.slot for fired in tick(session, jobs)] == [NOON + HOUR]


def test_pause_leaves_the_jobs_that_are_there(session: Session) -> None:
    """What was fired before runs."""
    add_hourly(session)
    trigger(session, jobs, "hourly")

    pause(session, jobs, "hourly")

    assert [event.name for event in drain(session, jobs)] == ["done"]


@pytest.mark.parametrize("operation", [pause, resume])
def test_pause_and_resume_follow_the_transaction(sessions: sessionmaker[Session], operation: Operation) -> None:
    """They take effect with the commit, a rollback or a savepoint's rollback undoes them, and nothing else changes."""
    was = operation is pause
    with sessions() as session:
        schedule = add_hourly(session, enabled=was)
        session.commit()
        operation(session, jobs, "hourly")
        session.rollback()
        with session.begin_nested() as savepoint:
            operation(session, jobs, "hourly")
            savepoint.rollback()
        session.commit()
        assert schedule.enabled is was

        operation(session, jobs, "hourly")
        session.commit()
        assert schedule.enabled is not was


@pytest.mark.parametrize("operation", [pause, resume])
def test_pause_and_resume_are_written_at_once(sessions: sessionmaker[Session], operation: Operation) -> None:
    """Plain SQL of the same transaction sees it, also in a session that flushes only when told."""
    with sessions(autoflush=False) as session:
        add_hourly(session, enabled=operation is pause)

        operation(session, jobs, "hourly")

        assert session.connection().scalar(select(Schedule.enabled)) is (operation is resume)


@pytest.mark.parametrize("operation", [pause, resume])
def test_pause_and_resume_go_by_the_row_and_not_by_what_the_session_has_loaded(
    sessions: sessionmaker[Session], operation: Operation
) -> None:
    """A session that keeps its objects over commits may have read the schedule long ago."""
    wanted = operation is resume
    with sessions(expire_on_commit=False) as session, sessions() as other:
        schedule = add_hourly(session, enabled=wanted)
        session.commit()
        other.execute(update(Schedule).values(enabled=not wanted))
        other.commit()

        operation(session, jobs, "hourly")
        session.commit()

        assert other.scalars(select(Schedule.enabled)).one() is wanted
        assert schedule.enabled is wanted


@pytest.mark.parametrize("operation", [pause, resume])
@pytest.mark.parametrize(("column", "value"), [('"offset"', "1e300"), ("next_run_at", "'infinity'")])
def test_pause_and_resume_of_a_row_that_no_driver_loads(
    session: Session, operation: Operation, column: str, value: str
) -> None:
    """What plain SQL has written is the reason to pause it, and keeps nobody from it."""
    add_hourly(session, enabled=operation is pause)
    session.connection().exec_driver_sql(f"UPDATE schedule SET {column} = {value}")
    session.expunge_all()

    operation(session, jobs, "hourly")

    assert session.scalars(select(Schedule.enabled)).one() is (operation is resume)


def test_resume_of_a_retired_schedule_leaves_it_retired(session: Session) -> None:
    """`enabled` belongs to people, `retired_at` to the code."""
    schedule = add_hourly(session, retired_at=NOON, declared_by="shop", enabled=False)

    resume(session, jobs, "hourly")

    set_clock(session, HALF_PAST + HOUR)
    assert tick(session, jobs) == []
    assert (schedule.enabled, schedule.retired_at) == (True, NOON)


# --- preview ----------------------------------------------------------------------------------------------------------


def test_preview_gives_the_next_slots_as_people_and_as_schedulers_see_them(session: Session) -> None:
    """Over the start of summer time: the hour that is skipped is the end of the gap, then all is an hour earlier."""
    add_hourly(session, cron="30 2 * * *", timezone="Europe/Zurich", offset=timedelta(minutes=10))
    set_clock(session, datetime(2027, 3, 27, tzinfo=UTC))

    slots = preview(session, jobs, "hourly", count=3)

    zurich = ZoneInfo("Europe/Zurich")
    assert starts(slots) == [datetime(2027, 3, day, hour, half, tzinfo=UTC) for day, hour, half in SPRING]
    assert [slot.at.utcoffset() for slot in slots] == [timedelta(0)] * 3
    assert [f"{slot.local:%d %H:%M %z %Z}" for slot in slots] == [
        "27 02:30 +0100 CET",
        "28 03:00 +0200 CEST",
        "29 02:30 +0200 CEST",
    ]
    assert [slot.local.tzinfo for slot in slots] == [zurich] * 3
    assert [slot.offset for slot in slots] == [timedelta(minutes=10)] * 3
    assert [slot.run_at for slot in slots] == [slot.at + timedelta(minutes=10) for slot in slots]
    assert {(slot.job_id, slot.is_archived, slot.is_new) for slot in slots} == {(None, False, False)}


SPRING = [(27, 1, 30), (28, 1, 0), (29, 0, 30)]


def test_preview_over_the_end_of_summer_time_gives_a_fixed_hour_once(session: Session) -> None:
    """A time that comes twice is a slot the first time; an hour with a `*` is one both times."""
    add_hourly(session, cron="30 2 * * *", timezone="Europe/Zurich")
    add_hourly(session, name="wild", cron="30 * * * *", timezone="Europe/Zurich")
    set_clock(session, datetime(2027, 10, 30, 23, 45, tzinfo=UTC))

    fixed, wild = (preview(session, jobs, name, count=2) for name in ("hourly", "wild"))

    assert [f"{slot.local:%d %H:%M %z}" for slot in fixed] == ["31 02:30 +0200", "01 02:30 +0100"]
    assert [f"{slot.local:%d %H:%M %z}" for slot in wild] == ["31 02:30 +0200", "31 02:30 +0100"]


def test_preview_gives_what_a_scheduler_then_makes(session: Session) -> None:
    """Slot and due time are those of the job, with the offset that the name has by default."""
    add_hourly(session)
    tick(session, jobs)
    slot = preview(session, jobs, "hourly", count=1)[0]

    set_clock(session, HALF_PAST + HOUR)
    tick(session, jobs)

    (job,) = all_jobs(session)
    assert (job.slot, job.run_at) == (slot.at, slot.run_at)
    assert timedelta(0) < slot.offset < timedelta(seconds=30)


@pytest.mark.parametrize("parts", [{}, {"enabled": False}, {"retired_at": NOON}], ids=["live", "paused", "retired"])
def test_preview_starts_from_now(session: Session, parts: dict[str, Any]) -> None:
    """Five slots unless told otherwise, from the database's clock on, also of one that is paused or retired."""
    add_hourly(session, last_slot=NOON - 9 * HOUR, next_run_at=NOON - 8 * HOUR, **parts)

    assert starts(preview(session, jobs, "hourly")) == [NOON + hours * HOUR for hours in range(1, 6)]


@pytest.mark.parametrize("name", ["preview", "preview_backfill"])
def test_preview_writes_nothing(sessions: sessionmaker[Session], name: str) -> None:
    """It selects and locks nothing, so that a scheduler passes over no row for it."""
    with sessions() as session:
        add_hourly(session)
        session.commit()
        statements = said(session)

        OPERATIONS[name](session, jobs, "hourly")

        assert statements
        assert all(each.startswith("SELECT") and "FOR " not in each for each in statements)
        assert not session.dirty


def said(session: Session) -> list[str]:
    """Give a list that fills with the SQL that *session* sends."""
    statements: list[str] = []

    @event.listens_for(session.connection(), "before_cursor_execute")
    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    return statements


@pytest.mark.parametrize("count", [0, -1, True, "5", 2.0, None, LONGEST_PREVIEW + 1], ids=repr)
def test_preview_of_a_bad_count_is_refused(session: Session, count: Any) -> None:
    """Before anything is read, and with the numbers that it takes."""
    with pytest.raises(InvalidOption, match=r"count is (an int|from 1 to)"):
        preview(session, jobs, "hourly", count=count)


def test_preview_of_the_most_slots_gives_them(session: Session) -> None:
    """The limit itself is taken."""
    add_hourly(session, cron="* * * * *")

    slots = preview(session, jobs, "hourly", count=LONGEST_PREVIEW)

    assert starts(slots)[-1] == HALF_PAST + LONGEST_PREVIEW * timedelta(minutes=1)


@pytest.mark.parametrize("name", ["preview", "preview_backfill", "backfill"])
@pytest.mark.parametrize(("column", "value"), [("cron", "no cron"), ("timezone", "Mars/Phobos")])
def test_slots_of_a_broken_schedule_are_an_error(session: Session, name: str, column: str, value: str) -> None:
    """What plain SQL has written and nobody can go by is told to who asks."""
    add_hourly(session)
    session.execute(update(Schedule).values({column: value}))

    with pytest.raises(InvalidSchedule, match=value):
        OPERATIONS[name](session, jobs, "hourly")
