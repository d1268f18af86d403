"""Cron text where it is written, in every process, and over the hours that a zone skips."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from sqla_jobs import InvalidSchedule
from sqla_jobs.rules.cron import check_cron, next_slot, previous_slot, spread
from tests.architecture.sources import ROOT
from tests.operations.scheduling import HOUR, SECOND, Scene, Schedule, build, engine_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlalchemy import Engine

NEW_YEAR: Final = datetime(2026, 1, 1, tzinfo=UTC)

MOST_CALLS: Final = 50_000
"""Calls of functions that reading a text, or finding a slot, may take: hundredths of a second, whatever the machine."""


@contextmanager
def few_calls() -> Generator[None]:
    """Fail if the block calls more functions than that."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert calls <= MOST_CALLS


REFUSED = [
    *("0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 *", "60 * * * *", "* * 0 * *", "5-1 * * * *", "*/0 * * * *"),
    *("15 23 * * 1-5 *", "@reboot", "H * * * *", "R * * * *", "\uff10 2 * * *", "\uff10 \uff12 * * *", ""),
]

ACCEPTED = [
    *("* * * * * *", "@hourly", "0 0 L * *", "0 2 * jan-mar mon,FRI", "  0   2\t* * *  ", "0 0 29 2 *", "0 0 13 * 5"),
    *("*/7 1-5 * * sat-sun", "30 2 * * *", "0 12 * * 5#3"),
]


@pytest.mark.parametrize("cron", REFUSED, ids=ascii)
def test_f45_cron_text_that_is_wrong_is_refused_where_it_is_written(cron: str) -> None:
    """A row that is made or edited and a declaration raise with the text in the error, and soon."""
    schedule = Schedule(name="a", job_type="report", cron="0 2 * * *")
    writes: list[Any] = [
        lambda: Schedule(name="b", job_type="report", cron=cron),
        lambda: setattr(schedule, "cron", cron),
        lambda: build("report", declares={"c": cron}),
        lambda: next_slot(cron, "UTC", NEW_YEAR),
    ]

    for write in writes:
        with pytest.raises(InvalidSchedule, match="cron text") as caught, few_calls():
            write()
        assert repr(cron) in str(caught.value)
    assert schedule.cron == "0 2 * * *"


@pytest.mark.parametrize("cron", ACCEPTED, ids=ascii)
def test_f45_cron_text_that_is_accepted_has_slots(cron: str) -> None:
    """What is accepted is accepted everywhere, kept as it is, and used at no cost."""
    with few_calls():
        assert check_cron(cron) == Schedule(name="a", job_type="report", cron=cron).cron == cron
        build("report", declares={"b": cron})
    with few_calls():
        slot = next_slot(cron, "Europe/Zurich", NEW_YEAR)
    with few_calls():
        assert previous_slot(cron, "Europe/Zurich", slot) <= NEW_YEAR < slot


ZONES = ("UTC", "Europe/Zurich", "Australia/Lord_Howe")


def slots(crons: list[str]) -> list[list[str]]:
    """Give some slots of each text in each zone, and the offset of its jobs."""
    return [[f"{next_slot(cron, zone, NEW_YEAR)}" for zone in ZONES] + [f"{spread(cron, 'nightly')}"] for cron in crons]


def test_f45_processes_agree_on_slots() -> None:
    """Nothing of a process, such as its time zone and its seed of hashes, is in a slot."""
    program = (
        "import json, sys; from tests.faults.test_schedules_cron import slots; "
        "print(json.dumps(slots(json.load(sys.stdin))))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(ACCEPTED),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "45", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(ended.stdout) == slots(ACCEPTED)


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


GAPS: dict[str, tuple[str, str, list[str]]] = {
    "02:30 that does not exist": (
        *("30 2 * * *", "America/New_York"),
        ["2026-03-07T07:30", "2026-03-08T07:00", "2026-03-09T06:30"],
    ),
    "midnight that does not exist": (
        *("0 0 * * 0", "America/Santiago"),
        ["2026-08-30T04:00", "2026-09-06T04:00", "2026-09-13T03:00"],
    ),
    "gap of half an hour": (
        *("15 2 * * *", "Australia/Lord_Howe"),
        ["2026-10-02T15:45", "2026-10-03T15:30", "2026-10-04T15:15"],
    ),
    "nine stays nine": ("0 9 * * *", "America/New_York", ["2026-03-07T14:00", "2026-03-08T13:00", "2026-03-09T13:00"]),
}


@pytest.mark.parametrize("gap", GAPS)
def test_f47_slots_over_a_gap_fire_once_each(app_engine: Engine, gap: str) -> None:
    """On the day of the gap there is one job, at its end, then all is as ever; caught up later they are the same."""
    cron, zone, texts = GAPS[gap]
    slots = [datetime.fromisoformat(f"{each}:00+00:00") for each in texts]

    def planned() -> Scene:
        scene = Scene(app_engine)
        scene.move_to(slots[0] - HOUR)
        scene.planned(cron=cron, timezone=zone, catch_up="all")
        return scene

    scene, next_runs = planned(), list[datetime]()
    for slot in slots:
        assert scene.tick(moment=slot - SECOND) == []
        next_runs.append(scene.row()["next_run_at"])
        assert [fired.slot for fired in scene.tick(moment=slot)] == [slot]
    assert next_runs == scene.slots() == slots

    scene = planned()
    caught_up = scene.tick(moment=slots[-1] + SECOND)
    assert [fired.slot for fired in caught_up] == scene.slots() == slots
