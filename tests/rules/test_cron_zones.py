from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqla_jobs.errors import InvalidSchedule
from sqla_jobs.rules.cron import check_zone, count_slots, next_slot, previous_slot
from tests.rules.oracle import ZONES, Transition, slots, transitions

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)

TEXTS = (
    *("0 0 * * *", "30 2 * * *", "0 * * * *", "*/5 * * * *", "0,30 0-3 * * *", "*/7 */2 * * *", "30 1 * * *"),
    *("15 23 * * *", "45 0-23 * * *", "59 23,0,1 * * *", "0 0 1,15 * 0", "10 3 * * 0,6", "0 12 */2 * 1-5"),
    *("20 0 * 3,4,9-11 *", "* 1 * * *", "* * * * *"),
)
RARE = ("30 1 29 2 *", "0 0 L * *", "0 2 * * 0#1", "15 2 * * L0", "0 0 31 12 *", "*/20 1 * * * 0,30", "* 2 * * * */9")

every_transition = st.sampled_from([transition for zone in ZONES for transition in transitions(zone)])
near = st.timedeltas(-49 * HOUR, 49 * HOUR)


def following(cron: str, zone: str, after: datetime, count: int) -> list[datetime]:
    found = [next_slot(cron, zone, after)]
    while len(found) < count:
        found.append(next_slot(cron, zone, found[-1]))
    return found


def preceding(cron: str, zone: str, before: datetime, count: int) -> list[datetime]:
    found = [previous_slot(cron, zone, before)]
    while len(found) < count:
        found.append(previous_slot(cron, zone, found[-1]))
    return found


def z(*texts: str) -> list[datetime]:
    return [datetime.fromisoformat(f"{text}:00+00:00") for text in texts]


CASES = [
    pytest.param(
        "30 2 * * *", "America/New_York", z("2026-03-07T07:30", "2026-03-08T07:00", "2026-03-09T06:30"), id="gap"
    ),
    pytest.param(
        "30 * * * *", "America/New_York", z("2026-03-08T06:30", "2026-03-08T07:00", "2026-03-08T07:30"), id="gap-hourly"
    ),
    pytest.param(
        "0 * * * *", "America/New_York", z("2026-03-08T06:00", "2026-03-08T07:00", "2026-03-08T08:00"), id="gap-end"
    ),
    pytest.param(
        "0 0 * * 0",
        "America/Santiago",
        z("2026-08-30T04:00", "2026-09-06T04:00", "2026-09-13T03:00"),
        id="gap-at-midnight",
    ),
    pytest.param(
        "15 2 * * *",
        "Australia/Lord_Howe",
        z("2026-10-02T15:45", "2026-10-03T15:30", "2026-10-04T15:15"),
        id="gap-of-half-an-hour",
    ),
    pytest.param("0 9 * * *", "America/New_York", z("2026-03-07T14:00", "2026-03-08T13:00"), id="nine-stays-nine"),
    pytest.param(
        "30 1 * * *", "America/New_York", z("2026-10-31T05:30", "2026-11-01T05:30", "2026-11-02T06:30"), id="fold"
    ),
    pytest.param(
        "30 1,2 * * *",
        "America/New_York",
        z("2026-11-01T05:30", "2026-11-01T07:30", "2026-11-02T06:30"),
        id="fold-list",
    ),
    pytest.param(
        "*/30 1 * * *",
        "America/New_York",
        z("2026-11-01T05:00", "2026-11-01T05:30", "2026-11-02T06:00"),
        id="fold-minutes",
    ),
    pytest.param(
        "30 * * * *",
        "America/New_York",
        z("2026-11-01T04:30", "2026-11-01T05:30", "2026-11-01T06:30", "2026-11-01T07:30"),
        id="fold-hourly",
    ),
    pytest.param(
        "30 1-23/2 * * *",
        "America/New_York",
        z("2026-11-01T05:30", "2026-11-01T06:30", "2026-11-01T08:30"),
        id="fold-step",
    ),
    pytest.param(
        "30 0-23 * * *",
        "America/New_York",
        z("2026-11-01T05:30", "2026-11-01T06:30", "2026-11-01T07:30"),
        id="fold-all",
    ),
    pytest.param(
        "0 12 * * *", "Pacific/Apia", z("2011-12-29T22:00", "2011-12-30T10:00", "2011-12-30T22:00"), id="lost-day"
    ),
    pytest.param(
        "0 0 30 12 *", "Pacific/Apia", z("2010-12-30T10:00", "2011-12-30T10:00", "2012-12-29T10:00"), id="lost-date"
    ),
    pytest.param(
        "15 0 * * *", "Africa/Cairo", z("2026-04-22T22:15", "2026-04-23T22:00", "2026-04-24T21:15"), id="cairo"
    ),
    pytest.param(
        "0 0 * * *", "Asia/Beirut", z("2026-03-27T22:00", "2026-03-28T22:00", "2026-03-29T21:00"), id="beirut"
    ),
    pytest.param(
        "30 0 * * *", "America/Havana", z("2026-03-07T05:30", "2026-03-08T05:00", "2026-03-09T04:30"), id="havana"
    ),
    pytest.param(
        "30 0 * * *", "America/Havana", z("2026-10-31T04:30", "2026-11-01T04:30", "2026-11-02T05:30"), id="havana-fold"
    ),
    pytest.param(
        "30 23 * * *", "Asia/Beirut", z("2026-10-23T20:30", "2026-10-24T20:30", "2026-10-25T21:30"), id="beirut-fold"
    ),
    pytest.param("30 5 * * *", "Asia/Kathmandu", z("2026-01-01T23:45", "2026-01-02T23:45"), id="kathmandu"),
]


@pytest.mark.parametrize(("cron", "zone", "slots"), CASES)
def test_slots_are_the_written_ones_around_a_shift(cron: str, zone: str, slots: list[datetime]) -> None:
    """Stepped either way or counted, a gap is one slot at its end; a fold repeats wildcard and stepped hours only."""
    forwards = following(cron, zone, slots[0] - SECOND, len(slots))
    backwards = preceding(cron, zone, slots[-1] + SECOND, len(slots))

    assert forwards == slots
    assert backwards == slots[::-1]
    assert count_slots(cron, zone, after=slots[0], until=slots[-1]) == (len(slots) - 1, slots[-1])


def test_slot_is_strict_to_the_microsecond_at_the_end_of_a_gap() -> None:
    """A microsecond before the slot it is the next, a microsecond after it is the previous, and never at itself."""
    (slot,), tick = z("2026-03-08T07:00"), timedelta(microseconds=1)
    cron, zone = "30 2 * * *", "America/New_York"

    assert next_slot(cron, zone, slot - tick) == slot
    assert next_slot(cron, zone, slot) > slot
    assert previous_slot(cron, zone, slot + tick) == slot
    assert previous_slot(cron, zone, slot) < slot - 20 * HOUR


def test_gap_of_seconds_is_skipped_at_once_when_going_back() -> None:
    """Every second of the skipped hour is the one slot at its end, and the one before it is the last second of old."""
    (end,) = z("2026-03-08T07:00")

    assert previous_slot("* * * * * *", "America/New_York", end) == end - SECOND
    assert next_slot("* * * * * *", "America/New_York", end - SECOND) == end


@pytest.mark.parametrize("zone", ZONES)
def test_next_previous_and_count_agree_around_every_transition(zone: str) -> None:
    """At each shift of each zone the slots rise, going back finds them again, and counting gives their number."""
    for number, transition in enumerate(transitions(zone)):
        cron = (*TEXTS, *RARE)[number % (len(TEXTS) + len(RARE))]
        start = transition.at - 3 * HOUR - timedelta(microseconds=number % 2)

        found = following(cron, zone, start, 9)

        assert all(earlier < later for earlier, later in zip([start, *found], found, strict=False))
        assert preceding(cron, zone, found[-1], 8) == found[-2::-1]
        assert previous_slot(cron, zone, found[0]) <= start
        assert count_slots(cron, zone, after=start, until=found[-1]) == (9, found[-1])


@settings(max_examples=150, deadline=None)
@given(transition=every_transition, cron=st.sampled_from(TEXTS), before=near, span=st.timedeltas(HOUR, 30 * HOUR))
def test_slots_are_those_of_the_definition_when_every_minute_is_looked_at(
    transition: Transition, cron: str, before: timedelta, span: timedelta
) -> None:
    """All minutes of UTC, matched by hand, give the same slots as stepping forwards, backwards, and counting."""
    start = (transition.at + before).replace(second=0, microsecond=0)
    end = (start + span).replace(second=0, microsecond=0)
    zone = transition.zone

    expected = slots(cron, transition, start, end)

    after = following(cron, zone, start, len(expected) + 1)
    assert [slot for slot in after if slot < end] == expected
    assert after[-1] >= end
    assert preceding(cron, zone, end, len(expected) + 1)[:-1] == expected[::-1]
    assert count_slots(cron, zone, after=start, until=end - SECOND)[0] == len(expected)


@settings(max_examples=200, deadline=None)
@given(
    transition=every_transition,
    cron=st.sampled_from((*TEXTS, *RARE)),
    before=near,
    more=st.timedeltas(timedelta(0), 30 * HOUR),
    steps=st.integers(1, 40),
    days=st.integers(1, 3),
)
def test_count_is_that_of_stepping_when_it_is_taken_in_parts(
    transition: Transition, cron: str, before: timedelta, more: timedelta, steps: int, days: int
) -> None:
    """From any instant to any other, in one go or a few days at a time, the count is that of stepping."""
    zone, start = transition.zone, transition.at + before
    stepped = following(cron, zone, start, steps)
    end = max(start, stepped[-1] - more)
    expected = sum(slot <= end for slot in stepped)

    count, reached = 0, start
    while reached < end:
        part, upto = count_slots(cron, zone, after=reached, until=end, days=days)
        assert reached < upto <= end
        count, reached = count + part, upto

    assert count == expected
    assert count_slots(cron, zone, after=start, until=end) == (expected, end)


@settings(max_examples=200, deadline=None)
@given(transition=every_transition, cron=st.sampled_from((*TEXTS, *RARE)), before=near)
def test_no_slot_is_between_an_instant_and_its_neighbours(transition: Transition, cron: str, before: timedelta) -> None:
    """The slot before the next one is at or before the instant, and the slot after the previous one at or after it."""
    zone, instant = transition.zone, transition.at + before

    later, earlier = next_slot(cron, zone, instant), previous_slot(cron, zone, instant)

    assert earlier < instant < later
    assert previous_slot(cron, zone, later) in {earlier, instant}
    assert next_slot(cron, zone, earlier) in {later, instant}


@pytest.mark.parametrize("zone", ["Europe/Zurich", "UTC", "Etc/GMT+3", "America/Argentina/Buenos_Aires"])
def test_zone_comes_back_as_it_is_when_it_is_known(zone: str) -> None:
    """An IANA name is accepted, at any depth."""
    assert check_zone(zone) == zone


NO_ZONES: list[object] = [
    *(
        "UTC+3",
        "Mars/Phobos",
        "",
        "America",
        "../etc/passwd",
        "/etc/localtime",
        "Europe/Zurich ",
        "Europe/Z\0rich",
        "Zürich",
    ),
    *("\ud800", "x" * 300, "__init__.py", "zone.tab", "localtime", "posixrules", "Factory", "posix/UTC", "right/UTC"),
    *(None, 3, b"UTC", ["UTC"]),
]


@pytest.mark.parametrize("zone", NO_ZONES, ids=ascii)
def test_zone_is_refused_with_a_remedy_when_hosts_would_not_agree_on_it(zone: object) -> None:
    """What is no name of a zone, or differs from host to host, is refused wherever it comes from."""
    with pytest.raises(InvalidSchedule, match="'Europe/Zurich'.*pip install tzdata"):
        check_zone(zone)
    with pytest.raises(InvalidSchedule, match="IANA"):
        next_slot("0 2 * * *", zone, datetime(2026, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]  # as a row may have it
