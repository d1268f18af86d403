"""The scheduler of a worker, ticked by hand: broken rows, edits while it looks, and the first tick after a day."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Connection, func, insert, select

from sqla_jobs.runtime import scheduler as module
from sqla_jobs.runtime.scheduler import LOOKS_PER_TICK, SCHEDULES_PER_LOOK
from tests.runtime.calendars import NO_OFFSET, Calendar, Job, Schedule, listening, own_statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from tests.runtime.app import Ear

HOUR: Final = timedelta(hours=1)

LOOK: Final = "AS is_retired"
"""What only a scheduler's look says."""

WARNING: Final = 30

PER_LOOK: Final = 100
"""Schedules, where it is the number of looks that counts: with the 500 of real schedulers it takes long."""


@pytest.fixture
def app(engine: Engine) -> Iterator[Calendar]:
    app = Calendar(engine).create()
    yield app
    app.close()


def test_f44_broken_schedule_is_logged_once(app: Calendar, ear: Ear) -> None:
    """It is tried again and again, the others fire, and a line comes again only if it breaks anew."""
    app.declare("good")
    scheduler = app.scheduler()
    app.execute(
        "INSERT INTO schedule (name, job_type, cron, created_at) VALUES ('bad', 'report', 'soon', '2026-01-01')"
    )

    for _ in range(4):
        scheduler.tick()
        app.advance(HOUR)
    error = app.row("bad").last_error
    lines = ear.lines("'bad'", level=WARNING)
    for cron in ("@hourly", "soon"):
        app.execute(f"UPDATE schedule SET cron = '{cron}' WHERE name = 'bad'")
        scheduler.tick()

    assert len(lines) == 1
    assert "'soon'" in (error or "")
    assert len(ear.lines("'bad'", level=WARNING)) == 2
    assert [job.slot for job in app.made()] == [app.next_hour + HOUR * number for number in range(4)]


EDITS: Final[dict[str, list[tuple[str, str, bool, bool]]]] = {
    "UPDATE schedule SET cron = '@yearly'": [("@yearly", "UTC", True, False)],
    "UPDATE schedule SET timezone = 'Asia/Kathmandu'": [("@hourly", "Asia/Kathmandu", True, False)],
    "UPDATE schedule SET enabled = false": [("@hourly", "UTC", False, False)],
    "UPDATE schedule SET retired_at = created_at": [("@hourly", "UTC", True, True)],
    "DELETE FROM schedule": [],
}
"""By edit: what is left of the row, and whether it is enabled and retired."""


@pytest.mark.parametrize("edit", EDITS)
def test_f51_edit_between_look_and_write_counts(app: Calendar, edit: str) -> None:
    """The slot that the scheduler has seen due is not fired, and what the person wrote stays."""
    edits: list[str] = []

    def step_in(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if edits and ("'lock_timeout'" in statement or statement == "BEGIN IMMEDIATE"):
            app.execute(edits.pop())

    app.declare("hourly")
    with listening(app, step_in):
        scheduler = app.scheduler()
        scheduler.tick()
        app.advance(HOUR)
        edits.append(edit)
        for _ in range(3):
            scheduler.tick()

    with app.sessions() as session:
        rows = session.scalars(select(Schedule)).all()
    assert (edits, app.made()) == ([], [])
    assert [(row.cron, row.timezone, row.enabled, row.retired_at is not None) for row in rows] == EDITS[edit]
    assert {row.last_slot for row in rows} <= {None}


@pytest.mark.slow
def test_f53_first_tick_after_a_day_is_bounded(app: Calendar, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tick serves so many minutely schedules in 20 looks, each gets one job, and the other slots are counted."""
    assert (SCHEDULES_PER_LOOK, LOOKS_PER_TICK) == (500, 20)
    monkeypatch.setattr(module, "SCHEDULES_PER_LOOK", PER_LOOK)
    monkeypatch.setattr(module, "LONGEST_TICK", math.inf)  # the bound here is the number of looks
    first = app.next_hour - timedelta(days=1)
    row: dict[str, Any] = {
        "job_type": "report",
        "cron": "* * * * *",
        "planned_cron": "* * * * *",
        "planned_timezone": "UTC",
    }
    row |= {"planned_enabled": True, "next_run_at": first, "offset": NO_OFFSET, "created_at": first}
    with app.engine.begin() as connection:
        connection.execute(insert(Schedule), [row | {"name": f"schedule {number}"} for number in range(PER_LOOK * 20)])

    with own_statements(app) as sent:
        wait = app.scheduler().tick()

    looks = [statement for statement in sent if LOOK in statement]
    with app.sessions() as session:
        counts = session.execute(select(func.count(), func.count(Job.schedule_id.distinct())).select_from(Job)).one()
        rows = session.execute(select(Schedule.last_slot, Schedule.slots_missed).distinct()).all()
    assert (len(looks), wait) == (20, 0.0)
    assert tuple(counts) == (PER_LOOK * 20, PER_LOOK * 20)
    for last_slot, missed in rows:
        assert first + timedelta(minutes=missed) == last_slot
        assert last_slot is not None
        assert last_slot >= app.next_hour - timedelta(minutes=30)
