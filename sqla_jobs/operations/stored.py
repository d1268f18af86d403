"""What statements give as text and numbers, since no driver loads every value that plain SQL can write."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache

from sqla_jobs.schema.types import Garbled


@lru_cache(maxsize=128)  # all jobs of a claim were started at one instant
def instant(seconds: float | None) -> datetime | None:
    """Give the instant; None for what no datetime can hold, such as 'infinity'."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError):
        return None


_decode = json.JSONDecoder(parse_constant=lambda _: None).decode  # made once: `json.loads` would make one each time


def parsed(value: object) -> object:
    """Give JSON as Python data. Text that is no JSON, or too much for Python, gives None, which fits no handler."""
    if not isinstance(value, str | bytes) or isinstance(value, Garbled):
        return None
    try:
        return _decode(value if isinstance(value, str) else value.decode())
    except (ValueError, RecursionError):
        return None


_TRUTHS = {"1": True, "true": True, "t": True, "0": False, "false": False, "f": False}


def truth(text: str | None) -> bool | None:
    """Give what a boolean that was cast to text says; None for what is none, since SQLite stores anything anywhere."""
    return _TRUTHS.get((text or "").lower())


def whole(value: object, otherwise: int) -> int:
    """Give a count, or *otherwise* for what is none: SQLite stores any type anywhere, and NumPy's ints as bytes."""
    return int(value) if isinstance(value, int | float) and abs(value) < 2**63 else otherwise
