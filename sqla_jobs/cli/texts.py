"""Times, durations and counts, as people write and read them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

import typer

from sqla_jobs.errors import LONGEST_DELAY

_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}

_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")

_LINE: Final = 120
"""Letters of an error in a table."""

LARGEST: Final = 2**31 - 1
"""Of numbers that stand in 32 bits."""


def duration(text: str) -> timedelta:
    """Read `90s`, `15m`, `2h`, `7d` or `1d12h`."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        raise typer.BadParameter(f"{text!r} is no duration: write 90s, 15m, 2h, 7d or 1d12h")
    parts = zip(found.groups(), _UNITS.values(), strict=True)
    seconds = sum(float(number) * unit for number, unit in parts if number)
    if seconds > LONGEST_DELAY.total_seconds():
        raise typer.BadParameter(f"{text!r} is over {LONGEST_DELAY.days} days")
    return timedelta(seconds=seconds)


def instant(text: str) -> datetime:
    """Read a time of ISO 8601 with its offset from UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time: write it like 2026-03-01T06:00+01:00") from None
    if found.utcoffset() is None:
        minutes = found.isoformat(timespec="minutes")
        raise typer.BadParameter(f"{text!r} has no offset from UTC: write {minutes}Z for UTC, or {minutes}+01:00")
    return found


def ago(span: timedelta | None) -> str:
    """Write a duration in its two largest units: `1d 4h`, `2m 5s`, `0.4s`; `-` for none."""
    if span is None:
        return "-"
    seconds = abs(span.total_seconds())
    sign = "-" if span < timedelta(0) else ""
    if seconds < 10:
        return f"{sign}{seconds:.1f}s" if seconds >= 0.05 else "0s"
    left, parts = round(seconds), list[str]()
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return sign + " ".join(part for part in parts[:2] if not part.startswith("0") or len(parts) == 1)


def clock(at: datetime | None) -> str:
    """Write an instant to the second, in UTC; `-` for none."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}Z"


def counted(number: int, *, is_capped: bool = False) -> str:
    """Write a count; one that has reached its cap means at least that many."""
    return f"{number:,}+" if is_capped else f"{number:,}"


def plural(number: int, noun: str, *, is_capped: bool = False) -> str:
    """Write a count and what is counted, in a sentence."""
    return f"{'at least ' if is_capped else ''}{number:,} {noun}{'' if number == 1 else 's'}"


def line(text: str | None) -> str:
    """Cut a text to one line of a table."""
    words = " ".join((text or "").split())
    return words if len(words) <= _LINE else f"{words[: _LINE - 1]}…"
