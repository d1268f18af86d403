"""When a schedule fires: the slots of a cron text in a time zone.

A slot is an instant, the same in every process, for it hangs on nothing but text and zone:

    next_slot("30 2 * * mon-fri", "Europe/Zurich", after=datetime(2026, 3, 27, 12, tzinfo=UTC))

The text, case ignored:

- five fields (minute, hour, day of the month, month, day of the week), or six with the seconds last; or `@yearly`,
  `@annually`, `@monthly`, `@weekly`, `@daily`, `@midnight`, `@hourly`. No years, no `@reboot`
- `*`, `5`, `1-5`, `*/5`, `10-50/5`, `10/5` (from 10 to the end), lists of these; `jan` to `dec`, `sun` to `sat`; 0 and
  7 are Sunday; `?` for `*` in the two day fields; `L` in the day of the month; in the day of the week `L5` (the last
  Friday) and `5#3` (the third), in lists of their kind only
- day of the month OR day of the week, as in Vixie cron: AND if one of the fields begins with `*` or is `?`

Refused, since it says something else than it seems to: a sixth field `*` under a minute that is none (a stray field
would fire 60 times), ranges that wrap (`22-2`; `fri-sun` is fine) or are of one value (`5-5` is the whole cycle to
croniter), `*` in a list, steps that reach no second value (`*/70`, `59/15`), hashed and random fields (`H`, `R`:
processes would disagree), `W`, all but ASCII, more than 255 characters, and dates that never come (`0 0 30 2 *`).

Daylight saving time: the wall times that a zone skips are one slot, the first instant after the gap. Of a wall time
that comes twice the first is a slot; both are where the hour has a `*` or a `/`, or is all 24.

croniter reads the fields. Days are not its: its search loses the 13th in `0 0 13 * 5#3` (7.0), takes 30 µs a step, and
ends after 50 years.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo

from croniter import croniter

from sqla_jobs.errors import InvalidSchedule
from sqla_jobs.rules.options import check_instant
from sqla_jobs.rules.registry import LONGEST_NAME, check_number, check_text
from sqla_jobs.rules.wall_times import WallTimes
from sqla_jobs.rules.zones import SECOND, Shift, instant_of, load_zone, shift_within, wall_at

_DAY = timedelta(days=1)


def check_cron(cron: object) -> str:
    """Give *cron* as it is, if it is a text that this module reads.

    :raises InvalidSchedule: it is not; the message says what to write instead
    """
    _read(cron)
    return cast("str", cron)


def check_zone(zone: object) -> str:
    """Give *zone* as it is, if it is the IANA name of a time zone that is the same on every host.

    :raises InvalidSchedule: it is not; the message says what to write instead
    """
    return load_zone(zone).key


def next_slot(cron: str, zone: str, after: datetime) -> datetime:
    """Find the first slot strictly after *after* (aware), in UTC.

    :raises InvalidSchedule: text or zone can't be read, or there is none up to the year 9999: take other dates
    :raises InvalidOption: *after* is naive or not of the years 1970 to 9998
    """
    times, tz, instant = _read(cron), load_zone(zone), _utc("after", after)
    try:
        return _next(times, tz, instant).replace(tzinfo=UTC)
    except OverflowError as error:
        raise _refusal(cron, f"it has no slot from {instant}Z to the year 9999: take other dates") from error


def previous_slot(cron: str, zone: str, before: datetime) -> datetime:
    """Find the last slot strictly before *before* (aware), in UTC.

    :raises InvalidSchedule: text or zone can't be read, or there is none down to the year 1: take other dates
    :raises InvalidOption: *before* is naive or not of the years 1970 to 9998
    """
    times, tz, instant = _read(cron), load_zone(zone), _utc("before", before)
    try:
        return _previous(times, tz, instant).replace(tzinfo=UTC)
    except OverflowError as error:
        raise _refusal(cron, f"it has no slot from the year 1 to {instant}Z: take other dates") from error


def count_slots(cron: str, zone: str, *, after: datetime, until: datetime, days: int = 1000) -> tuple[int, datetime]:
    """Count the slots in (*after*, *until*]. Give them with the instant, in UTC, up to which they were counted.

    That is *until*, or earlier if more than *days* local days match: go on from there. It takes about 5 µs a day,
    however many slots a day has.

    :raises InvalidSchedule: text or zone can't be read
    :raises InvalidOption: an instant is naive or not of the years 1970 to 9998, or *days* is below 1
    """
    times, tz, start, end = _read(cron), load_zone(zone), _utc("after", after), _utc("until", until)
    end, shifts = _bound(times, tz, start, end, days=check_number("days", days, least=1))
    if end <= start:
        return 0, end.replace(tzinfo=UTC)
    (first, passed), (last, reached) = _reach(times, tz, start), _reach(times, tz, end)
    more = sum(_more(times, shift) for shift in shifts if start < shift.over <= end)
    return times.count(first, last) + reached - passed + more, end.replace(tzinfo=UTC)


def spread(cron: str, name: str) -> timedelta:
    """Give the default offset of the schedule *name*, so that not every job of an hour starts in its first second.

    It is crc32(name) / 2**32 of 30 seconds, or of a tenth of the shortest gap between slots if that is less (as if
    every day matched), in whole milliseconds, rounded down. Never change it: the jobs of all schedules would move.

    :raises InvalidSchedule: the text can't be read
    :raises InvalidOption: the name is no text of 1 to 255 characters
    """
    most = min(timedelta(seconds=30), _read(cron).shortest_gap / 10) // timedelta(milliseconds=1)
    return timedelta(milliseconds=most * zlib.crc32(check_text("name", name).encode()) >> 32)


# From here on datetimes are naive: wall times of the zone, and instants of UTC.


def _utc(what: str, value: datetime) -> datetime:
    return check_instant(what, value).astimezone(UTC).replace(tzinfo=None)


def _next(times: WallTimes, tz: ZoneInfo, instant: datetime) -> datetime:
    wall, is_second = wall_at(tz, instant)
    start = wall.replace(microsecond=0) + SECOND
    fold = shift_within(tz, wall, wall)  # no gap: a wall time that is now is not skipped
    if fold is None:
        return instant_of(tz, times.first_from(start))
    found = instant_of(tz, times.first_from(fold.end if is_second else start))
    if times.repeats:
        again = times.first_from(start if is_second else fold.start)
        if again < fold.end:
            return min(found, instant_of(tz, again, is_second=True))
    return found


def _previous(times: WallTimes, tz: ZoneInfo, instant: datetime) -> datetime:
    wall, is_second = wall_at(tz, instant)
    end = wall.replace(microsecond=0) + (SECOND if wall.microsecond else timedelta(0))
    fold = shift_within(tz, wall, wall)
    if fold is None:
        match = times.last_before(end)
        if instant_of(tz, match) == instant and (gap := shift_within(tz, match, match)):
            match = times.last_before(gap.start)  # *instant* is the end of that gap, itself the slot
        return instant_of(tz, match, is_second=times.repeats)
    if times.repeats and is_second and (again := times.last_before(end)) >= fold.start:
        return instant_of(tz, again, is_second=True)
    return instant_of(tz, times.last_before(fold.end if is_second else end))


def _bound(times: WallTimes, tz: ZoneInfo, start: datetime, end: datetime, *, days: int) -> tuple[datetime, set[Shift]]:
    """Give *end*, or where *days* matching days are over if that is earlier, and the shifts on those days."""
    shifts: set[Shift] = set()
    since = wall_at(tz, start)[0].replace(microsecond=0) + SECOND
    first = since.date() + (_DAY if times.rank(since) == times.per_day else timedelta(0))
    # Two days more: a wall time that comes again after midnight is of the day before.
    for day in times.days_between(first - 2 * _DAY, wall_at(tz, end)[0].date()):
        midnight = datetime.combine(day, time())
        days -= day >= first
        if days < 0:
            last = instant_of(tz, midnight, is_second=True)
            return min(end, last - SECOND if last - SECOND > start else last), shifts
        if shift := shift_within(tz, midnight, midnight + _DAY):
            shifts.add(shift)
    return end, shifts


def _reach(times: WallTimes, tz: ZoneInfo, instant: datetime) -> tuple[datetime, int]:
    """Give the wall time before which all matches have had a slot, and how many a second one in a fold not yet over."""
    wall, is_second = wall_at(tz, instant)
    end = wall.replace(microsecond=0) + SECOND
    if is_second and (fold := shift_within(tz, wall, wall)):
        return fold.end, times.count(fold.start, end) if times.repeats else 0
    return end, 0


def _more(times: WallTimes, shift: Shift) -> int:
    """Give how many slots more there are than wall times that match; fewer in a gap."""
    if shift.is_gap:
        return min(0, 1 - times.count(shift.start, shift.end + SECOND))
    return times.count(shift.start, shift.end) if times.repeats else 0


# Reading: croniter gets only what it reads as it is meant.

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ITEM = re.compile(r"(?:\*|([a-z]+|[0-9]+)(?:-([a-z]+|[0-9]+))?)(?:/([0-9]+))?")


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a text.

    :ivar special: what it may have besides numbers, names, ranges and steps
    """

    name: str
    first: int
    last: int
    values: str
    names: tuple[str, ...] = ()
    special: re.Pattern[str] = re.compile(r"(?!)")
    has_question_mark: bool = False

    def number(self, value: str) -> int | None:
        if value in self.names:
            return self.names.index(value) + self.first
        if not value.isdigit():
            return None
        most = 7 if self.names is _WEEKDAYS else self.last
        return int(value) if self.first <= int(value) <= most else None


_MONTH_DAY = _Field("day of the month", 1, 31, "1 to 31, or L", (), re.compile("l"), has_question_mark=True)
_WEEKDAY = _Field(
    *("day of the week", 0, 6, "0 to 7, sun to sat, L5 or 5#3", _WEEKDAYS),
    re.compile(f"l[0-7]|([0-7]|{'|'.join(_WEEKDAYS)})#[1-5]"),
    has_question_mark=True,
)
_FIELDS = (
    _Field("minute", 0, 59, "0 to 59"),
    _Field("hour", 0, 23, "0 to 23"),
    _MONTH_DAY,
    _Field("month", 1, 12, "1 to 12 or jan to dec", _MONTHS),
    _WEEKDAY,
    _Field("second", 0, 59, "0 to 59"),
)


def _read(cron: object) -> WallTimes:
    if not isinstance(cron, str):
        raise InvalidSchedule(f"a cron text is a str, and is a {type(cron).__name__}: write one such as '0 2 * * *'")
    return _parse(cron)


@lru_cache(maxsize=4096)
def _parse(text: str) -> WallTimes:
    fields = _split(text)
    for field, value in zip(_FIELDS, fields, strict=False):
        if problem := _problem(field, value):
            raise _refusal(text, f"{field.name} {_clip(value)}: {problem}")
    try:
        expanded, nth = cast("tuple[list[list[object]], dict[int, set[object]]]", croniter.expand(" ".join(fields)))
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # what it has been seen to raise
        raise _refusal(text, f"croniter can't read it ({_clip(str(error))}): write it in simpler fields") from error
    lists: list[list[object]] = [*expanded, [0]]  # without a sixth field it's the second 0
    minutes, hours, month_days, months, weekdays, seconds = (
        [*range(field.first, field.last + 1)] if "*" in values else values
        for field, values in zip(_FIELDS, lists, strict=False)
    )
    is_either = not any(fields[place].startswith(("*", "?")) for place in (2, 4))
    days = tuple(
        _month(month_days, nth or {key: range(1, 6) for key in _sorted(weekdays)}, weekday, length, is_either=is_either)
        for length in range(28, 32)
        for weekday in range(7)
    )
    times = WallTimes(
        hours=_sorted(hours),
        minutes=_sorted(minutes),
        seconds=_sorted(seconds),
        months=_sorted(months),
        days=days,
        repeats="*" in fields[1] or "/" in fields[1] or len(hours) == 24,
    )
    # In these 28 years each month, and February of a leap year too, begins on each weekday.
    if next(times.days_between(date(2000, 1, 1), date(2027, 12, 31)), None) is None:
        raise _refusal(text, "it never comes: none of its months has such a day; write another, or L for the last")
    return times


def _sorted(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(sorted(value for value in values if isinstance(value, int)))


def _month(
    month_days: Container[object],
    weekdays: Mapping[int, Container[object]],
    weekday: int,
    length: int,
    *,
    is_either: bool,
) -> int:
    """Give the days, as bits, of a month of *length* days whose first is a *weekday* (0 is Monday)."""
    bits = 0
    for day in range(1, length + 1):
        by_month = day in month_days or (day == length and "l" in month_days)
        weeks = weekdays.get((weekday + day) % 7, ())
        by_week = (day + 6) // 7 in weeks or (day > length - 7 and "l" in weeks)
        if by_month or by_week if is_either else by_month and by_week:
            bits |= 1 << day
    return bits


def _split(text: str) -> list[str]:
    if len(text) > LONGEST_NAME:
        raise _refusal(
            text, f"it has {len(text)} characters, and at most {LONGEST_NAME} are stored: make it two schedules"
        )
    if not re.fullmatch(r"[ -~\t]*", text):
        raise _refusal(text, "it has a character that is not plain ASCII: type its digits, signs and spaces anew")
    fields = text.lower().split()
    if not fields:
        raise _refusal(text, "it is empty: write five fields, such as '0 2 * * *'")
    if fields[0].startswith("@"):
        if len(fields) > 1 or fields[0] not in _ALIASES:
            raise _refusal(
                text, f"of the words with an @ only {', '.join(_ALIASES)} are known: write one, or five fields"
            )
        return _ALIASES[fields[0]].split()
    if "=" in fields[0]:
        raise _refusal(text, f"{_clip(fields[0])} is no field: leave it out, and give the zone as timezone=")
    if len(fields) not in {5, 6}:
        raise _refusal(
            text,
            f"{len(fields)} fields are not five or six: write minute, hour, day of the month, month and day of the "
            "week, then seconds if you need them (years are not known)",
        )
    if fields[5:] == ["*"] and fields[0] != "*":
        raise _refusal(
            text, "its sixth field is the second: leave it out, or write */1 if you mean every second of that minute"
        )
    return fields


def _problem(field: _Field, value: str) -> str | None:
    """Tell what is wrong with a field, and what to write instead."""
    if value == "*" or (value == "?" and field.has_question_mark):
        return None
    items = value.split(",")
    plain = [item for item in items if not field.special.fullmatch(item)]
    if field is _WEEKDAY and 0 < len(plain) < len(items):
        return "days with L or # and others don't go together: make it two schedules"
    return next(filter(None, (_problem_of_item(field, item) for item in plain)), None)


def _problem_of_item(field: _Field, item: str) -> str | None:
    if re.match(r"[hr](?![a-z])", item):
        return "H and R are hashed or random, and processes would disagree: write a number"
    if re.fullmatch(r"[0-9l]w|[0-9]{2}w|w[0-9]+", item):
        return "W, the nearest weekday, is not known: name the days, or let the handler decide"
    match = _ITEM.fullmatch(item)
    if match is None:
        return f"write numbers ({field.values}), ranges as a-b, lists as a,b, and steps as */n or a-b/n"
    first, last, step = cast("tuple[str | None, str | None, str | None]", match.groups())
    if first is None:
        return _problem_of_step(field, str(field.first), field.first, field.last, step)
    low, high = field.number(first), field.number(last) if last else field.last
    if low is None or high is None:
        return f"{_clip(last if low is not None and last else first)} is no {field.name}: write {field.values}"
    if last == "sun" and field is _WEEKDAY and low:
        high = 7
    if last and low >= high:
        return _problem_of_range(field, first, last, is_equal=low == high)
    return _problem_of_step(field, first, low, high, step) if step else None


def _problem_of_step(field: _Field, first: str, low: int, high: int, step: str | None) -> str | None:
    if step is None:
        return "a * in a list is every value already: write * alone, or leave it out"
    if int(step) == 0:
        return "a step is at least 1: write */1 for every value"
    if low + int(step) > high:
        return f"a step of {_clip(step)} reaches no second {field.name}: write {first}"
    return None


def _problem_of_range(field: _Field, first: str, last: str, *, is_equal: bool) -> str:
    if is_equal:
        return f"a range goes from one value to another: write {first}"
    if field is _WEEKDAY and (last == "0" or first == "7"):
        return f"the range ends before it begins: write {first if last == '0' else '0'}-{'7' if last == '0' else last}"
    ends = (field.names[-1], field.names[0]) if first in field.names else (str(field.last), str(field.first))
    parts = ("-".join(dict.fromkeys(part)) for part in ((first, ends[0]), (ends[1], last)))
    return f"the range ends before it begins: write {','.join(parts)}"


def _refusal(text: str, problem: str) -> InvalidSchedule:
    return InvalidSchedule(f"cron text {_clip(text)} is refused; {problem}")


def _clip(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
