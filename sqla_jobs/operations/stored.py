"""What statements give as text and numbers, since no driver loads every value that plain SQL can write."""

from __future__ import annotations

import json
from datetime import UTC, datetime


def instant(seconds: float | None) -> datetime | None:
    """Give the instant; None for what no datetime can hold, such as 'infinity'."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError):
        return None


_decode = json.JSONDecoder(parse_constant=lambda _: None).decode  # made once: `json.loads` would make one each time


def parsed(value: object) -> object:
    """Give JSON as Python data. Text that is no JSON, or too much for Python, gives None, which fits no handler."""
    if not isinstance(value, str | bytes):
        return None
    try:
        return _decode(value if isinstance(value, str) else value.decode())
    except (ValueError, RecursionError):
        return None
