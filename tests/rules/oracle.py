"""Slots by the definition: every minute of UTC is looked at, and every minute of a gap. Plain texts only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))

ZONES = (
    *(
        "America/New_York",
        "America/Santiago",
        "America/Havana",
        "America/Caracas",
        "America/Sao_Paulo",
        "America/St_Johns",
    ),
    *("America/Nuuk", "America/Scoresbysund", "America/Asuncion", "America/Metlakatla", "America/Mexico_City"),
    *("Africa/Cairo", "Africa/Casablanca", "Africa/El_Aaiun", "Africa/Windhoek", "Africa/Khartoum", "Africa/Juba"),
    *("Asia/Beirut", "Asia/Gaza", "Asia/Amman", "Asia/Tehran", "Asia/Pyongyang", "Asia/Kathmandu", "Asia/Colombo"),
    *("Asia/Damascus", "Asia/Dhaka", "Antarctica/Troll", "Antarctica/Casey", "Atlantic/Azores", "Australia/Lord_Howe"),
    *("Australia/Adelaide", "Europe/Zurich", "Europe/Dublin", "Europe/Istanbul", "Europe/Volgograd", "Pacific/Apia"),
    *("Pacific/Fakaofo", "Pacific/Chatham", "Pacific/Easter", "Pacific/Norfolk", "Pacific/Bougainville"),
)


@dataclass(frozen=True)
class Transition:
    zone: str
    at: datetime
    before: timedelta
    after: timedelta


@cache
def transitions(zone: str) -> tuple[Transition, ...]:
    """Find where the offset of *zone* changes in 2000 to 2040, by looking twice a day."""
    tz = ZoneInfo(zone)
    found: list[Transition] = []
    instant = datetime(2000, 1, 1, tzinfo=UTC)
    offset = offset_at(tz, instant)
    while instant.year < 2041:
        later = instant + timedelta(hours=12)
        if (changed := offset_at(tz, later)) != offset:
            minutes = range(1, 12 * 60 + 1)
            at = next(instant + n * MINUTE for n in minutes if offset_at(tz, instant + n * MINUTE) != offset)
            found.append(Transition(zone, at, offset, changed))
        instant, offset = later, changed
    return tuple(found)


def offset_at(tz: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(tz).utcoffset()
    assert offset is not None
    return offset


def slots(cron: str, near: Transition, start: datetime, end: datetime) -> list[datetime]:
    """Give the slots in (*start*, *end*), whole minutes less than some days from the transition *near*."""
    tz = ZoneInfo(near.zone)
    fields = cron.split()
    repeats = "*" in fields[1] or "/" in fields[1] or len(values(fields[1], 0, 23)) == 24
    found: set[datetime] = set()
    for instant in minutes_between(start + MINUTE, end):
        local = instant.astimezone(tz)
        if matches(fields, local) and (local.fold == 0 or repeats):
            found.add(instant)
    if start < near.at < end:
        skipped = minutes_between(near.at + near.before, near.at + near.after)
        if any(matches(fields, wall) for wall in skipped):
            found.add(near.at)
    return sorted(found)


def minutes_between(start: datetime, end: datetime) -> Iterator[datetime]:
    while start < end:
        yield start
        start += MINUTE


def matches(fields: list[str], wall: datetime) -> bool:
    is_minute, is_hour, is_day, is_month, is_weekday = (
        number in values(field, *bounds)
        for field, bounds, number in zip(
            fields, RANGES, (wall.minute, wall.hour, wall.day, wall.month, wall.isoweekday() % 7), strict=True
        )
    )
    if fields[2].startswith("*") or fields[4].startswith("*"):
        return is_minute and is_hour and is_month and is_day and is_weekday
    return is_minute and is_hour and is_month and (is_day or is_weekday)


@cache
def values(field: str, first: int, last: int) -> frozenset[int]:
    found: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        low, _, high = (f"{first}-{last}" if span == "*" else span).partition("-")
        found.update(range(int(low), int(high or low) + 1, int(step or 1)))
    return frozenset(found)
