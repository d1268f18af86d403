"""Schedulers that were away, schedules that are deleted, and types that a release does not know."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, select, text
from sqlalchemy.orm import sessionmaker

from sqla_jobs import Worker, find_jobs
from sqla_jobs.operations import leases
from sqla_jobs.operations.schedules import list_schedules
from tests.operations.scheduling import HOUR, MINUTE, START, Scene, Schedule, at, build, engine_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlalchemy import Engine

    from sqla_jobs.operations.scheduling import Fired

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


def fired_slots(fired: list[Fired]) -> list[str]:
    return [f"{each.name} {each.slot:%H:%M}" for each in fired]


@pytest.mark.parametrize(
    ("catch_up", "minutely", "missed", "daily", "daily_missed"),
    [("latest", 1, 1559, 1, 0), ("all", 100, 1460, 1, 0), ("skip", 0, 1560, 0, 1)],
)
def test_f53_day_without_a_scheduler_is_caught_up_as_the_row_says(
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


def test_f53_limit_of_catch_up_all_counts_the_slots_of_one_absence(scene: Scene) -> None:
    """The newest of them fire, oldest first, and a lone slot that is on time fires with every mode."""
    schedule_id = scene.planned(catch_up="all", catch_up_limit=3)
    skipping = scene.planned("skipping", catch_up="skip")

    scene.tick(moment=at("12:01:05"))
    scene.tick(moment=at("12:06:05"))

    assert scene.slots(schedule_id) == [at("12:01"), at("12:04"), at("12:05"), at("12:06")]
    assert scene.slots(skipping) == [at("12:01")]
    assert (scene.row()["slots_missed"], scene.row("skipping")["slots_missed"]) == (2, 5)


def test_f53_weekly_schedule_of_a_service_that_restarts_every_hour_fires(scene: Scene) -> None:
    """What is planned is stored: a start changes nothing of it, and the slot comes at its time, once."""

    def restart(moment: datetime) -> list[Fired]:
        release = build("report", declares={"weekly": "0 14 * * mon"})
        scene.declare(release)
        return scene.tick(release, moment=moment)

    slot = at("14:00") + 7 * 24 * HOUR
    assert restart(at("14:30")) == []
    planned = scene.row("weekly")

    hours = [at("15:10") + hour * HOUR for hour in (0, 1, 2, 23, 24, 70, 71, 164, 165)]
    assert [restart(moment) for moment in hours] == [[]] * len(hours)
    assert scene.row("weekly") == planned
    fired = [*restart(slot + 10 * MINUTE), *restart(slot + 70 * MINUTE)]

    assert planned["next_run_at"] == slot
    assert [each.slot for each in fired] == scene.slots() == [slot]
    assert scene.row("weekly")["next_run_at"] == slot + 7 * 24 * HOUR


@pytest.mark.parametrize("by", ["object", "sql"])
def test_f55_deleted_schedule_leaves_its_jobs_to_run(scene: Scene, by: str) -> None:
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


@pytest.mark.parametrize("app_engine", ["postgresql"], indirect=True)
def test_f55_write_and_delete_at_one_moment_agree(scene: Scene) -> None:
    """The row is gone, neither has failed, and there is a job only if the slot fired before."""
    for _ in range(ROUNDS):
        scene = Scene(scene.engine)
        scene.planned()
        scene.move_to(at("12:01:05"))

        written, _ = scene.race(partial(write, found=scene.look()), lambda session: session.execute(delete(Schedule)))

        assert (scene.rows(), scene.tick()) == ([], [])
        assert scene.slots() == [fired.slot for fired in written.fired]


def test_f56_type_that_a_release_does_not_know_costs_nothing_but_an_error(scene: Scene) -> None:
    """Ten schedules and ten jobs of it outlast its scheduler, worker and list; once it is back all of them fire."""
    with_b, without_b = build("report", "b"), build("report")
    names = [f"b{number}" for number in range(10)]
    ids = [scene.add(name, job_type="b") for name in names]
    scene.tick(with_b)
    assert len(scene.tick(with_b, moment=at("12:01:05"))) == 10
    rows, made = scene.rows(), [(job.id, job.status, job.attempts) for job in scene.jobs()]

    for moment in ("12:02:05", "12:03:05", "12:04:05"):
        assert scene.tick(without_b, moment=at(moment)) == []
    Worker(without_b, sessionmaker(scene.engine), listen=False).run_until_idle()
    marked = scene.rows()
    with scene.transaction() as session:
        if scene.engine.dialect.name == "postgresql":
            session.execute(text("SET TRANSACTION READ ONLY"))
        listed = [(each.is_known, each.last_error) for each in list_schedules(session, without_b)]
        pending = [(each.is_known, each.status) for each in find_jobs(session, without_b).jobs]

    assert listed == [(False, row["last_error"]) for row in marked]
    assert pending == [(False, "ready")] * 10
    assert all("'b' in registry 'shop'" in row["last_error"] for row in marked)
    assert [row | {"last_error": None} for row in marked] == rows
    assert scene.look(without_b).rows == []
    assert [(job.id, job.status, job.attempts) for job in scene.jobs()] == made
    assert fired_slots(scene.tick(with_b)) == [f"{name} 12:04" for name in names]
    assert [scene.error(schedule_id) for schedule_id in ids] == [None] * 10
    assert all(scene.slots(schedule_id) == [at("12:01"), at("12:04")] for schedule_id in ids)
    assert {row["slots_missed"] for row in scene.rows()} == {2}


def test_f56_type_that_another_process_serves_in_time_is_not_marked(scene: Scene) -> None:
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
