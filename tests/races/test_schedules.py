"""Schedulers, people and starting workers at the same rows: one transaction open while the other acts, or at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.operations import scheduling
from sqla_jobs.rules.schedules import slot_key
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.scheduler import SCHEDULES_PER_LOOK, Scheduler
from sqla_jobs.schema.dialects import capabilities
from tests.operations.scheduling import MINUTE, Job, Scene, Schedule, at, build, engine_of, insert_job, jobs, write
from tests.races.scene import LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from sqlalchemy import Connection, Engine

    from sqla_jobs.operations.registry import Jobs
    from sqla_jobs.operations.scheduling import Look, Written

ROUNDS = 15


@pytest.fixture(scope="module")
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a PostgreSQL database with the tables."""
    with engine_of(request, "postgresql") as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    """Give the app's database, empty, at `START`, where rows are locked."""
    return Scene(app_engine)


def race(scene: Scene, *runners: Callable[[Session], Any]) -> list[Any]:
    """Run each in a transaction and thread of its own, let go at one moment, and give what they return."""
    barrier = threading.Barrier(len(runners))

    def run(runner: Callable[[Session], Any]) -> Any:
        with Session(scene.engine) as session:
            barrier.wait(LONGEST)
            with session.begin():
                return runner(session)

    with ThreadPoolExecutor(len(runners)) as threads:
        running = [threads.submit(run, runner) for runner in runners]
        return [future.result(LONGEST) for future in running]


@contextmanager
def noting_rollbacks(engine: Engine) -> Generator[list[str]]:
    """Note each savepoint that is rolled back: what an error that somebody caught leaves behind."""
    noted: list[str] = []

    def note(_connection: Connection, name: str, _context: object) -> None:
        noted.append(name)

    event.listen(engine, "rollback_savepoint", note)
    yield noted
    event.remove(engine, "rollback_savepoint", note)


@contextmanager
def scheduler_of(scene: Scene, registry: Jobs[Job]) -> Generator[Scheduler]:
    """Give the scheduler of a worker, to tick by hand; it waits for a row lock as long as one of a worker does."""
    connector = Connector.of_app(scene.engine, Opening(scene.engine))
    yield Scheduler(registry, connector, bounded=capabilities(scene.engine.dialect).bounded)
    connector.close()


def minutes(count: int) -> list[Any]:
    """Give the first slots of a minutely schedule after `START`."""
    return [at("12:00") + minute * MINUTE for minute in range(1, count + 1)]


# --- schedulers among themselves ------------------------------------------------------------------------------------


def test_schedulers_that_write_at_one_moment_make_one_job(scene: Scene) -> None:
    """Of four schedulers one fires; the others change nothing, raise nothing, and no error reaches the server."""
    scene.planned()

    with noting_rollbacks(scene.engine) as noted:
        for slot in minutes(ROUNDS):
            scene.move_to(slot + MINUTE / 10)
            found = [scene.look() for _ in range(4)]
            written: list[Written] = race(scene, *(partial(write, found=look) for look in found))

            assert sorted(len(each.fired) for each in written) == [0, 0, 0, 1]
            assert sorted(len(each.moves) for each in written) == [0, 0, 0, 1]
            assert (scene.row()["last_slot"], scene.row()["next_run_at"]) == (slot, slot + MINUTE)

    assert scene.slots() == minutes(ROUNDS)
    assert noted == []


def test_schedulers_that_look_and_write_at_one_moment_share_many_schedules(scene: Scene) -> None:
    """However they divide the due schedules, each fires once a slot, and none is left over."""
    names = [f"schedule {number:02}" for number in range(20)]
    ids = [scene.add(name) for name in names]
    scene.tick()

    def look_and_write(session: Session) -> Written:
        return write(session, scheduling.look(session, build("report"), limit=500))

    for slot in minutes(3):
        scene.move_to(slot + MINUTE / 10)
        written: list[Written] = race(scene, *[look_and_write] * 3)
        fired = [each.name for part in written for each in part.fired]
        fired += [each.name for each in scene.tick()]

        assert sorted(fired) == names
    assert all(scene.slots(schedule_id) == minutes(3) for schedule_id in ids)


def test_scheduler_does_not_wait_for_one_that_is_writing(scene: Scene) -> None:
    """It passes over what the other holds, and finds it done once that has committed."""
    scene.planned()
    scene.move_to(at("12:01:05"))
    first, second = scene.look(), scene.look()

    with noting_rollbacks(scene.engine) as noted:
        with scene.transaction() as writing:
            assert len(write(writing, first).fired) == 1
            during = scene.write(second)
        after = scene.write(second)

    assert noted == []
    assert (during.moves, during.fired, after.moves, after.fired) == ([], [], [], [])
    assert scene.slots() == [at("12:01")]


def test_slot_of_a_scheduler_that_rolled_back_is_fired_by_the_next(scene: Scene) -> None:
    """What a scheduler held when it died was passed over, and is not lost."""
    scene.planned()
    scene.move_to(at("12:01:05"))

    with Session(scene.engine) as dying:
        assert len(write(dying, scene.look()).fired) == 1
        assert scene.tick() == []
        dying.rollback()

    assert [fired.slot for fired in scene.tick()] == [at("12:01")]
    assert scene.slots() == [at("12:01")]


def test_scheduler_that_stalled_over_a_plan_takes_none_back(scene: Scene) -> None:
    """What another has planned meanwhile, from later on, stays: no slot from before that plan fires."""
    scene.add()
    stalled = scene.look()
    scene.tick(moment=at("12:03:05"))
    before = scene.row()

    written = scene.write(stalled)

    assert (written.moves, scene.row(), scene.tick()) == ([], before, [])
    assert before["next_run_at"] == at("12:04")


def test_scheduler_that_stalled_fires_no_slot_that_was_fired_and_set_back(scene: Scene) -> None:
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


def test_sessions_of_different_time_zones_agree_on_what_a_row_holds(scene: Scene) -> None:
    """A pool that hands out sessions with other settings stops no schedule."""
    scene.planned(catch_up="all")
    for slot, zone in zip(minutes(3), ("Asia/Tokyo", "America/St_Johns", "UTC"), strict=True):
        scene.move_to(slot + MINUTE / 10)
        with scene.transaction() as session:
            session.execute(text(f"SET LOCAL TimeZone = '{zone}'"))
            session.execute(text("SET LOCAL DateStyle = 'German'"))
            found = scheduling.look(session, jobs, limit=10)

        assert [fired.slot for fired in scene.write(found).fired] == [slot]


# --- schedulers and people ------------------------------------------------------------------------------------------


def test_rows_that_others_have_locked_are_passed_over(scene: Scene) -> None:
    """A locked schedule holds up no other, and fires its slot when it is free again."""
    scene.add("free")
    locked = scene.add("locked")
    scene.tick()
    scene.move_to(at("12:01:05"))

    with scene.transaction() as locking, noting_rollbacks(scene.engine) as noted:
        locking.execute(select(Schedule.id).where(Schedule.id == locked).with_for_update())
        during = scene.tick()
    after = scene.tick()

    assert noted == []
    assert [[fired.name for fired in each] for each in (during, after)] == [["free"], ["locked"]]
    assert scene.slots(locked) == [at("12:01")]


def test_schedules_behind_a_batch_of_locked_ones_fire(scene: Scene) -> None:
    """As many locked rows as one look takes, all due for longer, hide none of those behind them."""
    rows = [
        {"name": f"{number}", "job_type": "report", "cron": "* * * * *", "created_at": at("12:00")}
        for number in range(SCHEDULES_PER_LOOK)
    ]
    with scene.transaction() as session:
        session.execute(insert(Schedule.__table__), rows)  # type: ignore[arg-type]
    scene.tick()
    behind = scene.add("behind")
    scene.tick()
    scene.sql("UPDATE schedule SET next_run_at = created_at WHERE name <> 'behind'")
    scene.move_to(at("12:01:05"))

    with scheduler_of(scene, build("report")) as scheduler, scene.transaction() as locking:
        locking.execute(select(Schedule.id).where(Schedule.id != behind).with_for_update())
        scheduler.tick()

    assert scene.slots() == [at("12:01")]
    assert scene.slots(behind) == [at("12:01")]


def test_edit_that_is_not_committed_yet_holds_its_row(scene: Scene) -> None:
    """The slot that is due meanwhile waits for the edit, and falls with it; without the edit it fires."""
    edited, kept = scene.add("edited"), scene.add("kept")
    scene.tick()
    scene.move_to(at("12:01:05"))

    with Session(scene.engine) as editing:
        editing.execute(update(Schedule).where(Schedule.id == kept).values(cron="0 3 * * *"))
        with scene.transaction() as session:
            session.execute(update(Schedule).where(Schedule.id == edited).values(cron="0 3 * * *"))
            assert scene.tick() == []
        editing.rollback()

    assert [fired.name for fired in scene.tick()] == ["kept"]
    assert scene.slots(edited) == []
    assert scene.row("edited")["next_run_at"] == at("03:00") + 24 * 60 * MINUTE


def edit(session: Session) -> None:
    session.execute(update(Schedule).values(cron="*/3 * * * *"))


def test_write_and_edit_at_one_moment_agree(scene: Scene) -> None:
    """Either the slot fired before the edit or it never fires; the edit stays, and its text counts from then on."""
    for _ in range(ROUNDS):
        scene = Scene(scene.engine)
        scene.planned()
        scene.move_to(at("12:01:05"))

        written, _ = race(scene, partial(write, found=scene.look()), edit)
        later = [*scene.tick(), *scene.tick(moment=at("12:02:05")), *scene.tick(moment=at("12:03:05"))]

        assert scene.row()["cron"] == "*/3 * * * *"
        assert [fired.slot for fired in later] == [at("12:03")]
        assert scene.slots() == [*(fired.slot for fired in written.fired), at("12:03")]


def test_write_and_delete_at_one_moment_agree(scene: Scene) -> None:
    """The row is gone, neither has failed, and there is a job only if the slot fired before."""
    for _ in range(ROUNDS):
        scene = Scene(scene.engine)
        scene.planned()
        scene.move_to(at("12:01:05"))

        written, _ = race(scene, partial(write, found=scene.look()), lambda session: session.execute(delete(Schedule)))

        assert (scene.rows(), scene.tick()) == ([], [])
        assert scene.slots() == [fired.slot for fired in written.fired]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_lock_on_a_slots_key_delays_its_own_schedule_only(scene: Scene, ends: str) -> None:
    """While somebody's open transaction has the key, the others fire; then the slot is decided, and has one job."""
    ids = [scene.add(name) for name in ("a", "held", "z")]
    scene.tick()
    scene.move_to(at("12:01:05"))
    before = scene.row("held")

    with Session(scene.engine) as holding:
        insert_job(holding, slot_key(ids[1], at("12:01")))
        with scene.transaction() as session:
            session.execute(text("SET LOCAL lock_timeout = '100ms'"))
            written = write(session, look_of(scene))
            wait_for_others = session.scalar(text("SHOW lock_timeout"))
        meanwhile = scene.row("held")
        getattr(holding, ends)()
    after = scene.tick()

    assert [fired.name for fired in written.fired] == ["a", "z"]
    assert wait_for_others == "10ms"  # a hundred such keys must not add up
    assert (meanwhile, written.unwritable) == (before, {})
    assert [(fired.name, fired.slot) for fired in after] == [("held", at("12:01"))]
    assert (after[0].job_id is None) is (ends == "commit")
    keys = [job.idempotency_key for job in scene.jobs()]
    assert keys.count(slot_key(ids[1], at("12:01"))) == 1
    assert len(keys) == 3
    assert scene.row("held")["last_slot"] == at("12:01")


def look_of(scene: Scene) -> Look:
    """Look, with the rows in the order of their ids."""
    found = scene.look()
    found.rows.sort(key=lambda row: row.id)
    return found


@pytest.mark.parametrize("part", ["declare", "retire", "revive"])
def test_lock_on_a_declared_row_stops_no_other_schedule(scene: Scene, part: str) -> None:
    """Whatever a scheduler has to do to a row that somebody holds, the others fire meanwhile."""
    old = build("report", declares={"held": "0 0 1 1 *", "free": "* * * * *"})
    scene.declare(old)
    scene.tick(moment=at("12:00:20"))
    if part == "revive":
        scene.uphold(build("report", declares={"free": "* * * * *"}))
    crons = {"declare": {"held": "0 0 2 2 *"}, "retire": {}, "revive": {"held": "0 0 1 1 *"}}[part]
    registry = build("report", declares={"free": "* * * * *"} | crons)
    scene.move_to(at("12:01:05"))

    with scheduler_of(scene, registry) as scheduler, scene.transaction() as holding:
        holding.execute(select(Schedule.id).where(Schedule.name == "held").with_for_update())
        for _ in range(2):
            with suppress(DBAPIError):
                scheduler.tick()
        during = scene.slots()
    with scheduler_of(scene, registry) as scheduler:
        scheduler.tick()

    assert during == [at("12:01")]
    assert scene.row("held")["cron"] == crons.get("held", "0 0 1 1 *")
    assert (scene.row("held")["retired_at"] is None) is (part != "retire")


# --- declarations ---------------------------------------------------------------------------------------------------


def test_declarations_at_one_moment_make_one_row_each(scene: Scene) -> None:
    """Four workers that start together, with the names in different orders: each name has one row, and none fails."""
    names = [f"schedule {number:02}" for number in range(12)]
    registry = build("report", declares=dict.fromkeys(names, "* * * * *"))
    declarations = list(registry.declarations.values())
    orders = [declarations, declarations[::-1], declarations[6:] + declarations[:6], declarations]

    for _ in range(ROUNDS):
        foreign = race(
            scene, *(partial(scheduling.declare, jobs=registry, declarations=declared) for declared in orders)
        )

        assert [(each.foreign, each.failed) for each in foreign] == [([], {})] * 4
        assert sorted(row["name"] for row in scene.rows()) == names
        scene = Scene(scene.engine)


def test_releases_that_start_at_one_moment_agree_on_one_definition(scene: Scene) -> None:
    """Two releases declare a name differently: the row is one or the other's whole, and no mixture."""
    releases = [build("report", declares={"tidy": cron}) for cron in ("*/2 * * * *", "*/3 * * * *")]
    for first in ["insert", "update"] * 5:
        if first == "insert":
            scene = Scene(scene.engine)

        race(
            scene,
            *(
                partial(scheduling.declare, jobs=release, declarations=list(release.declarations.values()))
                for release in releases
            ),
        )

        (row,) = scene.rows()
        assert row["cron"] in {"*/2 * * * *", "*/3 * * * *"}


def test_releases_that_uphold_at_one_moment_fail_neither(scene: Scene) -> None:
    """Each retires what only the other has; there is no deadlock, and what is left is what one of them wrote."""
    names = {"old": [f"old {number}" for number in range(6)], "new": [f"new {number}" for number in range(6)]}
    releases = [build("report", declares=dict.fromkeys(each, "* * * * *")) for each in names.values()]
    for release in releases:
        scene.declare(release)

    for _ in range(4 * ROUNDS):
        verbs = (scheduling.revive, scheduling.retire)
        changed = race(scene, *(partial(verb, jobs=release) for release in releases for verb in verbs))

        assert len(changed) == 4
        assert len(scene.rows()) == 12
