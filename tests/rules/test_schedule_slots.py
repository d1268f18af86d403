from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqla_jobs.errors import LONGEST_DELAY, InvalidOption, InvalidSchedule
from sqla_jobs.rules.cron import next_slot
from sqla_jobs.rules.schedules import (
    DEFAULT_LIMIT,
    LARGEST_LIMIT,
    Move,
    ScheduleRow,
    broken,
    check_part,
    decide,
    slot_key,
    slots_between,
    upcoming,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DAY, SECOND, INSTANT = timedelta(days=1), timedelta(seconds=1), timedelta(microseconds=1)
START = datetime(2026, 1, 1, tzinfo=UTC)
DAYS_COUNTED_AT_ONCE = 1000


def new_row(cron: str = "0 0 * * *", zone: str = "UTC", **parts: Any) -> ScheduleRow:
    """Give a row that nobody has planned yet."""
    usual: dict[str, Any] = {
        "id": 7,
        "name": "report",
        "job_type": "send",
        "payload": {},
        "queue": None,
        "offset": None,
        "enabled": True,
        "catch_up": "latest",
        "catch_up_limit": DEFAULT_LIMIT,
        "overlap": "allow",
        "is_edited": True,
        "has_unfinished": False,
        "next_run_at": None,
        "last_slot": None,
        "last_error": None,
    }
    return ScheduleRow(**usual | parts, cron=cron, timezone=zone, seen={})


@dataclass
class Table:
    """One schedule's row, and what has been written to it and for it.

    :ivar reached: the instant up to which slots are decided
    """

    row: ScheduleRow
    reached: datetime
    fired: list[datetime] = field(default_factory=list[datetime])
    missed: int = 0
    overlaps: int = 0

    @staticmethod
    def planned(row: ScheduleRow, now: datetime) -> Table:
        """Give the table after the tick that saw the new row."""
        table = Table(row, now)
        move = decide(row, now=now)
        assert (move.firings, move.missed, move.overlaps) == ((), 0, 0)
        table.write(move)
        return table

    def is_due(self, now: datetime) -> bool:
        return self.row.next_run_at is not None and self.row.next_run_at <= now

    def write(self, move: Move) -> None:
        """Write a move, and look at it as at an entry in a book: what it decides is just what lies between."""
        before, after = self.row.last_slot, move.last_slot
        assert before is None or (after is not None and after >= before)
        counted = len(move.firings) + move.missed + move.overlaps
        if counted:
            assert after is not None
            assert before is None or after > before
            between = slots_up_to(self.row, self.reached, after)
            assert counted == len(between)
            slots = [firing.slot for firing in move.firings]
            assert [slot for slot in between if slot in slots] == slots
            self.reached = after
            self.fired += slots
        self.missed += move.missed
        self.overlaps += move.overlaps
        planned: dict[str, Any] = {"next_run_at": move.next_run_at, "last_slot": after, "last_error": move.error}
        self.row = replace(self.row, is_edited=False, **planned)

    def tick(self, now: datetime, *, has_unfinished: bool = False, fails: bool = False) -> None:
        """Decide and write once, if the row is due; if the write *fails*, mark the row as one that can't be written."""
        if self.is_due(now):
            move = decide(replace(self.row, has_unfinished=has_unfinished), now=now)
            assert move.error is None
            self.write(broken(move, "a column of the app's", now=now) if fails else move)

    def serve(self, now: datetime, *, has_unfinished: bool = False) -> int:
        """Tick until nothing is due, and give how often."""
        ticks = 0
        while self.is_due(now):
            self.tick(now, has_unfinished=has_unfinished)
            ticks += 1
        return ticks


def slots_up_to(row: ScheduleRow, after: datetime, until: datetime) -> list[datetime]:
    """Give the slots in (*after*, *until*], one after the other."""
    found: list[datetime] = []
    slot = next_slot(row.cron, row.timezone, after)
    while slot <= until:
        found.append(slot)
        slot = next_slot(row.cron, row.timezone, slot)
    return found


@pytest.mark.parametrize(
    ("catch_up", "fired"), [("latest", 1), ("all", DEFAULT_LIMIT), ("skip", 0)], ids=["latest", "all", "skip"]
)
def test_long_absence_is_counted_in_parts(catch_up: str, fired: int) -> None:
    """One tick counts a thousand days at most and the next goes on from there, until the rest fires as always."""
    table = Table.planned(new_row(catch_up=catch_up), START)
    now = START + 2500 * DAY + DAY / 2

    steps: list[tuple[int, int]] = []
    while table.is_due(now):
        before = table.missed
        table.tick(now)
        steps.append((table.missed - before, len(table.fired)))

    missed = 2500 - fired
    assert steps == [
        (DAYS_COUNTED_AT_ONCE, 0),
        (DAYS_COUNTED_AT_ONCE, 0),
        (missed - 2 * DAYS_COUNTED_AT_ONCE, fired),
    ]
    assert table.fired == [START + day * DAY for day in range(2501 - fired, 2501)]
    assert table.row.next_run_at == START + 2501 * DAY


def test_part_of_an_absence_fires_nothing_and_stays_due() -> None:
    """A tick that hasn't counted to the end leaves the row due, with all that it counted behind it."""
    row = Table.planned(new_row("* * * * *"), START).row

    move = decide(row, now=START + 1500 * DAY)

    assert move.firings == ()
    assert move.last_slot is not None
    assert move.missed == (move.last_slot - START) // timedelta(minutes=1)
    assert move.next_run_at is not None
    assert move.last_slot < move.next_run_at <= START + 1500 * DAY


def test_absence_of_years_takes_few_ticks_however_many_slots_it_has() -> None:
    """Ten years of seconds are counted by days, in four ticks, and none of them twice."""
    row, now = Table.planned(new_row("* * * * * */1"), START).row, START + 3650 * DAY

    moves: list[Move] = []
    while row.next_run_at is not None and row.next_run_at <= now:
        moves.append(decide(row, now=now))
        row = replace(row, next_run_at=moves[-1].next_run_at, last_slot=moves[-1].last_slot)

    assert [len(move.firings) for move in moves] == [0, 0, 0, 1]
    assert sum(move.missed for move in moves) == 3650 * 86400 - 1


ZONES = (
    *("UTC", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"),
    *("Asia/Beirut", "Antarctica/Troll", "Europe/Dublin", "Africa/Casablanca"),
)
MINUTES = st.sampled_from(["0", "30", "7,31", "*/15", "*/20", "59", "*"])
DENSE = st.builds("{} {} * * *".format, MINUTES, st.sampled_from(["*", "*/2", "0-3", "1,2", "2"]))
SPARSE = st.sampled_from(
    ["0 2 * * *", "30 2 * * *", "0 0 * * *", "0 0 1 * *", "15 1 * * sun", "0 0 L * *", "30 1,2 * * *", "0 3 13 * 5#2"]
)
EVERY_SECOND = st.sampled_from(["* * * * * */20", "* 1-3 * * * 0,59"])


def absences(longest: timedelta) -> st.SearchStrategy[list[timedelta]]:
    """Give times between ticks, from none to *longest*, small ones among them."""
    brief = st.timedeltas(timedelta(0), timedelta(minutes=3))
    return st.lists(brief | st.timedeltas(timedelta(0), longest), min_size=1, max_size=6)


HISTORIES = st.one_of(
    st.tuples(DENSE, absences(DAY)),
    st.tuples(SPARSE, absences(900 * DAY)),
    st.tuples(SPARSE, st.lists(st.timedeltas(DAY, 2200 * DAY), min_size=1, max_size=2)),
    st.tuples(EVERY_SECOND, absences(timedelta(hours=1))),
)
ROWS = st.fixed_dictionaries(
    {
        "catch_up": st.sampled_from(["latest", "all", "skip"]),
        "catch_up_limit": st.sampled_from([1, 2, 10, DEFAULT_LIMIT]),
        "overlap": st.sampled_from(["allow", "skip"]),
        "offset": st.sampled_from([None, 0.0, 90.0]),
    }
)
STARTS = st.datetimes(datetime(2000, 1, 1), datetime(2036, 1, 1), timezones=st.just(UTC))


@given(
    history=HISTORIES, zone=st.sampled_from(ZONES), parts=ROWS, start=STARTS, draws=st.randoms(use_true_random=False)
)
def test_every_slot_is_decided_once(
    history: tuple[str, list[timedelta]], zone: str, parts: dict[str, Any], start: datetime, draws: Any
) -> None:
    """Whatever the text, the zone and the absences: each slot fires, is missed or overlaps, once, and in order."""
    cron, steps = history
    table, now = Table.planned(new_row(cron, zone, **parts), start), start

    for step in steps:
        now += step
        table.serve(now, has_unfinished=draws.random() < 0.3)

    slots = slots_up_to(table.row, start, now)
    assert len(table.fired) + table.missed + table.overlaps == len(slots)
    assert table.fired == sorted(set(table.fired))
    assert set(table.fired) <= set(slots)
    assert table.row.next_run_at == next_slot(cron, zone, now)
    assert table.overlaps == 0 or parts["overlap"] == "skip"


@settings(max_examples=50)  # the same history without failing writes has twice as many, above
@given(history=HISTORIES, parts=ROWS, start=STARTS, draws=st.randoms(use_true_random=False))
def test_every_slot_is_decided_once_though_writes_fail(
    history: tuple[str, list[timedelta]], parts: dict[str, Any], start: datetime, draws: Any
) -> None:
    """A row that at times can't be written loses no slot and counts none twice."""
    cron, steps = history
    table, now = Table.planned(new_row(cron, **parts), start), start

    for step in steps:
        now += step
        table.tick(now, fails=draws.random() < 0.5)
    now += timedelta(minutes=5)
    table.serve(now)

    assert len(table.fired) + table.missed + table.overlaps == len(slots_up_to(table.row, start, now))
    assert table.fired == sorted(set(table.fired))


@settings(max_examples=50)
@given(history=HISTORIES, parts=ROWS, start=STARTS, draws=st.randoms(use_true_random=False))
def test_last_slot_never_moves_back_whatever_next_run_is(
    history: tuple[str, list[timedelta]], parts: dict[str, Any], start: datetime, draws: Any
) -> None:
    """Moving `next_run_at` back before each tick, by SQL, fires no slot twice."""
    cron, steps = history
    table, now = Table.planned(new_row(cron, **parts), start), start
    table.serve(now := next_slot(cron, "UTC", now))

    for step in steps:
        now += step
        assert table.row.next_run_at is not None
        table.row = replace(table.row, next_run_at=table.row.next_run_at - draws.random() * 3 * DAY)
        table.serve(now)

    assert table.fired == sorted(set(table.fired))
    assert len(table.fired) + table.missed + table.overlaps == len(slots_up_to(table.row, start, now))


TAKEN: dict[str, list[Any]] = {
    "name": ["report", "ü" * 255],
    "job_type": ["send"],
    "queue": [None, "mail"],
    "cron": ["0 2 * * *", "@daily", "*/5 * * * * 30"],
    "timezone": ["UTC", "Europe/Zurich"],
    "offset": [None, timedelta(0), LONGEST_DELAY],
    "catch_up": ["latest", "all", "skip"],
    "catch_up_limit": [1, LARGEST_LIMIT],
    "overlap": ["allow", "skip"],
}

REFUSED: dict[str, list[Any]] = {
    "name": [None, "", 5, "a\x00", "\ud800", "x" * 256],
    "job_type": [None, "", 5, "x" * 256],
    "queue": ["", 5, "x" * 256],
    "cron": [None, "", 5, "not a cron", "0 0 30 2 *", "H * * * *"],
    "timezone": [None, "", 5, "Mars/Phobos", "UTC+3", "localtime", "../UTC"],
    "offset": [0, 5.0, "5", -INSTANT, LONGEST_DELAY + INSTANT],
    "catch_up": [None, "", "Latest", "none", 5, ["all"]],
    "catch_up_limit": [None, 0, -1, LARGEST_LIMIT + 1, 5.0, "5", True],
    "overlap": [None, "", "no", True, ["skip"]],
}


@pytest.mark.parametrize("part", TAKEN)
def test_part_of_a_schedule_is_given_back_as_it_is(part: str) -> None:
    """What a scheduler can go by is taken as it stands."""
    assert [check_part(part, value) for value in TAKEN[part]] == TAKEN[part]


@pytest.mark.parametrize(("part", "value"), [(part, value) for part, values in REFUSED.items() for value in values])
def test_part_that_no_scheduler_can_go_by_is_refused(part: str, value: Any) -> None:
    """The error is one of an option, names the part, and is an `InvalidSchedule` for what only schedules have."""
    kind = InvalidSchedule if part in {"cron", "timezone", "catch_up", "overlap"} else InvalidOption
    says = {"cron": "cron text", "timezone": "zone"}.get(part, part)

    with pytest.raises(kind, match=says):
        check_part(part, value)


@pytest.mark.parametrize(
    ("slot", "key"),
    [
        (datetime(2026, 11, 29, 21, 50, tzinfo=UTC), "schedule:7:2026-11-29T21:50:00Z"),
        (datetime(2026, 11, 30, 3, 35, 5, tzinfo=timezone(timedelta(hours=5.75))), "schedule:7:2026-11-29T21:50:05Z"),
        (datetime(1999, 1, 2, 3, 4, 5, tzinfo=UTC), "schedule:7:1999-01-02T03:04:05Z"),
    ],
)
def test_key_of_a_slot_is_its_instant_in_utc(slot: datetime, key: str) -> None:
    """Whatever zone a slot is given in, its key is one: `backfill` and every scheduler write the same."""
    assert slot_key(7, slot) == key


def test_upcoming_slots_are_those_that_come_one_after_the_other() -> None:
    """A preview follows the zone over its changes, and begins after the instant that is given."""
    found = upcoming("0 0,12 * * *", "Europe/Zurich", datetime(2026, 3, 28, 11, tzinfo=UTC), 4)

    assert [f"{slot:%d %H}" for slot in found] == ["28 23", "29 10", "29 22", "30 10"]
    assert upcoming("* * * * *", "UTC", START, 0) == []


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        (START, START + 3 * DAY, 3),
        (START, START + 3 * DAY + INSTANT, 4),
        (START + INSTANT, START + 3 * DAY, 2),
        (START, START, 0),
        (START + DAY, START, 0),
        (START, START + INSTANT, 1),
    ],
)
def test_range_of_slots_has_its_start_and_not_its_end(start: datetime, end: datetime, count: int) -> None:
    """Ranges that follow on one another have each slot once."""
    found = slots_between("0 0 * * *", "UTC", start=start, end=end, limit=10)

    assert len(found) == count
    assert all(start <= slot < end for slot in found)


def test_range_of_too_many_slots_is_refused() -> None:
    """As many as the limit are given; one more is an error that says what to do, and is found without going on."""
    between: Callable[..., list[datetime]] = slots_between

    assert len(between("0 0 * * *", "UTC", start=START, end=START + 10 * DAY, limit=10)) == 10
    for end in (START + 10 * DAY + SECOND, START + 2_000_000 * DAY):
        with pytest.raises(InvalidSchedule, match="more than 10 slots .* take a shorter range, several times"):
            between("0 0 * * *", "UTC", start=START, end=end, limit=10)
