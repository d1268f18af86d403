"""How a job is enqueued: its key, its time, its queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqla_jobs.errors import LONGEST_DELAY, InvalidOption
from sqla_jobs.rules.registry import check_duration, check_number, check_text

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EnqueueOptions:
    """What `Handler.using(…)` says. None takes the handler's.

    :raises InvalidOption: a value is out of range, or both `run_at` and `delay` are given
    """

    key: str | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    queue: str | None = None
    max_attempts: int | None = None
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.run_at is not None and self.delay is not None:
            raise InvalidOption("give run_at (an instant) or delay (a timedelta from now), not both")
        if self.key is not None:
            check_text("key", self.key)
        if self.queue is not None:
            check_text("queue", self.queue)
        if self.max_attempts is not None:
            check_number("max_attempts", self.max_attempts, least=1)
        if self.delay is not None:
            check_duration("delay", self.delay, most=LONGEST_DELAY)
        if self.run_at is not None:
            check_instant("run_at", self.run_at)


def check_instant(what: str, value: object) -> datetime:
    """Give *value* if it is an aware datetime of the years 1970 to 9998.

    :raises InvalidOption: it is not
    """
    if not isinstance(value, datetime):
        raise InvalidOption(f"{what} is an aware datetime, and is a {type(value).__name__}: datetime(…, tzinfo=UTC)")
    if value.utcoffset() is None:
        raise InvalidOption(f"{what} is naive ({value}): give it a zone, for example datetime(…, tzinfo=UTC)")
    try:
        instant = value.astimezone(UTC)
    except OverflowError:
        instant = None
    if instant is None or not _EARLIEST <= instant < _LATEST:
        raise InvalidOption(f"{what} is from 1970 to 9998, and is {value}")
    return value
