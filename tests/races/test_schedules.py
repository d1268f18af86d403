"""Schedulers, people and starting workers at the same rows: one transaction open while the other acts, or at once."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.operations import scheduling
from sqla_jobs.rules.schedules import slot_key
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.scheduler import SCHEDULES_PER_LOOK, Scheduler
from sqla_jobs.schema.dialects import capabilities
from tests.operations.scheduling import MINUTE, Job, Scene, Schedule, at, build, engine_of, insert_job, jobs, write

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlalchemy import Engine

    from sqla_jobs.operations.registry import Jobs
    from sqla_jobs.operations.scheduling import Look

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

    with scene.transaction() as locking, scene.noting_rollbacks() as noted:
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
        foreign = scene.race(
            *(partial(scheduling.declare, jobs=registry, declarations=declared) for declared in orders)
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

        scene.race(
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
        changed = scene.race(*(partial(verb, jobs=release) for release in releases for verb in verbs))

        assert len(changed) == 4
        assert len(scene.rows()) == 12
