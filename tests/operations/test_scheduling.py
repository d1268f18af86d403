from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from sqla_jobs.rules.cron import spread
from tests.operations.scheduling import MINUTE, Scene, Schedule, at, engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from sqla_jobs.operations.scheduling import Fired


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    """Give the app's database, empty, at `START`."""
    return Scene(app_engine)


def fired_slots(fired: list[Fired]) -> list[str]:
    return [f"{each.name} {each.slot:%H:%M}" for each in fired]


# --- one slot, one job ----------------------------------------------------------------------------------------------


def test_new_schedule_is_planned_and_fires_nothing(scene: Scene) -> None:
    """The first tick says when the next slot is, and makes no job for those that have passed."""
    scene.add()

    assert scene.tick() == []

    row = scene.row()
    assert (row["planned_cron"], row["planned_timezone"], row["planned_enabled"]) == ("* * * * *", "UTC", True)
    assert (row["next_run_at"], row["last_slot"], row["last_error"]) == (at("12:01"), None, None)
    assert scene.jobs() == []


def test_due_slot_makes_one_job_with_all_its_columns(scene: Scene) -> None:
    """The job has the schedule's arguments, the handler's queue and attempts, its slot, and is due after the offset."""
    schedule_id = scene.planned(payload={"days": 7}, offset=timedelta(seconds=4.5))

    (fired,) = scene.tick(moment=at("12:01:05"))

    (job,) = scene.jobs()
    assert (fired.name, fired.slot, fired.job_id) == ("minutely", at("12:01"), job.id)
    assert (job.type, job.payload, job.queue, job.max_attempts) == ("report", {"days": 7}, "reports", 3)
    assert (job.schedule_id, job.slot, job.run_at) == (schedule_id, at("12:01"), at("12:01:04.5"))
    assert job.idempotency_key == f"schedule:{schedule_id}:2027-05-03T12:01:00Z"
    assert (job.status, job.attempts, job.claims, job.errors, job.locked_by) == ("ready", 0, 0, [], None)
    assert at("12:01:05") <= job.created_at < at("12:02")
    row = scene.row()
    assert (row["last_slot"], row["next_run_at"], row["slots_missed"]) == (at("12:01"), at("12:02"), 0)


def test_queue_of_the_row_goes_before_the_handlers_and_the_offset_is_spread_by_name(scene: Scene) -> None:
    """What the row says of the queue counts; without an offset the jobs of many schedules don't all start at once."""
    scene.planned("tenant-7", queue="slow", offset=None)

    scene.tick(moment=at("12:01:05"))

    (job,) = scene.jobs()
    assert job.queue == "slow"
    assert job.run_at - at("12:01") == spread("* * * * *", "tenant-7") > timedelta(0)


@pytest.mark.parametrize("moved_back", [False, True], ids=["as it is", "next_run_at moved back"])
def test_slot_fires_once_whatever_became_of_its_job(scene: Scene, moved_back: bool) -> None:
    """The schedule itself remembers the slot: neither a deleted job nor a row set back by SQL fires it again."""
    scene.planned()
    assert len(scene.tick(moment=at("12:01:05"))) == 1
    scene.sql("DELETE FROM job")
    if moved_back:
        with scene.transaction() as session:
            session.execute(update(Schedule).values(next_run_at=at("11:30")))

    again = scene.tick()

    assert again == []
    assert scene.jobs() == []
    assert fired_slots(scene.tick(moment=at("12:02:05"))) == ["minutely 12:02"]


def test_slot_whose_job_is_there_already_is_decided_without_another(scene: Scene) -> None:
    """Should the memory of a slot be lost, its job's key still stands for it."""
    scene.planned()
    (first,) = scene.tick(moment=at("12:01:05"))
    with scene.transaction() as session:
        session.execute(update(Schedule).values(last_slot=None, next_run_at=at("12:01")))

    (second,) = scene.tick()

    assert (second.slot, second.job_id) == (first.slot, None)
    assert [job.id for job in scene.jobs()] == [first.job_id]
    assert scene.row()["next_run_at"] == at("12:02")


# --- edits ----------------------------------------------------------------------------------------------------------


def edit_object(session: Session, column: str, value: object) -> None:
    schedule = session.scalars(select(Schedule)).one()
    setattr(schedule, column, value)


def edit_in_bulk(session: Session, column: str, value: object) -> None:
    session.execute(update(Schedule).where(Schedule.name == "minutely").values({column: value}))


def edit_by_sql(session: Session, column: str, value: object) -> None:
    session.execute(text(f"UPDATE schedule SET {column} = :value"), {"value": value})


edited_by = pytest.mark.parametrize("edit", [edit_object, edit_in_bulk, edit_by_sql])


@edited_by
def test_new_cron_text_counts_from_the_edit_on(scene: Scene, edit: Callable[..., None]) -> None:
    """The slot of the old text that was due at the edit fires no more, and from then on all are of the new text."""
    scene.planned()
    scene.tick(moment=at("12:01:05"))
    scene.move_to(at("12:02:05"))
    with scene.transaction() as session:
        edit(session, "cron", "*/4 * * * *")

    fired = scene.tick()
    assert scene.row()["next_run_at"] == at("12:04")
    for minute in range(3, 14):
        fired += scene.tick(moment=at("12:00:05") + minute * MINUTE)

    assert fired_slots(fired) == ["minutely 12:04", "minutely 12:08", "minutely 12:12"]
    assert scene.slots() == [at("12:01"), at("12:04"), at("12:08"), at("12:12")]
    assert scene.row()["slots_missed"] == 0


@edited_by
def test_new_zone_counts_from_the_edit_on(scene: Scene, edit: Callable[..., None]) -> None:
    """Noon of the old zone fires no more; noon of the new one does."""
    scene.planned(cron="*/30 12 * * *")
    scene.move_to(at("12:30:05"))
    with scene.transaction() as session:
        edit(session, "timezone", "America/New_York")

    fired = [*scene.tick(), *scene.tick(moment=at("15:59:59"))]
    fired += scene.tick(moment=at("16:00:05"))

    assert fired_slots(fired) == ["minutely 16:00"]
    assert scene.slots() == [at("16:00")]


@edited_by
def test_disabled_schedule_fires_nothing_and_catches_nothing_up(scene: Scene, edit: Callable[..., None]) -> None:
    """The slots of a pause are nobody's: they get no job then or later, and are not missed."""
    scene.planned(catch_up="all")
    scene.tick(moment=at("12:01:05"))
    with scene.transaction() as session:
        edit(session, "enabled", False)

    paused = [*scene.tick(moment=at("12:02:05")), *scene.tick(moment=at("12:05:05"))]
    assert scene.row()["next_run_at"] is None
    with scene.transaction() as session:
        edit(session, "enabled", True)
    resumed = [*scene.tick(), *scene.tick(moment=at("12:06:05"))]

    assert (paused, fired_slots(resumed)) == ([], ["minutely 12:06"])
    assert scene.slots() == [at("12:01"), at("12:06")]
    assert scene.row()["slots_missed"] == 0


def test_edit_that_brings_a_slot_back_fires_it_no_second_time(scene: Scene) -> None:
    """Slots that were decided under one text are decided under every other, with the clock set back too."""
    scene.planned()
    scene.tick(moment=at("12:04:05"))
    scene.move_to(at("12:03:30"))
    scene.sql("UPDATE schedule SET cron = '*/2 * * * *'")

    fired = [*scene.tick(), *scene.tick(moment=at("12:04:30")), *scene.tick(moment=at("12:06:05"))]

    assert fired_slots(fired) == ["minutely 12:06"]
    assert scene.slots() == [at("12:04"), at("12:06")]
