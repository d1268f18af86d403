"""Time zones: which instant a wall time is, and which wall times a zone skips or has twice.

Wall times and instants are naive datetimes here: a wall time is of the zone, an instant is of UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo

from sqla_jobs.errors import InvalidSchedule
from sqla_jobs.rules.registry import LONGEST_NAME

SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of a zone's offset: the wall times from `start` to before `end` are skipped, or come twice.

    :ivar at: the instant of the change
    """

    at: datetime
    start: datetime
    end: datetime
    is_gap: bool

    @property
    def over(self) -> datetime:
        """The instant from which wall times are plain again."""
        return self.at if self.is_gap else self.at + (self.end - self.start)


def load_zone(zone: object) -> ZoneInfo:
    """Load a time zone by its IANA name.

    :raises InvalidSchedule: it is no name, unknown, or not the same on every host
    """
    if not isinstance(zone, str):
        raise _unknown(f"is a {type(zone).__name__}")
    return _load(zone)


@lru_cache(maxsize=1024)
def _load(name: str) -> ZoneInfo:
    if name in {"localtime", "posixrules", "Factory"} or name.startswith(("posix/", "right/")):
        # The host's own choice, no zone at all, or zones that are on few hosts and count leap seconds.
        raise _unknown(f"is {name[:40]!r}, which is not the same on every host")
    if not name or len(name) > LONGEST_NAME:
        raise _unknown(f"has {len(name)} characters")
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:  # not found; a path or no zone file; a folder
        raise _unknown(f"is {name[:40]!r}, which can't be loaded") from error


def _unknown(problem: str) -> InvalidSchedule:
    return InvalidSchedule(
        f"a time zone {problem}: write an IANA name such as 'Europe/Zurich' "
        "(on a host without zone files: pip install tzdata)"
    )


def wall_at(tz: ZoneInfo, instant: datetime) -> tuple[datetime, bool]:
    """Give the wall time at *instant*, and whether it is the second time that it comes."""
    local = instant.replace(tzinfo=UTC).astimezone(tz)
    return local.replace(tzinfo=None, fold=0), local.fold == 1


def instant_of(tz: ZoneInfo, wall: datetime, *, is_second: bool = False) -> datetime:
    """Give the instant of *wall*: the first one, or the second if it comes twice; the end of the gap if it is skipped.

    :raises OverflowError: it is outside of the years 1 to 9999
    """
    local = wall.replace(tzinfo=tz)
    before, after = _offset(local), _offset(local.replace(fold=1))
    if before < after and (gap := shift_within(tz, wall, wall)):
        return gap.at
    return wall - (after if is_second else before)


def shift_within(tz: ZoneInfo, first: datetime, last: datetime) -> Shift | None:
    """Find the shift that skips or repeats a wall time from *first* to *last*. These are at most some days apart.

    Two shifts that cancel each other out within the range are not seen; no zone has them on one day.
    """
    before = _offset(first.replace(tzinfo=tz))
    after = _offset(last.replace(tzinfo=tz, fold=1))
    if before == after:
        return None
    # zoneinfo tells no transitions, but by PEP 495 this one is in (low, high], on a whole second: bisect.
    least, most = min(before, after), max(before, after)
    low, high = (first - most).replace(microsecond=0), (last - least).replace(microsecond=0)
    while (seconds := (high - low) // SECOND) > 1:
        middle = low + timedelta(seconds=seconds // 2)
        if _offset(middle.replace(tzinfo=UTC).astimezone(tz)) == before:
            low = middle
        else:
            high = middle
    return Shift(at=high, start=high + least, end=high + most, is_gap=before < after)


def _offset(local: datetime) -> timedelta:
    return cast("timedelta", local.utcoffset())
