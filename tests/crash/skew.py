"""A process whose wall clock is wrong: to be called before anything else is imported."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any


def shift_clock(seconds: float) -> None:
    """Make `time` and `datetime` of this process tell the time *seconds* from now; the monotonic clock is right."""
    real_time, real_ns = time.time, time.time_ns
    real_local, real_utc = time.localtime, time.gmtime

    def local(at: Any = None) -> time.struct_time:
        return real_local(time.time() if at is None else at)

    def utc(at: Any = None) -> time.struct_time:
        return real_utc(time.time() if at is None else at)

    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)
    time.localtime = local
    time.gmtime = utc
    _shift_datetime(dt.timedelta(seconds=seconds))


def _shift_datetime(offset: dt.timedelta) -> None:
    real: Any = dt.datetime

    class AnyDatetime(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return bool(isinstance(instance, real))

    class Shifted(real, metaclass=AnyDatetime):  # type: ignore[misc]  # the class as it was, before it is replaced
        __slots__ = ()  # of the size that compiled modules expect

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return real.now(tz) + offset

        @classmethod
        def utcnow(cls) -> Any:
            return real.now(dt.UTC).replace(tzinfo=None) + offset

        @classmethod
        def today(cls) -> Any:
            return real.now() + offset

    setattr(dt, "datetime", Shifted)  # noqa: B010  # no type checker lets a class be assigned
