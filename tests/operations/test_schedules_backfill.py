from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs.errors import InvalidOption, InvalidSchedule, PayloadError, UnknownHandler
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.schedules import LONGEST_BACKFILL, backfill, preview_backfill
from sqla_jobs.status import FINISHED, JobStatus
from sqla_jobs.testing import drain, tick
from tests.engines import build_engine, fresh_database
from tests.operations.blocking import PATIENCE, until_blocked
from tests.operations.timetable import (
    HALF_PAST,
    HOUR,
    NOON,
    ArchivedJob,
    Base,
    Job,
    Report,
    Schedule,
    add_hourly,
    all_jobs,
    clock,
    emptied,
    jobs,
    report,
    set_clock,
    slots_of,
    starts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from sqla_jobs.operations.schedules import Slot

MINUTE = timedelta(minutes=1)

BOTH = pytest.mark.parametrize("operation", [preview_backfill, backfill])


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


def key_of(schedule: Schedule, slot: datetime) -> str:
    """Give the key of a slot's job, as it is written for good."""
    return f"schedule:{schedule.id}:{slot:%Y-%m-%dT%H:%M:%SZ}"


def test_backfill_makes_the_jobs_of_past_slots(session: Session) -> None:
    """One for each slot from the start to before the end, like those of a scheduler, but due at once."""
    schedule = add_hourly(session, offset=20 * MINUTE)

    slots = backfill(session, jobs, "hourly", NOON - 2 * HOUR, NOON)

    made = all_jobs(session)
    assert starts(slots) == [job.slot for job in made] == [NOON - 2 * HOUR, NOON - HOUR]
    assert [(slot.job_id, slot.is_new, slot.is_archived) for slot in slots] == [(job.id, True, False) for job in made]
    assert {slot.run_at - slot.at for slot in slots} == {20 * MINUTE}
    for job in made:
        assert job.slot is not None
        assert job.idempotency_key == key_of(schedule, job.slot)
        assert (job.type, job.payload, job.schedule_id) == ("report", {"title": "sales"}, schedule.id)
        assert (job.queue, job.max_attempts, job.status, job.tenant) == ("reports", 3, "ready", "house")
        assert HALF_PAST <= job.run_at <= clock.read(session)
    assert [event.name for event in drain(session, jobs)] == ["done", "done"]
    assert set(session.scalars(select(Report.text))) == {f"sales {slot.at}" for slot in slots}


def test_backfill_leaves_the_plan_of_the_schedule_alone(session: Session) -> None:
    """The slots before it was there, or of a pause: what a scheduler has decided and will fire is not touched."""
    schedule = add_hourly(session, enabled=False)
    session.execute(update(Schedule).values(last_slot=NOON, next_run_at=None))

    backfill(session, jobs, "hourly", NOON - HOUR, HALF_PAST)

    session.expire_all()
    assert (schedule.enabled, schedule.last_slot, schedule.next_run_at) == (False, NOON, None)
    assert slots_of(session) == [NOON - HOUR, NOON]


@BOTH
def test_range_is_from_the_start_to_before_the_end(session: Session, operation: Callable[..., list[Slot]]) -> None:
    """The start is in it, the end is not, times have any zone, and an empty range is no error."""
    add_hourly(session)
    zurich = ZoneInfo("Europe/Zurich")

    def found(start: datetime, end: datetime) -> list[datetime]:
        return starts(operation(session, jobs, "hourly", start.astimezone(zurich), end))

    assert found(NOON - HOUR, NOON) == [NOON - HOUR]
    assert found(NOON - HOUR, NOON + timedelta(microseconds=1)) == [NOON - HOUR, NOON]
    assert found(NOON - HOUR + timedelta(microseconds=1), NOON) == []
    assert found(NOON, NOON) == []
    with pytest.raises(InvalidOption, match="swap them"):
        found(NOON, NOON - HOUR)


@BOTH
def test_slots_are_those_of_the_zone(session: Session, operation: Callable[..., list[Slot]]) -> None:
    """Slots over the start of summer time are told in UTC and in local time."""
    add_hourly(session, cron="30 2 * * *", timezone="Europe/Zurich")

    slots = operation(
        session, jobs, "hourly", start=datetime(2027, 3, 27, tzinfo=UTC), end=datetime(2027, 3, 30, tzinfo=UTC)
    )

    assert [f"{slot.at:%d %H:%M}" for slot in slots] == ["27 01:30", "28 01:00", "29 00:30"]
    assert [f"{slot.local:%d %H:%M %z}" for slot in slots] == ["27 02:30 +0100", "28 03:00 +0200", "29 02:30 +0200"]


@BOTH
@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        (datetime(2027, 5, 3, 9), NOON, "start is naive"),
        (NOON - HOUR, datetime(2027, 5, 3, 12), "end is naive"),
        (NOON, HALF_PAST + HOUR, "backfill is for slots that have passed, and end is 2027-05-03 13:30:00"),
        (HALF_PAST + HOUR, HALF_PAST + 9 * HOUR, "slots that have passed"),
        ("2027-05-03", NOON, "start is an aware datetime, and is a str"),
        (NOON, None, "end is an aware datetime, and is a NoneType"),
        (datetime(1969, 12, 31, tzinfo=UTC), NOON, "start is from 1970 to 9998"),
        (NOON, datetime.max.replace(tzinfo=UTC), "end is from 1970 to 9998"),
    ],
    ids=["naive start", "naive end", "later", "all later", "text", "none", "too early", "too late"],
)
def test_range_that_makes_no_sense_is_refused(
    session: Session, operation: Callable[..., list[Slot]], start: Any, end: Any, says: str
) -> None:
    """The error names the time that is wrong, and nothing is stored."""
    add_hourly(session)

    with pytest.raises(InvalidOption, match=says):
        operation(session, jobs, "hourly", start, end)

    assert all_jobs(session) == []


@BOTH
def test_range_from_the_first_instant_that_is_taken_has_its_slots(
    session: Session, operation: Callable[..., list[Slot]]
) -> None:
    """'From 1970' takes its first instant in."""
    add_hourly(session, cron="@yearly")

    slots = operation(session, jobs, "hourly", datetime(1970, 1, 1, tzinfo=UTC), datetime(1972, 1, 1, tzinfo=UTC))

    assert [slot.at.year for slot in slots] == [1970, 1971]


@BOTH
def test_range_of_too_many_slots_is_refused(session: Session, operation: Callable[..., list[Slot]]) -> None:
    """A thousand are done in one call; one more is told to take a shorter range, and nothing is stored."""
    add_hourly(session, cron="* * * * *")
    start = HALF_PAST - LONGEST_BACKFILL * MINUTE

    with pytest.raises(InvalidSchedule, match="more than 1000 slots .*: take a shorter range"):
        operation(session, jobs, "hourly", start - MINUTE, HALF_PAST)
    assert all_jobs(session) == []

    slots = operation(session, jobs, "hourly", start, HALF_PAST)
    assert (len(slots), slots[0].at, slots[-1].at) == (1000, start, HALF_PAST - MINUTE)


def test_backfill_of_many_slots_makes_each_job(session: Session) -> None:
    """Every slot comes back with a job of its own, and a second call finds them all."""
    add_hourly(session, cron="* * * * *")
    start = HALF_PAST - LONGEST_BACKFILL * MINUTE

    first = backfill(session, jobs, "hourly", start, HALF_PAST)
    second = backfill(session, jobs, "hourly", start, HALF_PAST)

    by_id = {job.id: job.slot for job in all_jobs(session)}
    assert [by_id[slot.job_id or 0] for slot in first] == starts(first)
    assert {slot.is_new for slot in first} == {True}
    assert {slot.is_new for slot in second} == {False}
    assert [slot.job_id for slot in second] == [slot.job_id for slot in first]
    assert len(by_id) == 1000


# --- what is there already --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(JobStatus))
def test_slot_whose_job_exists_is_skipped(session: Session, status: JobStatus) -> None:
    """Whatever became of the job, it is the slot's; the preview says so, and its neighbours get theirs."""
    add_hourly(session)
    (there,) = backfill(session, jobs, "hourly", NOON - HOUR, NOON)
    session.execute(update(Job).values(status=status, finished_at=NOON if status in FINISHED else None))

    seen = preview_backfill(session, jobs, "hourly", NOON - 2 * HOUR, HALF_PAST)
    slots = backfill(session, jobs, "hourly", NOON - 2 * HOUR, HALF_PAST)

    assert [(slot.job_id, slot.is_new) for slot in seen] == [(None, False), (there.job_id, False), (None, False)]
    assert [slot.is_new for slot in slots] == [True, False, True]
    assert slots[1] == seen[1]
    assert sorted(map(str, slots_of(session))) == [str(NOON - hours * HOUR) for hours in (2, 1, 0)]


def archive(session: Session, key: str, **parts: Any) -> None:
    """Put a finished job into the archive, as it was under that key."""
    usual = {"id": 700, "type": "report", "run_at": NOON, "created_at": NOON, "archived_at": NOON, "status": "done"}
    session.add(ArchivedJob(idempotency_key=key, **usual | parts))


def test_slot_whose_job_is_archived_is_skipped(session: Session) -> None:
    """The archive remembers what has run; the preview says so."""
    schedule = add_hourly(session)
    archive(session, key_of(schedule, NOON - HOUR))

    seen = preview_backfill(session, jobs, "hourly", NOON - HOUR, HALF_PAST)
    slots = backfill(session, jobs, "hourly", NOON - HOUR, HALF_PAST)

    assert [(slot.job_id, slot.is_archived) for slot in seen] == [(700, True), (None, False)]
    assert slots[0] == seen[0]
    assert [(slot.is_archived, slot.is_new) for slot in slots] == [(True, False), (False, True)]
    assert slots_of(session) == [NOON]


def test_slot_with_a_job_and_an_archived_one_shows_the_job(session: Session) -> None:
    """A slot that was run once more is told by what is in the job table."""
    schedule = add_hourly(session)
    (made,) = backfill(session, jobs, "hourly", NOON, HALF_PAST)
    archive(session, key_of(schedule, NOON))

    (seen,) = preview_backfill(session, jobs, "hourly", NOON, HALF_PAST)

    assert (seen.job_id, seen.is_archived) == (made.job_id, False)


def test_slot_of_another_schedule_is_no_reason_to_skip(session: Session) -> None:
    """Each schedule has its own slots, also at the same instant, live and archived."""
    add_hourly(session)
    other = add_hourly(session, name="other")
    backfill(session, jobs, "other", NOON - HOUR, NOON)
    archive(session, key_of(other, NOON))

    slots = backfill(session, jobs, "hourly", NOON - HOUR, HALF_PAST)

    assert [slot.is_new for slot in slots] == [True, True]


def test_slot_whose_job_was_deleted_is_made_again(session: Session) -> None:
    """Who deletes a job and asks for it again gets it, also if a scheduler has decided the slot."""
    add_hourly(session)
    tick(session, jobs)
    set_clock(session, HALF_PAST + HOUR)
    tick(session, jobs)
    session.execute(delete(Job))

    (slot,) = backfill(session, jobs, "hourly", NOON + HOUR, HALF_PAST + HOUR)

    assert slot.is_new
    assert slots_of(session) == [NOON + HOUR]


def test_backfill_without_an_archive_looks_at_the_jobs_alone(session: Session) -> None:
    """A registry that archives nothing backfills."""
    plain = Jobs(Job, schedule=Schedule, now=clock.now)
    plain.handler(name="report")(report.spec.function)
    schedule = add_hourly(session)
    archive(session, key_of(schedule, NOON))

    (seen,) = preview_backfill(session, plain, "hourly", NOON, HALF_PAST)
    (slot,) = backfill(session, plain, "hourly", NOON, HALF_PAST)

    assert (seen.job_id, slot.is_new, slot.is_archived) == (None, True, False)


# --- with others ------------------------------------------------------------------------------------------------------


def test_backfill_and_tick_of_one_slot_make_one_job(session: Session) -> None:
    """Whoever comes first makes it: the other finds it there."""
    add_hourly(session)
    tick(session, jobs)
    set_clock(session, HALF_PAST + HOUR)

    (made,) = backfill(session, jobs, "hourly", NOON + HOUR, HALF_PAST + HOUR)
    found = tick(session, jobs)
    set_clock(session, HALF_PAST + 2 * HOUR)
    fired = tick(session, jobs)
    again = backfill(session, jobs, "hourly", NOON + HOUR, HALF_PAST + 2 * HOUR)

    assert [(each.slot, each.job_id) for each in found] == [(NOON + HOUR, None)]
    assert [(slot.job_id, slot.is_new) for slot in again] == [(made.job_id, False), (fired[0].job_id, False)]
    assert slots_of(session) == [NOON + HOUR, NOON + 2 * HOUR]


def test_backfill_that_waited_for_another_gives_the_job_of_the_other(
    postgresql_url: str,
) -> None:
    """Of two at one time the second waits for the first, and then gives all slots with their jobs."""
    engine = build_engine(postgresql_url)
    with Session(engine) as session:
        add_hourly(session)
        session.commit()

    def second() -> list[Slot]:
        with Session(engine) as session, session.begin():
            return backfill(session, jobs, "hourly", NOON - HOUR, HALF_PAST)

    with ThreadPoolExecutor(1) as pool, Session(engine) as session:
        (made,) = backfill(session, jobs, "hourly", NOON, HALF_PAST)
        answer = pool.submit(second)
        until_blocked(engine, answer)
        session.commit()
        slots = answer.result(PATIENCE)
        stored = all_jobs(session)
    engine.dispose()

    assert sorted(str(job.slot) for job in stored) == [str(NOON - HOUR), str(NOON)]
    assert [slot.is_new for slot in slots] == [True, False]
    assert slots[1].job_id == made.job_id


def test_backfilled_jobs_count_as_jobs_of_the_schedule(session: Session) -> None:
    """With `overlap='skip'` a slot finds them there while they are unfinished."""
    schedule = add_hourly(session, overlap="skip")
    tick(session, jobs)
    backfill(session, jobs, "hourly", NOON, HALF_PAST)

    set_clock(session, HALF_PAST + HOUR)

    assert tick(session, jobs) == []
    session.expire_all()
    assert schedule.overlaps_skipped == 1


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"job_type": "reprot"}, UnknownHandler),
        ({"payload": {}}, PayloadError),
        ({"payload": {"title": 5}}, PayloadError),
        ({"payload": ["sales"]}, PayloadError),
    ],
    ids=["type", "missing", "wrong", "no object"],
)
def test_backfill_of_jobs_that_could_not_run_stores_nothing(
    session: Session, parts: dict[str, Any], error: type[Exception]
) -> None:
    """It is told to who asks, and a preview may still be read."""
    add_hourly(session, **parts)

    with pytest.raises(error, match="re"):
        backfill(session, jobs, "hourly", NOON, HALF_PAST)

    assert all_jobs(session) == []
    assert starts(preview_backfill(session, jobs, "hourly", NOON, HALF_PAST)) == [NOON]


def test_backfill_wakes_workers_where_it_has_made_jobs(sessions: sessionmaker[Session]) -> None:
    """After the commit, and not for slots that have their jobs."""
    woken: list[set[str]] = []

    def waker(queues: frozenset[str]) -> None:
        woken.append(set(queues))

    jobs.add_waker(waker)
    with sessions() as session:
        add_hourly(session, queue="slow")
        backfill(session, jobs, "hourly", NOON, HALF_PAST)
        before = [*woken]
        session.commit()
        after = [*woken]
        backfill(session, jobs, "hourly", NOON, HALF_PAST)
        session.commit()
    jobs.remove_waker(waker)

    assert (before, after) == ([], [{"slow"}])
    assert [queues for queues in woken if queues] == [{"slow"}]
