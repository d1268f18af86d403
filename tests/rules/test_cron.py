from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zlib import crc32

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.errors import InvalidOption, InvalidSchedule
from sqla_jobs.rules.cron import check_cron, count_slots, next_slot, previous_slot, spread

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday


def days(cron: str, count: int, after: datetime = NEW_YEAR - SECOND) -> list[str]:
    """Give the dates of the next slots, as month-day."""
    found: list[str] = []
    while len(found) < count:
        after = next_slot(cron, "UTC", after)
        found.append(f"{after:%m-%d}")
    return found


def times(cron: str, count: int) -> list[str]:
    """Give the times of the next slots from the new year on."""
    found, after = list[str](), NEW_YEAR - SECOND
    while len(found) < count:
        after = next_slot(cron, "UTC", after)
        found.append(f"{after:%H:%M:%S}")
    return found


ACCEPTED = [
    *(
        "* * * * *",
        "0 2 * * *",
        "*/5 * * * *",
        "0-30/10 * * * *",
        "10/5 * * * *",
        "0,15,30-40 1,2 * * *",
        "*/1 * * * *",
    ),
    *(
        "0 0 1 jan *",
        "0 0 1 JAN,Mar-may *",
        "0 0 * * mon-FRI",
        "0 0 * * 7",
        "0 0 * * 0-7",
        "0 0 * * 5-7",
        "0 0 * * mon-fri/2",
    ),
    *("0 0 * * fri-sun", "0 0 * * sat-sun", "0 0 * * SUN", "0 0 ? * ?", "0 0 ? * 1", "0 0 L * *", "0 0 l,15 * *"),
    *("0 0 * * L5", "0 0 * * l7", "0 0 * * 5#3", "0 0 * * fri#5", "0 0 * * 1#1,3#2", "0 0 13 * 5#3", "0 0 * * L5,1#1"),
    *(
        "* * * * * *",
        "0 0 * * * 30",
        "15 23 * * 1-5 */1",
        "15 23 * * 1-5 */10",
        "* 3 * * * *",
        "  0\t2  *\t* * ",
        "00 02 * * *",
    ),
    *("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly", "@Daily", " @HOURLY "),
    *("0 0 29 2 *", "0 0 * 2 5#5", "0 0 29 2 1", "0 0 29 2 */3", "0 0 31 4 1", "0 0 30,31 2 sun", "0 0 31 4,5 *"),
]


@pytest.mark.parametrize("cron", ACCEPTED)
def test_text_comes_back_as_it_is_when_it_is_read(cron: str) -> None:
    """What is accepted is given back untouched, and has a next and a previous slot."""
    assert check_cron(cron) == cron
    assert previous_slot(cron, "UTC", NEW_YEAR) < NEW_YEAR < next_slot(cron, "UTC", NEW_YEAR)


REFUSED: list[tuple[object, str]] = [
    (None, "is a NoneType: write one such as '0 2"),
    (5, "is a int: write"),
    (b"0 2 * * *", "is a bytes: write"),
    (["0 2 * * *"], "is a list: write"),
    ("", "is empty: write five fields"),
    (" \t ", "is empty: write five fields"),
    ("not a cron", "3 fields are not five or six: write minute"),
    ("0 2 * *", "4 fields are not five or six: write minute"),
    ("0 2 * * * 0 2026", "7 fields are not five or six: write minute.*years are not known"),
    ("0 " * 128, "256 characters.*make it two schedules"),
    ("0 2 * * 0," + "1," * 500, "1010 characters"),
    ("CRON_TZ=UTC 0 0 * * *", "'cron_tz=utc' is no field: leave it out, and give the zone as timezone="),
    ("@reboot", "'@reboot'.*@yearly.*write one, or five fields"),
    ("@every 5m", "write one, or five fields"),
    ("@", "write one, or five fields"),
    ("15 23 * * 1-5 *", "sixth field is the second: leave it out, or write \\*/1"),
    ("*/5 * * * * *", "write \\*/1 if you mean every second of that minute"),
    ("\uff10 2 * * *", "not plain ASCII: type"),
    ("0 2 * * *\x00", "not plain ASCII: type"),
    ("0\n2 * * *", "not plain ASCII: type"),
    ("0\u00a02 * * *", "not plain ASCII: type"),
    ("60 * * * *", "minute '60': '60' is no minute: write 0 to 59"),
    ("0 24 * * *", "hour '24'.*write 0 to 23"),
    ("0 20-24 * * *", "'24' is no hour: write 0 to 23"),
    ("* * 0 * *", "day of the month '0'.*write 1 to 31, or L"),
    ("0 0 32 * *", "write 1 to 31, or L"),
    ("0 0 1 0 *", "write 1 to 12 or jan to dec"),
    ("0 0 1 13 *", "write 1 to 12 or jan to dec"),
    ("0 0 1 foo *", "'foo' is no month: write 1 to 12 or jan to dec"),
    ("0 0 * * 8", "write 0 to 7, sun to sat, L5 or 5#3"),
    ("0 0 * * L", "write 0 to 7, sun to sat, L5 or 5#3"),
    ("0 0 * * * 60", "second '60'.*write 0 to 59"),
    ("jan * * * *", "'jan' is no minute"),
    ("-1 * * * *", "write numbers"),
    ("1.5 * * * *", "write numbers"),
    ("1,,2 * * * *", "write numbers"),
    ("1, * * * *", "write numbers"),
    ("? * * * *", "write numbers"),
    ("0 0 ?,1 * *", "write numbers"),
    ("0 0 * * 1#6", "write numbers"),
    ("0 0 * * 1#0", "write numbers"),
    ("0 0 L-3 * *", "write 1 to 31, or L"),
    ("0 0 * * 5#3,1", "make it two schedules"),
    ("0 0 * * *,5#3", "make it two schedules"),
    ("*/5,* * * * *", "write \\* alone"),
    ("0 0 *,1 * *", "write \\* alone"),
    ("H * * * *", "H and R are hashed or random.*write a number"),
    ("h(0-29)/10 * * * *", "write a number"),
    ("0 H/3 * * *", "write a number"),
    ("R * * * *", "H and R are hashed or random.*write a number"),
    ("R(1-5) * * * *", "write a number"),
    ("0 0 15W * *", "W, the nearest weekday.*let the handler decide"),
    ("0 0 W15 * *", "W, the nearest weekday"),
    ("0 0 LW * *", "W, the nearest weekday"),
    ("5-1 * * * *", "ends before it begins: write 5-59,0-1"),
    ("0 22-2 * * *", "ends before it begins: write 22-23,0-2"),
    ("0 23-0 * * *", "write 23,0"),
    ("0 0 1 nov-feb *", "write nov-dec,jan-feb"),
    ("0 0 1 11-2 *", "write 11-12,1-2"),
    ("0 0 * * 5-0", "write 5-7"),
    ("0 0 * * 7-2", "write 0-2"),
    ("0 0 * * sat-mon", "write sat,sun-mon"),
    ("0 0 * * 6-1", "write 6,0-1"),
    ("5-5 * * * *", "from one value to another: write 5"),
    ("5-5/2 * * * *", "from one value to another: write 5"),
    ("0 0 1 jan-jan *", "from one value to another: write jan"),
    ("0 0 * * sun-sun", "from one value to another: write sun"),
    ("0 0 * * 7-sun", "from one value to another: write 7"),
    ("*/0 * * * *", "a step is at least 1: write \\*/1"),
    ("5/0 * * * *", "a step is at least 1"),
    ("*/70 * * * *", "a step of '70' reaches no second minute: write 0"),
    ("0 */90 * * *", "a step of '90' reaches no second hour: write 0"),
    ("0 0 */31 * *", "reaches no second day of the month: write 1"),
    ("59/15 * * * *", "a step of '15' reaches no second minute: write 59"),
    ("10-20/30 * * * *", "write 10"),
    (f"*/{'9' * 240} * * * *", "reaches no second minute"),
    ("0 0 30 2 *", "never comes.*write another, or L for the last"),
    ("0 0 30,31 2 *", "never comes"),
    ("0 0 31 4 *", "never comes"),
    ("0 0 31 2,4,6 *", "never comes"),
    ("0 0 31 2,4,6,9,11 *", "never comes"),
    ("0 0 30 2 */2", "never comes"),
    ("0 0 */30 2 5#5", "never comes"),
]


@pytest.mark.parametrize(("cron", "remedy"), REFUSED, ids=lambda value: ascii(value)[:40])
def test_text_is_refused_with_a_remedy_when_it_is_not_what_it_seems(cron: object, remedy: str) -> None:
    """What can't be read, never comes, or would surprise is refused with what to write instead, wherever it's from."""
    with pytest.raises(InvalidSchedule, match=f"(?s){remedy}") as refusal:
        check_cron(cron)

    assert len(str(refusal.value)) < 450
    with pytest.raises(InvalidSchedule):
        next_slot(cron, "UTC", NEW_YEAR)  # type: ignore[arg-type]  # as a row may have it


@given(st.text(max_size=40) | st.from_regex(r"([0-9*/,lLhHrRwW#?a-c-]{1,5} ){4,5}[0-9*/,#-]{1,3}", fullmatch=True))
def test_no_text_raises_anything_but_a_refusal(cron: str) -> None:
    """Whatever people write, it's read or it is an `InvalidSchedule`."""
    try:
        check_cron(cron)
    except InvalidSchedule:
        return

    assert next_slot(cron, "UTC", NEW_YEAR) > NEW_YEAR


DATES = [
    ("0 0 13 * 5", ["01-02", "01-09", "01-13", "01-16"]),
    ("0 0 */10 * 4", ["01-01", "05-21", "06-11", "10-01", "12-31"]),
    ("0 0 1-31 * 1", ["01-01", "01-02", "01-03"]),
    ("0 0 13 * *", ["01-13", "02-13"]),
    ("0 0 13 * ?", ["01-13", "02-13"]),
    ("0 0 ? * 5", ["01-02", "01-09"]),
    ("0 0 */2 * 1", ["01-05", "01-19", "02-09"]),
    ("0 0 1 * */2", ["01-01", "02-01", "03-01", "08-01"]),
    ("0 0 L * *", ["01-31", "02-28", "03-31"]),
    ("0 0 L,15 * *", ["01-15", "01-31", "02-15", "02-28"]),
    ("0 0 L 2 1", ["02-02", "02-09", "02-16", "02-23", "02-28"]),
    ("0 0 * * L5", ["01-30", "02-27", "03-27"]),
    ("0 0 * * L7", ["01-25", "02-22"]),
    ("0 0 * * 5#3", ["01-16", "02-20"]),
    ("0 0 13 * 5#3", ["01-13", "01-16", "02-13", "02-20"]),
    ("0 0 * * 5#5", ["01-30", "05-29", "07-31"]),
    ("0 0 * * 7", ["01-04", "01-11"]),
    ("0 0 * * fri-sun", ["01-02", "01-03", "01-04", "01-09"]),
    ("0 0 * * 5-7", ["01-02", "01-03", "01-04", "01-09"]),
    ("0 0 * * 0-7", ["01-01", "01-02", "01-03"]),
    ("0 0 31 4 1", ["04-06", "04-13"]),
    ("0 0 1 feb,nov-dec *", ["02-01", "11-01", "12-01"]),
    ("@weekly", ["01-04", "01-11"]),
    ("@monthly", ["01-01", "02-01"]),
    ("@yearly", ["01-01", "01-01"]),
]


@pytest.mark.parametrize(("cron", "expected"), DATES)
def test_days_are_those_of_vixie_cron(cron: str, expected: list[str]) -> None:
    """Two restricted day fields are OR, one that begins with a star is AND; L and # count within the month."""
    assert days(cron, len(expected)) == expected


TIMES = [
    ("10/20 3 * * *", ["03:10:00", "03:30:00", "03:50:00", "03:10:00"]),
    ("5-50/15 */12 * * *", ["00:05:00", "00:20:00", "00:35:00", "00:50:00", "12:05:00"]),
    ("0 0 * * * 30", ["00:00:30", "00:00:30"]),
    ("15 23 * * * */1", ["23:15:00", "23:15:01", "23:15:02"]),
    ("* * * * * *", ["00:00:00", "00:00:01", "00:00:02"]),
    ("@hourly", ["00:00:00", "01:00:00"]),
    ("@midnight", ["00:00:00", "00:00:00"]),
]


@pytest.mark.parametrize(("cron", "expected"), TIMES)
def test_seconds_are_the_sixth_field(cron: str, expected: list[str]) -> None:
    """Steps start at their range's first value, and a sixth field is the second; without one it is 0."""
    assert times(cron, len(expected)) == expected


month_days = st.sampled_from(["*", "*/2", "*/10", "1", "13", "31", "29,30", "L", "1-7", "L,5"])
months = st.sampled_from(["*", "5,8", "*/3", "jan,jul", "feb-mar"])
weekdays = st.sampled_from(["*", "*/2", "1", "mon-fri", "sun", "fri-sun", "6,0", "5#1", "1#5", "L3"])


@given(month_day=month_days, month=months, weekday=weekdays, start=st.dates(date(1990, 1, 1), date(2080, 1, 1)))
def test_days_are_those_of_croniter(month_day: str, month: str, weekday: str, start: date) -> None:
    """The next days are those that croniter's own search finds, where it does not confuse OR with AND."""
    is_either = not month_day.startswith("*") and not weekday.startswith("*")
    cron, after = f"0 0 {month_day} {month} {weekday}", datetime(start.year, start.month, start.day, tzinfo=UTC)
    texts = [f"0 0 {month_day} {month} *", f"0 0 * {month} {weekday}"] if is_either else [cron]

    expected = min(croniter(text, after, day_or=False).get_next(datetime) for text in texts)

    assert next_slot(cron, "UTC", after) == expected
    assert previous_slot(cron, "UTC", expected + SECOND) == expected


def test_rare_days_are_found_when_they_are_decades_apart() -> None:
    """The leap year that 1900, 2100 and 2200 are not is no end of the search."""
    start = datetime(2096, 3, 1, tzinfo=UTC)

    assert next_slot("0 0 29 2 *", "UTC", start) == datetime(2104, 2, 29, tzinfo=UTC)
    assert next_slot("0 0 29 2 */3", "UTC", start) == datetime(2108, 2, 29, tzinfo=UTC)
    assert previous_slot("0 0 29 2 *", "UTC", datetime(2104, 2, 29, tzinfo=UTC)) == datetime(2096, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Apia"])
def test_end_of_the_calendar_is_a_refusal(zone: str) -> None:
    """After the last leap day of the calendar there is no slot, which is said and no `OverflowError`."""
    with pytest.raises(InvalidSchedule, match="no slot .* take other dates"):
        next_slot("0 0 29 2 *", zone, datetime(9996, 3, 1, tzinfo=UTC))


NO_INSTANTS: list[tuple[object, str]] = [
    (datetime(2026, 1, 1), "naive.*tzinfo=UTC"),
    (date(2026, 1, 1), "aware datetime"),
    (None, "aware datetime"),
    (datetime.max.replace(tzinfo=UTC), "1970 to 9998"),
    (datetime.min.replace(tzinfo=UTC), "1970 to 9998"),
]


@pytest.mark.parametrize(("instant", "remedy"), NO_INSTANTS)
def test_instant_is_refused_when_it_is_none(instant: datetime, remedy: str) -> None:
    """A naive time, a date, and a year that no column holds are refused in every place for an instant."""
    for call in (
        lambda: next_slot("* * * * *", "UTC", instant),
        lambda: previous_slot("* * * * *", "UTC", instant),
        lambda: count_slots("* * * * *", "UTC", after=instant, until=NEW_YEAR),
        lambda: count_slots("* * * * *", "UTC", after=NEW_YEAR, until=instant),
    ):
        with pytest.raises(InvalidOption, match=remedy):
            call()


def test_slots_are_in_utc_when_the_instant_is_of_another_zone() -> None:
    """The instant counts, not the zone that it is written in."""
    instant = datetime.fromisoformat("2026-06-01T12:00:00.5+05:30")

    slot = next_slot("30 6 * * *", "UTC", instant)

    assert slot == datetime(2026, 6, 2, 6, 30, tzinfo=UTC)
    assert slot.tzinfo is UTC
    assert previous_slot("30 6 * * *", "UTC", instant) == datetime(2026, 6, 1, 6, 30, tzinfo=UTC)


COUNTS = ["* * * * *", "0 2 * * *", "*/7 1-5,23 * * mon", "0 0 13 * 5", "5 4 L * *", "30 1 * 2 * */15"]


@pytest.mark.parametrize("cron", COUNTS)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich"])
def test_count_is_that_of_stepping(cron: str, zone: str) -> None:
    """A number of slots is counted between any two of them, the first left out and the last included."""
    slots = [next_slot(cron, zone, NEW_YEAR)]
    while len(slots) < 300:
        slots.append(next_slot(cron, zone, slots[-1]))

    assert count_slots(cron, zone, after=slots[0], until=slots[-1]) == (299, slots[-1])
    assert count_slots(cron, zone, after=slots[0] - SECOND, until=slots[-1] - SECOND) == (299, slots[-1] - SECOND)
    assert count_slots(cron, zone, after=slots[-1], until=slots[0]) == (0, slots[0])
    assert count_slots(cron, zone, after=slots[0], until=slots[0]) == (0, slots[0])


def test_count_ends_early_when_there_are_more_days() -> None:
    """No more than the given number of matching days is counted at once, and the next part goes on where it ended."""
    until = datetime(2027, 1, 1, tzinfo=UTC)

    count, reached = count_slots("* * * * *", "UTC", after=NEW_YEAR, until=until, days=10)
    rest, end = count_slots("* * * * *", "UTC", after=reached, until=until)

    assert (count, reached) == (10 * 1440 - 1, NEW_YEAR + 10 * DAY - SECOND)
    assert (count + rest, end) == (365 * 1440, until)


def test_count_of_all_seconds_of_a_thousand_days_needs_no_stepping() -> None:
    """Counting is by days: all seconds take as long as one a day, and the end of the calendar is no error."""
    until = datetime(9998, 12, 31, tzinfo=UTC)

    count, reached = count_slots("* * * * * *", "Europe/Zurich", after=datetime(1970, 1, 1, tzinfo=UTC), until=until)

    assert count == (reached - datetime(1970, 1, 1, tzinfo=UTC)) // SECOND
    assert count_slots("0 0 29 2 *", "UTC", after=datetime(9996, 3, 1, tzinfo=UTC), until=until) == (0, until)


@pytest.mark.parametrize("days", [0, -1, True, 1.5])
def test_count_of_no_days_is_refused(days: int) -> None:
    """A count that could never go on is refused."""
    with pytest.raises(InvalidOption, match="days"):
        count_slots("* * * * *", "UTC", after=NEW_YEAR, until=NEW_YEAR + DAY, days=days)


SPREADS = [
    ("0 2 * * *", "a", 27_271),
    ("0 2 * * *", "send-reports", 23_570),
    ("* * * * *", "a", 5_454),
    ("* * * * * *", "a", 90),
    ("0 0 1 1 *", "Zürich", 24_731),
]


@pytest.mark.parametrize(("cron", "name", "milliseconds"), SPREADS)
def test_spread_is_for_ever_what_it_was(cron: str, name: str, milliseconds: int) -> None:
    """The default offset of a name is pinned: another value would move the jobs of every schedule."""
    assert spread(cron, name) == timedelta(milliseconds=milliseconds)


GAPS = [
    ("0 2 * * *", 86_400),
    ("0 0 29 2 *", 86_400),
    ("*/5 * * * *", 300),
    ("*/2 * * * *", 120),
    ("*/7 * * * *", 240),
    ("0,58 * * * *", 120),
    ("0,59 0,23 * * *", 60),
    ("* * * * *", 60),
    ("* * * * * *", 1),
    ("* * * * * */20", 20),
    ("* * * * * 0,50", 10),
    ("0 * * * * 5,55", 50),
]


@given(st.sampled_from(GAPS), st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=255))
def test_spread_is_within_a_tenth_of_the_shortest_gap(gap: tuple[str, int], name: str) -> None:
    """It's a share, by the name alone, of 30 seconds or a tenth of the shortest gap, in whole milliseconds."""
    cron, seconds = gap
    most = min(timedelta(seconds=30), timedelta(seconds=seconds) / 10)

    offset = spread(cron, name)

    assert timedelta(0) <= offset < most
    assert offset % timedelta(milliseconds=1) == timedelta(0)
    assert offset <= most * (crc32(name.encode()) / 2**32) < offset + timedelta(milliseconds=1, microseconds=1)


def test_spread_differs_when_names_do() -> None:
    """A hundred schedules at one time of the day start at nearly as many times."""
    assert len({spread("0 2 * * *", f"report-{number}") for number in range(100)}) > 95


@pytest.mark.parametrize("name", ["", None, "\ud800", "x" * 256])
def test_spread_is_refused_when_the_name_is_no_text(name: str) -> None:
    """What no column holds as a name has no offset."""
    with pytest.raises(InvalidOption, match="name"):
        spread("0 2 * * *", name)
