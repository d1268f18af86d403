from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, event, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.operations import leases
from sqla_jobs.rules.cron import spread
from tests.operations.scheduling import HOUR, MINUTE, START, Job, Scene, Schedule, at, build, clock, engine_of, write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from sqlalchemy import Connection, Engine

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


# --- between look and write -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_due", [True, False], ids=["due", "new"])
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE schedule SET cron = '0 3 * * *'",
        "UPDATE schedule SET timezone = 'Asia/Tokyo'",
        "UPDATE schedule SET enabled = false",
        "UPDATE schedule SET retired_at = created_at",
        "DELETE FROM schedule",
    ],
    ids=["cron", "timezone", "disable", "retire", "delete"],
)
def test_change_between_look_and_write_wins(scene: Scene, change: str, is_due: bool) -> None:
    """A scheduler that has looked before somebody's change fires nothing, plans nothing and writes nothing."""
    scene.add()
    if is_due:
        scene.tick()
        scene.move_to(at("12:01:05"))
    found = scene.look()
    scene.sql(change)
    before = scene.rows()

    written = scene.write(found)

    assert len(found.rows) == 1
    assert (written.moves, written.fired, written.unwritable) == ([], [], {})
    assert (scene.rows(), scene.tick(), scene.jobs()) == (before, [], [])


@pytest.mark.parametrize("change", [None, "UPDATE schedule SET cron = '0 3 * * *'", "DELETE FROM schedule"])
def test_scheduler_that_stalled_over_two_slots_changes_nothing(scene: Scene, change: str | None) -> None:
    """What others have fired and planned meanwhile stays, and next_run_at does not go back."""
    scene.planned()
    scene.move_to(at("12:01:05"))
    stalled = scene.look()
    assert fired_slots(scene.tick()) == ["minutely 12:01"]
    assert fired_slots(scene.tick(moment=at("12:02:05"))) == ["minutely 12:02"]
    if change:
        scene.sql(change)
    before = scene.rows()

    written = scene.write(stalled)

    assert (written.moves, written.fired) == ([], [])
    assert scene.rows() == before
    assert scene.slots() == [at("12:01"), at("12:02")]


# --- a scheduler that dies ------------------------------------------------------------------------------------------


@contextmanager
def dying_at(engine: Engine, start: str) -> Generator[None]:
    """Close the connection that is about to run a statement which begins so."""

    def close(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(start):
            driver: Any = connection.connection.driver_connection
            driver.close()

    event.listen(engine, "before_cursor_execute", close)
    yield
    event.remove(engine, "before_cursor_execute", close)


@pytest.mark.parametrize("start", ["INSERT INTO job ", "RELEASE SAVEPOINT"], ids=["before the job", "after the job"])
def test_scheduler_that_dies_between_its_writes_has_written_nothing(scene: Scene, start: str) -> None:
    """Slot and job stand or fall together, on whichever side of the insert it dies; the next scheduler fires."""
    scene.planned()
    scene.move_to(at("12:01:05"))
    before = scene.rows()

    with dying_at(scene.engine, start), pytest.raises(DBAPIError):
        scene.tick()

    assert (scene.rows(), scene.jobs()) == (before, [])
    assert fired_slots(scene.tick()) == ["minutely 12:01"]
    assert scene.slots() == [at("12:01")]


def test_scheduler_that_dies_before_its_commit_has_written_nothing(scene: Scene) -> None:
    """A transaction that was rolled back after all has been written leaves the slot to the next scheduler."""
    scene.planned()
    scene.move_to(at("12:01:05"))

    with Session(scene.engine) as session:
        assert len(write(session, scene.look()).fired) == 1
        session.rollback()

    assert scene.jobs() == []
    assert (fired_slots(scene.tick()), scene.tick()) == (["minutely 12:01"], [])
    assert scene.slots() == [at("12:01")]


@pytest.mark.parametrize("status", ["ready", "running", "done", "failed", "dead"])
def test_next_slot_comes_whatever_the_job_before_it_is(scene: Scene, status: str) -> None:
    """No run plants the next: a job that is stuck, failed or dead ends no schedule."""
    scene.planned()
    scene.tick(moment=at("12:01:05"))
    with scene.transaction() as session:
        session.execute(update(Job).values(status=status))

    fired = scene.tick(moment=at("12:02:05"))

    assert fired_slots(fired) == ["minutely 12:02"]
    assert [job.status for job in scene.jobs()] == [status, "ready"]


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_overlap_skip_waits_for_the_job_before(scene: Scene, catch_up: str) -> None:
    """While a job is unfinished its schedule's slots are counted instead; of several only the oldest fires."""
    scene.planned(overlap="skip", catch_up=catch_up)
    scene.tick(moment=at("12:01:05"))
    scene.sql("UPDATE job SET status = 'running'")

    held = [*scene.tick(moment=at("12:02:05")), *scene.tick(moment=at("12:03:05"))]
    with scene.transaction() as session:
        session.execute(update(Job).values(status="failed", finished_at=clock.read(session)))
    fired = scene.tick(moment=at("12:06:05"))

    row = scene.row()
    oldest, skipped, missed = ("12:04", 4, 0) if catch_up == "all" else ("12:06", 2, 2)
    assert (held, fired_slots(fired)) == ([], [f"minutely {oldest}"])
    assert (row["overlaps_skipped"], row["slots_missed"], row["last_slot"]) == (skipped, missed, at("12:06"))


# --- a scheduler that was away --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "minutely", "missed", "daily", "daily_missed"),
    [("latest", 1, 1559, 1, 0), ("all", 100, 1460, 1, 0), ("skip", 0, 1560, 0, 1)],
)
def test_day_without_a_scheduler_is_caught_up_as_the_row_says(
    scene: Scene, catch_up: str, minutely: int, missed: int, daily: int, daily_missed: int
) -> None:
    """After 26 hours each mode makes its jobs, the newest, in one pass, and counts the rest; then all is as ever."""
    back = START + 26 * HOUR
    often, seldom = scene.add(catch_up=catch_up), scene.add("daily", cron="0 2 * * *", catch_up=catch_up)
    scene.tick()

    first = scene.tick(moment=back)
    second = scene.tick(build("report"))

    newest = back.replace(second=0)
    assert (len(first), second) == (minutely + daily, [])
    assert scene.slots(often) == [newest - minute * MINUTE for minute in range(minutely)][::-1]
    assert scene.slots(seldom) == [at("02:00") + 24 * HOUR] * daily
    assert (scene.row()["slots_missed"], scene.row("daily")["slots_missed"]) == (missed, daily_missed)
    assert scene.row()["next_run_at"] == newest + MINUTE
    assert scene.row("daily")["next_run_at"] == at("02:00") + 48 * HOUR
    (usual,) = scene.tick(moment=back + MINUTE)
    assert usual.slot == newest + MINUTE


def test_limit_of_catch_up_all_counts_the_slots_of_one_absence(scene: Scene) -> None:
    """The newest of them fire, oldest first, and a lone slot that is on time fires with every mode."""
    schedule_id = scene.planned(catch_up="all", catch_up_limit=3)
    skipping = scene.planned("skipping", catch_up="skip")

    scene.tick(moment=at("12:01:05"))
    scene.tick(moment=at("12:06:05"))

    assert scene.slots(schedule_id) == [at("12:01"), at("12:04"), at("12:05"), at("12:06")]
    assert scene.slots(skipping) == [at("12:01")]
    assert (scene.row()["slots_missed"], scene.row("skipping")["slots_missed"]) == (2, 5)


# --- deletion and types ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["object", "sql"])
def test_deleted_schedule_leaves_its_jobs_to_run(scene: Scene, by: str) -> None:
    """Pending, running, retrying and done ones stay as they are, no new one comes, and the row is not made again."""
    scene.planned(catch_up="all")
    scene.tick(moment=at("12:04:05"))
    for job, status in zip(scene.jobs(), ["ready", "running", "ready", "done"], strict=True):
        scene.sql("UPDATE job SET status = :status, attempts = 1 WHERE id = :id", status=status, id=job.id)
    before = [(job.id, job.status, job.slot, job.schedule_id) for job in scene.jobs()]

    with scene.transaction() as session:
        if by == "object":
            session.delete(session.scalars(select(Schedule)).one())
        else:
            session.execute(delete(Schedule))
    fired = [*scene.tick(moment=at("12:05:05")), *scene.tick(moment=at("12:06:05"))]

    assert (fired, scene.rows()) == ([], [])
    assert [(job.id, job.status, job.slot, job.schedule_id) for job in scene.jobs()] == before
    with scene.transaction() as session:
        demand = leases.Demand(("report",), None)
        claimed = leases.claim(session, build("report").table, demand, limit=10, locked_by="w1", lease=MINUTE)
    assert [lease.id for lease in claimed] == [job_id for job_id, status, *_ in before if status == "ready"]


def test_type_that_a_release_does_not_know_costs_nothing_but_an_error(scene: Scene) -> None:
    """Ten schedules and ten jobs of it are as they were, and once it is back each due slot fires and the error goes."""
    with_b, without_b = build("report", "b"), build("report")
    names = [f"b{number}" for number in range(10)]
    ids = [scene.add(name, job_type="b") for name in names]
    scene.tick(with_b)
    assert len(scene.tick(with_b, moment=at("12:01:05"))) == 10
    rows, made = scene.rows(), [(job.id, job.status, job.attempts) for job in scene.jobs()]

    for moment in ("12:02:05", "12:03:05", "12:04:05"):
        assert scene.tick(without_b, moment=at(moment)) == []

    marked = scene.rows()
    assert all("'b' in registry 'shop'" in row["last_error"] for row in marked)
    assert [row | {"last_error": None} for row in marked] == rows
    assert scene.look(without_b).rows == []
    assert [(job.id, job.status, job.attempts) for job in scene.jobs()] == made
    assert fired_slots(scene.tick(with_b)) == [f"{name} 12:04" for name in names]
    assert [scene.error(schedule_id) for schedule_id in ids] == [None] * 10
    assert all(scene.slots(schedule_id) == [at("12:01"), at("12:04")] for schedule_id in ids)
    assert {row["slots_missed"] for row in scene.rows()} == {2}


def test_type_that_another_process_serves_in_time_is_not_marked(scene: Scene) -> None:
    """A process without the type marks no row before it is a minute overdue, and another registry's never."""
    with_b, without_b = build("report", "b"), build("report")
    scene.add(job_type="b")
    foreign = scene.add("foreign", job_type="c", declared_by="other")
    scene.tick(with_b)

    for moment in ("12:01:05", "12:02:05"):
        assert scene.tick(without_b, moment=at(moment)) == []
        assert scene.row()["last_error"] is None
        assert fired_slots(scene.tick(with_b)) == [f"minutely {moment[:5]}"]

    assert scene.error(foreign) is None
