from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sqla_jobs.errors import LONGEST_DELAY, InvalidOption
from sqla_jobs.rules.cron import spread
from sqla_jobs.rules.schedules import (
    BROKEN_RETRY,
    DEFAULT_LIMIT,
    LARGEST_LIMIT,
    ON_TIME,
    Declaration,
    Move,
    ScheduleRow,
    broken,
    decide,
    offset_of,
    unserved,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR, MINUTE, DAY = timedelta(hours=1), timedelta(minutes=1), timedelta(days=1)
INSTANT = timedelta(microseconds=1)
MIDNIGHT = datetime(2026, 11, 29, tzinfo=UTC)


def at(hour: float) -> datetime:
    """Give an hour of the day on which the examples are."""
    return MIDNIGHT + hour * HOUR


HOURLY = ScheduleRow(
    id=7,
    name="report",
    job_type="send",
    payload={},
    queue=None,
    cron="0 * * * *",
    timezone="UTC",
    offset=None,
    enabled=True,
    catch_up="latest",
    catch_up_limit=DEFAULT_LIMIT,
    overlap="allow",
    is_edited=False,
    has_unfinished=False,
    next_run_at=at(11),
    last_slot=at(10),
    last_error=None,
    seen={},
)
"""Every hour; the slot of 10:00 has been decided, that of 11:00 is next."""

NEW = replace(HOURLY, is_edited=True, next_run_at=None, last_slot=None)


def written(move: Move) -> ScheduleRow:
    """Give the row as it is when *move* has been written."""
    if not move.is_planned:
        return replace(move.row, last_slot=move.last_slot, last_error=move.error)
    changed = replace(move.row, next_run_at=move.next_run_at, last_slot=move.last_slot, last_error=move.error)
    return replace(changed, is_edited=False)


def changed(row: ScheduleRow, **parts: Any) -> ScheduleRow:
    return replace(row, **parts)


def slots_of(move: Move) -> list[datetime]:
    return [firing.slot for firing in move.firings]


def hours(*range_of: int) -> list[datetime]:
    return [at(hour) for hour in range(*range_of)]


def is_idle(move: Move) -> bool:
    return (move.firings, move.missed, move.overlaps) == ((), 0, 0)


def is_a_retry(move: Move, now: datetime) -> bool:
    """Tell whether the row is tried again in a minute, give or take a second."""
    return move.next_run_at is not None and abs(move.next_run_at - now - BROKEN_RETRY) <= timedelta(seconds=1)


@pytest.mark.parametrize(
    "row",
    [
        NEW,
        replace(NEW, is_edited=False),
        replace(HOURLY, is_edited=True),
        replace(HOURLY, is_edited=True, next_run_at=at(20)),
        replace(HOURLY, is_edited=True, last_error="was broken"),
    ],
    ids=["new", "without a plan", "edited when due", "edited before it is due", "repaired"],
)
@pytest.mark.parametrize(("now", "then"), [(at(12.5), at(13)), (at(13), at(14)), (at(13) - INSTANT, at(13))])
def test_row_without_a_plan_is_planned_from_now_and_fires_nothing(
    row: ScheduleRow, now: datetime, then: datetime
) -> None:
    """A new row, or one that people have edited, waits for its first slot after now, whatever has passed."""
    move = decide(row, now=now)

    assert is_idle(move)
    assert (move.next_run_at, move.error, move.is_planned) == (then, None, True)
    assert row.last_slot is None or (move.last_slot is not None and move.last_slot >= row.last_slot)


@pytest.mark.parametrize("parts", [{}, {"cron": "nonsense"}, {"is_edited": True}, {"last_error": "was broken"}])
def test_row_that_is_not_enabled_has_no_plan_and_no_error(parts: dict[str, Any]) -> None:
    """A paused schedule is left in peace: nothing is due, and nobody is told of what it doesn't do."""
    move = decide(replace(HOURLY, enabled=False, **parts), now=at(12))

    assert is_idle(move)
    assert (move.next_run_at, move.last_slot, move.error) == (None, at(10), None)


@pytest.mark.parametrize("now", [at(11), at(11) + INSTANT, at(12) - INSTANT])
def test_due_slot_is_fired_once_and_the_next_one_is_planned(now: datetime) -> None:
    """From its first instant on a slot is due; once it is written, nothing is due until the next."""
    move = decide(HOURLY, now=now)

    assert (slots_of(move), move.missed, move.overlaps, move.error) == ([at(11)], 0, 0, None)
    assert (move.last_slot, move.next_run_at) == (at(11), at(12))
    assert is_idle(decide(written(move), now=now))


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(None, spread(HOURLY.cron, HOURLY.name)), (0, 0 * HOUR), (0.25, timedelta(milliseconds=250)), (7200, 2 * HOUR)],
)
def test_offset_shifts_the_job_and_not_the_slot(offset: float | None, expected: timedelta) -> None:
    """The job is due the offset after its slot; NULL spreads by the name, the same way every time."""
    move = decide(replace(HOURLY, offset=offset, catch_up="all"), now=at(12.5))

    assert [(each.slot, each.run_at) for each in move.firings] == [(at(hour), at(hour) + expected) for hour in (11, 12)]
    assert move.next_run_at == at(13)
    assert offset_of(HOURLY.cron, HOURLY.name, offset) == expected


def test_slots_are_those_of_the_rows_zone() -> None:
    """The hour that New York skips in March is a slot at the first instant after it."""
    row = replace(HOURLY, cron="30 2 * * *", timezone="America/New_York")
    gap = datetime(2026, 3, 8, 7, tzinfo=UTC)

    move = decide(replace(row, next_run_at=gap, last_slot=gap - DAY), now=gap)

    assert slots_of(move) == [gap]
    assert move.next_run_at == datetime(2026, 3, 9, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("catch_up", "limit", "fired", "missed"),
    [
        ("latest", DEFAULT_LIMIT, [15], 4),
        ("all", DEFAULT_LIMIT, [11, 12, 13, 14, 15], 0),
        ("all", 5, [11, 12, 13, 14, 15], 0),
        ("all", 4, [12, 13, 14, 15], 1),
        ("all", 1, [15], 4),
        ("skip", DEFAULT_LIMIT, [], 5),
    ],
)
def test_slots_of_an_absence_are_caught_up_as_the_row_says(
    catch_up: str, limit: int, fired: list[int], missed: int
) -> None:
    """Each of five due slots fires or counts as missed: the newest, the newest few, or none."""
    move = decide(replace(HOURLY, catch_up=catch_up, catch_up_limit=limit), now=at(15) + MINUTE / 2)

    assert (slots_of(move), move.missed, move.overlaps) == ([at(hour) for hour in fired], missed, 0)
    assert (move.last_slot, move.next_run_at) == (at(15), at(16))


@pytest.mark.parametrize("late", [0 * MINUTE, ON_TIME, ON_TIME + INSTANT, 59 * MINUTE])
def test_lone_slot_is_skipped_only_when_it_is_noticed_late(late: timedelta) -> None:
    """With `skip`, a slot that comes while a scheduler is there fires; others fire theirs at any time."""
    skipping = decide(replace(HOURLY, catch_up="skip"), now=at(11) + late)
    others = [decide(replace(HOURLY, catch_up=catch_up), now=at(11) + late) for catch_up in ("latest", "all")]

    is_on_time = late <= ON_TIME
    assert (slots_of(skipping), skipping.missed) == (([at(11)], 0) if is_on_time else ([], 1))
    assert skipping.last_slot == at(11)
    assert [slots_of(move) for move in others] == [[at(11)], [at(11)]]


def test_two_slots_within_the_time_are_both_skipped() -> None:
    """With `skip`, more than one due slot says that no scheduler was there, however short its absence."""
    row = replace(HOURLY, cron="* * * * * */10", catch_up="skip")

    move = decide(row, now=at(11) + timedelta(seconds=10))

    assert (move.firings, move.missed) == ((), 2)


@pytest.mark.parametrize(
    ("catch_up", "has_unfinished", "fired", "missed", "overlaps"),
    [
        ("latest", False, [13], 2, 0),
        ("latest", True, [], 2, 1),
        ("all", False, [11], 0, 2),
        ("all", True, [], 0, 3),
        ("skip", False, [], 3, 0),
        ("skip", True, [], 3, 0),
    ],
)
def test_overlapping_slots_get_no_job_and_are_counted(
    catch_up: str, has_unfinished: bool, fired: list[int], missed: int, overlaps: int
) -> None:
    """With `overlap='skip'`, one job at a time: of several due slots the oldest fires, if no earlier job is there."""
    row = replace(HOURLY, overlap="skip", catch_up=catch_up, has_unfinished=has_unfinished)

    move = decide(row, now=at(13))

    assert (slots_of(move), move.missed, move.overlaps) == ([at(hour) for hour in fired], missed, overlaps)
    assert (move.last_slot, move.next_run_at) == (at(13), at(14))


def test_unfinished_job_is_no_matter_where_overlap_is_allowed() -> None:
    """With `overlap='allow'` a slot fires whatever became of the one before."""
    assert slots_of(decide(replace(HOURLY, has_unfinished=True), now=at(11))) == [at(11)]


@pytest.mark.parametrize("moved_to", [at(1), at(9), at(10), at(10.2), MIDNIGHT - 400 * DAY])
def test_next_run_moved_back_fires_no_slot_twice(moved_to: datetime) -> None:
    """Slots up to `last_slot` are over, whatever plain SQL does to `next_run_at`; later ones fire."""
    row = replace(HOURLY, catch_up="all", next_run_at=moved_to)

    idle, firing = decide(row, now=at(10.5)), decide(row, now=at(12.5))

    assert is_idle(idle)
    assert (idle.last_slot, idle.next_run_at) == (at(10), at(11))
    assert (slots_of(firing), firing.last_slot) == ([at(11), at(12)], at(12))


@pytest.mark.parametrize("moved_to", [at(14), at(13.5), at(13) + INSTANT])
def test_next_run_moved_forward_passes_over_slots(moved_to: datetime) -> None:
    """Who moves `next_run_at` on by SQL says which slots are not wanted: they are not missed."""
    move = decide(replace(HOURLY, catch_up="all", next_run_at=moved_to), now=at(15))

    assert (slots_of(move), move.missed) == (hours(14, 16), 0)


def test_row_that_never_fired_goes_by_its_next_run() -> None:
    """Without a `last_slot`, the slots from `next_run_at` on are due, that instant included."""
    move = decide(replace(HOURLY, last_slot=None, next_run_at=at(9), catch_up="all"), now=at(11))

    assert slots_of(move) == hours(9, 12)


def test_last_slot_stays_when_the_clock_has_gone_back() -> None:
    """A slot that was fired before the clock went back is not fired again: the next is the one after it."""
    move = decide(replace(HOURLY, last_slot=at(15), next_run_at=at(11)), now=at(12.5))

    assert is_idle(move)
    assert (move.last_slot, move.next_run_at) == (at(15), at(16))


BROKEN: list[tuple[str, Any, str]] = [
    ("cron", "not a cron", "'not a cron'"),
    ("cron", "", "it is empty"),
    ("cron", "0 0 30 2 *", "never comes"),
    ("cron", b"0 2 * * *", "is a bytes"),
    ("timezone", "Mars/Phobos", "Mars/Phobos"),
    ("timezone", "UTC+3", "UTC[+]3"),
    ("timezone", "", "zone"),
    ("catch_up", "never", "catch_up is 'never': write one of 'latest', 'all', 'skip'"),
    ("catch_up_limit", 0, "catch_up_limit is from 1"),
    ("catch_up_limit", LARGEST_LIMIT + 1, "catch_up_limit is from 1 to 10000"),
    ("catch_up_limit", "many", "catch_up_limit is an int"),
    ("overlap", "maybe", "overlap is 'maybe'"),
    ("name", "", "name is empty"),
    ("offset", -0.001, "the offset of schedule 'report' is -0.001 seconds: from 0"),
    ("offset", LONGEST_DELAY.total_seconds() + 1, "the offset of schedule 'report'"),
    ("offset", float("nan"), "is nan seconds"),
    ("offset", float("inf"), "is inf seconds"),
    ("offset", "soon", "the offset of schedule 'report'"),
    *(("payload", payload, "the payload of schedule 'report'") for payload in (list[Any](), None, "{}", 5, True)),
]


@pytest.mark.parametrize(("part", "value", "says"), BROKEN)
def test_row_that_plain_sql_broke_is_told_and_tried_again(part: str, value: Any, says: str) -> None:
    """What can't be gone by fires nothing, is no exception, says what is wrong, and is looked at again in a minute."""
    row = changed(replace(HOURLY, catch_up="all"), **{part: value})

    move = decide(row, now=at(12.5))

    assert is_idle(move)
    assert is_a_retry(move, at(12.5))
    assert move.last_slot is not None
    assert at(10) <= move.last_slot < at(11)
    with pytest.raises(InvalidOption, match=says):
        raise InvalidOption(move.error)


def test_longest_offset_is_taken() -> None:
    """An offset is from nothing to ten years, both included."""
    move = decide(replace(HOURLY, offset=LONGEST_DELAY.total_seconds()), now=at(11))

    assert [each.run_at for each in move.firings] == [at(11) + LONGEST_DELAY]


@pytest.mark.parametrize("when", [datetime.min.replace(tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)])
@pytest.mark.parametrize("last_slot", [None, at(10)])
def test_time_of_long_ago_is_no_exception(when: datetime, last_slot: datetime | None) -> None:
    """PostgreSQL and SQLite hold years that no schedule had: such a row is marked or served, and stops no other."""
    row = replace(HOURLY, next_run_at=when, last_slot=last_slot)

    for _ in range(25):
        if row.next_run_at is not None and row.next_run_at <= at(11):
            row = written(decide(row, now=at(11)))

    assert row.next_run_at is not None
    assert at(11) < row.next_run_at <= at(12)


@pytest.mark.parametrize("tries", [[11], [11, 11.02, 11.04], [11.5, 12, 13, 14]])
def test_row_in_error_catches_up_from_its_last_slot(tries: list[float]) -> None:
    """However often a row in error has been tried again, its slots are all there still once it is repaired."""
    row = replace(HOURLY, catch_up="all", payload=[])

    for hour in tries:
        row = written(decide(row, now=at(hour)))
    move = decide(replace(row, payload={}), now=at(14.5))

    assert row.last_error is not None
    assert (slots_of(move), move.missed, move.error) == (hours(11, 15), 0, None)
    assert (move.last_slot, move.next_run_at) == (at(14), at(15))


def test_slots_of_a_row_that_broke_before_it_ever_fired_are_caught_up() -> None:
    """A payload that plain SQL broke, and repaired hours later, costs no slot: the row was planned when it broke."""
    planned = written(decide(replace(NEW, catch_up="all"), now=at(10.5)))
    in_error = written(decide(replace(planned, payload=[]), now=at(11)))

    move = decide(replace(in_error, payload={}), now=at(14.5))

    assert (slots_of(move), move.missed) == (hours(11, 15), 0)


BREAKS: dict[str, Callable[[ScheduleRow], Move]] = {
    "payload": lambda row: decide(replace(row, payload=[]), now=at(15)),
    "type": lambda row: unserved(row, "no handler"),
    "write": lambda row: broken(decide(row, now=at(15)), "a column of the app's", now=at(15)),
}


@pytest.mark.parametrize("broke", BREAKS.values(), ids=BREAKS)
def test_slots_of_a_pause_stay_passed_over_when_the_row_breaks_later(
    broke: Callable[[ScheduleRow], Move],
) -> None:
    """A row that was paused over some slots, and resumed, then breaks: after the repair it counts from the resume."""
    resumed = written(decide(replace(HOURLY, is_edited=True, catch_up="all"), now=at(14.5)))
    assert resumed.next_run_at == at(15)

    move = decide(replace(written(broke(resumed)), payload={}), now=at(16.5))

    assert (slots_of(move), move.missed) == (hours(15, 17), 0)


def test_edit_that_is_broken_at_first_counts_from_the_edit() -> None:
    """Cron text and a wrong `overlap` in one edit: the slots from before it are passed over, those after it fire."""
    edited = replace(HOURLY, cron="30 * * * *", is_edited=True, catch_up="all", overlap="maybe")

    in_error = written(decide(edited, now=at(14)))
    move = decide(replace(in_error, overlap="allow"), now=at(15.6))

    assert in_error.last_error is not None
    assert (slots_of(move), move.missed) == ([at(14.5), at(15.5)], 0)


def test_unserved_row_keeps_its_plan() -> None:
    """Of a row whose type nobody here knows only the error is written: another's scheduler may know better."""
    move = unserved(HOURLY, "no handler named 'send'")

    assert is_idle(move)
    assert (move.error, move.is_planned) == ("no handler named 'send'", False)
    assert slots_of(decide(written(move), now=at(11.5))) == [at(11)]


def test_slots_of_a_move_that_cannot_be_written_are_tried_again() -> None:
    """None of the slots that would have fired is decided, and what was missed before them stays counted."""
    move = decide(replace(HOURLY, catch_up="all", catch_up_limit=2), now=at(15.5))

    failed = broken(move, "a column of the app's", now=at(15.5))
    again = decide(written(failed), now=at(16.5))

    assert (slots_of(move), move.missed) == ([at(14), at(15)], 3)
    assert (failed.firings, failed.error) == ((), "a column of the app's")
    assert failed.last_slot == at(13)
    assert is_a_retry(failed, at(15.5))
    assert (slots_of(again), failed.missed + again.missed) == ([at(15), at(16)], 4)


def test_move_without_jobs_that_cannot_be_written_decides_nothing() -> None:
    """Where nothing was to fire, the slots that were to be counted are counted at the next try."""
    failed = broken(decide(replace(HOURLY, catch_up="skip"), now=at(13.5)), "a trigger of the app's", now=at(13.5))

    assert failed.last_slot is not None
    assert failed.last_slot < at(11)
    assert failed.missed == 0
    assert decide(written(failed), now=at(13.6)).missed == 3


def test_declaration_is_checked_where_it_is_made() -> None:
    """A part that no scheduler could go by is refused in the code that declares it, and nothing changes it later."""
    parts: dict[str, Any] = {
        "name": "report",
        "job_type": "send",
        "payload": {},
        "queue": None,
        "cron": "0 2 * * *",
        "timezone": "UTC",
        "offset": None,
        "catch_up": "latest",
        "catch_up_limit": 100,
        "overlap": "allow",
    }

    declaration = Declaration(**parts)

    with pytest.raises(FrozenInstanceError):
        declaration.cron = "* * * * *"  # type: ignore[misc]  # that it is frozen is what we test
    wrong: dict[str, Any] = {"name": "", "cron": "x", "timezone": "x", "offset": 5, "catch_up": "x", "overlap": "x"}
    for name, value in wrong.items():
        with pytest.raises(InvalidOption, match="cron text|zone" if name in {"cron", "timezone"} else name):
            Declaration(**(parts | {name: value}))
