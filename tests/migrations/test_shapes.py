from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import MetaData, delete, select

from sqla_jobs import enqueue, enqueue_many
from sqla_jobs.testing import Clock, tick
from tests.migrations.shape_scene import Scene, opened
from tests.migrations.shapes import BASES, Shape
from tests.migrations.shapes_of_tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from sqla_jobs import Handler

HOURLY = "0 * * * *"

AN_HOUR = timedelta(hours=1)


@pytest.fixture(params=[*BASES, *TABLES])
def scene(request: pytest.FixtureRequest, database_url: str) -> Iterator[Scene]:
    """Give an app of each shape in turn, on an empty database of each kind in turn."""
    shape: Callable[[], Shape] = request.param
    with opened(shape(), database_url) as scene:
        yield scene


def own(job: Any, names: Any) -> dict[str, Any]:
    return {name: getattr(job, name) for name in names}


def test_job_lives_its_whole_life_in_every_shape(scene: Scene) -> None:
    """Enqueued alone, among many or once by key, retried, or given back by a reaper: each job ends done, as it was."""
    texts = ["one", "two", "three", "once", "stumbling", "vanishing"]
    with scene.transaction() as session:
        ids = dict(zip(texts, stored(scene, session), strict=True))
    assert scene.claim(scene.vanish) == 1
    scene.advance(timedelta(minutes=1))

    with scene.worker(scene.registry(scene.shape.job, name="bystander")) as worker:
        assert worker.reap() == 1
    scene.advance(AN_HOUR)
    scene.worker().run_until_idle()

    given = dict.fromkeys(["one", "three", "once", "vanishing"], scene.shape.columns)
    with scene.sessions() as session:
        found: Any = scene.shape.job
        rows = {job.id: job for job in session.scalars(select(found).where(found.type != "other")).unique()}
        assert sorted(rows) == sorted(ids.values())
        for text, new in ids.items():
            expected = dict(scene.shape.filled) | dict(given.get(text, {}))
            assert (type(rows[new]), rows[new].status) == (scene.shape.job, "done"), rows[new].last_error
            assert own(rows[new], expected) == expected
        assert [rows[ids[text]].attempts for text in texts] == [1, 1, 1, 1, 2, 2]
        assert [rows[ids[text]].lease_expirations for text in texts] == [0, 0, 0, 0, 0, 1]
    assert sorted(scene.ran) == sorted((text, scene.shape.job) for text in [*texts, "stumbling"])


def stored(scene: Scene, session: Session) -> list[int]:
    """Enqueue in every way, and give the ids."""
    note = scene.note.using(columns=scene.shape.columns)
    job = enqueue(session, note, text="one")
    assert type(job) is scene.shape.job
    assert own(job, scene.shape.columns) == dict(scene.shape.columns)
    two, three = enqueue_many(session, [scene.note.job(text="two"), note.job(text="three")])
    once = enqueue(session, note.using(key="k"), text="once")
    again = enqueue(session, scene.note.using(key="k"), text="again")
    (many,) = enqueue_many(session, [note.using(key="k").job(text="again")])
    assert (again is once, again.is_duplicate, many.id, many.is_duplicate) == (True, True, once.id, True)
    stumbling = enqueue(session, scene.stumble, text="stumbling")
    vanishing = enqueue(session, scene.vanish.using(columns=scene.shape.columns), text="vanishing")
    return [job.id, two.id, three.id, once.id, stumbling.id, vanishing.id]


def test_schedule_fires_in_every_shape(scene: Scene) -> None:
    """A schedule that code declares, and one made at run time, each make the job of their slot, and it runs."""
    scene.jobs.schedule("declared", scene.note.job(text="by code"), cron=HOURLY, offset=timedelta(0))
    made = scene.shape.new_schedule(
        name="made", job_type="_note", payload={"text": "by hand"}, cron=HOURLY, offset=timedelta(0)
    )
    with scene.transaction() as session:
        session.add(made)
    with scene.transaction() as session:
        assert tick(session, scene.jobs) == []
    scene.advance(AN_HOUR)

    scene.worker().run_until_idle()

    assert sorted(scene.ran) == [("by code", scene.shape.job), ("by hand", scene.shape.job)]
    with scene.sessions() as session:
        job, schedule = scene.shape.job, scene.shape.schedule
        rows = session.scalars(select(job).where(job.type != "other")).unique().all()
        schedules = session.scalars(select(schedule)).unique().all()
        assert {row.schedule_id: row.slot for row in rows} == {each.id: each.last_slot for each in schedules}
        assert {each.declared_by for each in schedules} == {None, "default"}
        expected = dict(scene.shape.filled)
        assert [own(row, expected) for row in rows] == [expected, expected]


def test_rows_go_and_their_ids_are_not_used_again_in_every_shape(scene: Scene) -> None:
    """What is rolled back was never there, what is deleted is gone, and jobs that come after have ids of their own."""
    note = scene.note.using(columns=scene.shape.columns)
    job, schedule = scene.shape.job, scene.shape.schedule
    before = scene.ids(job)
    roll_back(scene, note)
    assert scene.ids(job) == before
    with scene.transaction() as session:
        first = enqueue(session, note, text="one").id
        last = enqueue_many(session, [note.job(text="two"), note.job(text="three")])[-1].id
        session.add(scene.shape.new_schedule(name="a", job_type="_note", cron=HOURLY))

    with scene.transaction() as session:
        session.delete(session.get_one(job, first))
        session.execute(delete(job).where(job.id > first))
        removed = session.scalars(select(schedule)).one()
        session.delete(removed)

    assert (scene.ids(job), scene.ids(schedule)) == (before, [])
    with scene.transaction() as session:
        assert enqueue(session, note, text="four").id > last
        session.add(scene.shape.new_schedule(name="a", job_type="_note", cron=HOURLY))
        session.flush()
        assert session.scalars(select(schedule.id)).one() > removed.id


def roll_back(scene: Scene, note: Handler[Any, ..., ..., Any]) -> None:
    """Enqueue in a transaction, and in a savepoint, and take it back."""
    with scene.sessions() as session:
        enqueue(session, note, text="one")
        enqueue_many(session, [note.job(text="two"), note.using(key="k").job(text="three")])
        session.rollback()
        with session.begin_nested() as savepoint:
            enqueue(session, note.using(key="k"), text="four")
            savepoint.rollback()
        session.commit()


@pytest.mark.parametrize("schema", [None, "queue"])
def test_clock_is_made_twice_for_one_metadata(schema: str | None) -> None:
    """A clock for each registry or test module finds the table of the one before, whatever schema it is in."""
    metadata = MetaData(schema=schema)

    Clock(metadata)
    Clock(metadata)

    assert len(metadata.tables) == 1
