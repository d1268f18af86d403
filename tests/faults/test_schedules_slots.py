"""Schedulers among themselves, and people beside them: one slot, one job, whoever stalls or dies."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, event, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.operations import scheduling
from tests.operations.scheduling import MINUTE, Job, Scene, Schedule, at, build, clock, engine_of, write

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlalchemy import Connection, Engine

    from sqla_jobs.operations.scheduling import Fired, Written

ROUNDS = 15


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    """Give the app's database, empty, at `START`."""
    return Scene(app_engine)


on_postgresql = pytest.mark.parametrize("app_engine", ["postgresql"], indirect=True)
"""Where rows are locked."""


def minutes(count: int) -> list[Any]:
    """Give the first slots of a minutely schedule after `START`."""
    return [at("12:00") + minute * MINUTE for minute in range(1, count + 1)]


def fired_slots(fired: list[Fired]) -> list[str]:
    return [f"{each.name} {each.slot:%H:%M}" for each in fired]


@on_postgresql
def test_f49_schedulers_that_write_at_one_moment_make_one_job(scene: Scene) -> None:
    """Of four schedulers one fires; the others change nothing, raise nothing, and no error reaches the server."""
    scene.planned()

    with scene.noting_rollbacks() as noted:
        for slot in minutes(ROUNDS):
            scene.move_to(slot + MINUTE / 10)
            found = [scene.look() for _ in range(4)]
            written: list[Written] = scene.race(*(partial(write, found=look) for look in found))

            assert sorted(len(each.fired) for each in written) == [0, 0, 0, 1]
            assert sorted(len(each.moves) for each in written) == [0, 0, 0, 1]
            assert (scene.row()["last_slot"], scene.row()["next_run_at"]) == (slot, slot + MINUTE)

    assert scene.slots() == minutes(ROUNDS)
    assert noted == []


@on_postgresql
def test_f49_schedulers_that_look_and_write_at_one_moment_share_many_schedules(scene: Scene) -> None:
    """However they divide the due schedules, each fires once a slot, and none is left over."""
    names = [f"schedule {number:02}" for number in range(20)]
    ids = [scene.add(name) for name in names]
    scene.tick()

    def look_and_write(session: Session) -> Written:
        return write(session, scheduling.look(session, build("report"), limit=500))

    for slot in minutes(3):
        scene.move_to(slot + MINUTE / 10)
        written: list[Written] = scene.race(*[look_and_write] * 3)
        fired = [each.name for part in written for each in part.fired]
        fired += [each.name for each in scene.tick()]

        assert sorted(fired) == names
    assert all(scene.slots(schedule_id) == minutes(3) for schedule_id in ids)


@on_postgresql
def test_f49_scheduler_does_not_wait_for_one_that_is_writing(scene: Scene) -> None:
    """It passes over what the other holds, and finds it done once that has committed."""
    scene.planned()
    scene.move_to(at("12:01:05"))
    first, second = scene.look(), scene.look()

    with scene.noting_rollbacks() as noted:
        with scene.transaction() as writing:
            assert len(write(writing, first).fired) == 1
            during = scene.write(second)
        after = scene.write(second)

    assert noted == []
    assert (during.moves, during.fired, after.moves, after.fired) == ([], [], [], [])
    assert scene.slots() == [at("12:01")]


def test_f49_scheduler_that_wakes_early_fires_nothing(scene: Scene) -> None:
    """Half a second before a slot there is nothing to do, be it the first wake-up for it or one after it has fired."""
    scene.planned()
    early = at("12:01") - MINUTE / 120

    ticks = [scene.tick(moment=moment) for moment in (early, at("12:01"), early, at("12:01"))]

    assert [fired_slots(fired) for fired in ticks] == [[], ["minutely 12:01"], [], []]
    assert scene.slots() == [at("12:01")]


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
def test_f51_change_between_look_and_write_wins(scene: Scene, change: str, is_due: bool) -> None:
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
def test_f51_scheduler_that_stalled_over_two_slots_changes_nothing(scene: Scene, change: str | None) -> None:
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


def test_f51_scheduler_that_stalled_over_a_plan_takes_none_back(scene: Scene) -> None:
    """What another has planned meanwhile, from later on, stays: no slot from before that plan fires."""
    scene.add()
    stalled = scene.look()
    scene.tick(moment=at("12:03:05"))
    before = scene.row()

    written = scene.write(stalled)

    assert (written.moves, scene.row(), scene.tick()) == ([], before, [])
    assert before["next_run_at"] == at("12:04")


def test_f51_scheduler_that_stalled_fires_no_slot_that_was_fired_and_set_back(scene: Scene) -> None:
    """Not even if next_run_at is what it had read, and the job of the slot is gone."""
    scene.planned()
    scene.move_to(at("12:01:05"))
    stalled = scene.look()
    assert len(scene.tick()) == 1
    scene.sql("DELETE FROM job")
    with scene.transaction() as session:
        session.execute(update(Schedule).values(next_run_at=at("12:01")))

    written = scene.write(stalled)

    assert (written.moves, written.fired, scene.tick(), scene.slots()) == ([], [], [], [])


def edit(session: Session) -> None:
    session.execute(update(Schedule).values(cron="*/3 * * * *"))


@on_postgresql
def test_f51_write_and_edit_at_one_moment_agree(scene: Scene) -> None:
    """Either the slot fired before the edit or it never fires; the edit stays, and its text counts from then on."""
    for _ in range(ROUNDS):
        scene = Scene(scene.engine)
        scene.planned()
        scene.move_to(at("12:01:05"))

        written, _ = scene.race(partial(write, found=scene.look()), edit)
        later = [*scene.tick(), *scene.tick(moment=at("12:02:05")), *scene.tick(moment=at("12:03:05"))]

        assert scene.row()["cron"] == "*/3 * * * *"
        assert [fired.slot for fired in later] == [at("12:03")]
        assert scene.slots() == [*(fired.slot for fired in written.fired), at("12:03")]


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
def test_f52_scheduler_that_dies_between_its_writes_has_written_nothing(scene: Scene, start: str) -> None:
    """Slot and job stand or fall together, on whichever side of the insert it dies; the next scheduler fires."""
    scene.planned()
    scene.move_to(at("12:01:05"))
    before = scene.rows()

    with dying_at(scene.engine, start), pytest.raises(DBAPIError):
        scene.tick()

    assert (scene.rows(), scene.jobs()) == (before, [])
    assert fired_slots(scene.tick()) == ["minutely 12:01"]
    assert scene.slots() == [at("12:01")]


def test_f52_scheduler_that_dies_before_its_commit_has_written_nothing(scene: Scene) -> None:
    """A transaction that was rolled back after all has been written leaves the slot to the next scheduler."""
    scene.planned()
    scene.move_to(at("12:01:05"))

    with Session(scene.engine) as session:
        assert len(write(session, scene.look()).fired) == 1
        session.rollback()

    assert scene.jobs() == []
    assert (fired_slots(scene.tick()), scene.tick()) == (["minutely 12:01"], [])
    assert scene.slots() == [at("12:01")]


@on_postgresql
def test_f52_slot_of_a_scheduler_that_rolled_back_is_fired_by_the_next(scene: Scene) -> None:
    """What a scheduler held when it died was passed over, and is not lost."""
    scene.planned()
    scene.move_to(at("12:01:05"))

    with Session(scene.engine) as dying:
        assert len(write(dying, scene.look()).fired) == 1
        assert scene.tick() == []
        dying.rollback()

    assert [fired.slot for fired in scene.tick()] == [at("12:01")]
    assert scene.slots() == [at("12:01")]


@pytest.mark.parametrize("status", ["ready", "running", "done", "failed", "dead", "deleted"])
def test_f52_next_slot_comes_whatever_the_job_before_it_is(scene: Scene, status: str) -> None:
    """No run plants the next: a job that is stuck, failed, dead or gone ends no schedule."""
    scene.planned()
    scene.tick(moment=at("12:01:05"))
    with scene.transaction() as session:
        session.execute(delete(Job) if status == "deleted" else update(Job).values(status=status))

    fired = scene.tick(moment=at("12:02:05"))

    assert fired_slots(fired) == ["minutely 12:02"]
    assert [job.status for job in scene.jobs()] == [status, "ready"][status == "deleted" :]


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_f52_overlap_skip_waits_for_the_job_before(scene: Scene, catch_up: str) -> None:
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
