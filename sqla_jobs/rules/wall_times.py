"""The wall times that a cron text matches: some days, and on each of them the same times of the day.

No zones here: datetimes are naive, of whole seconds. A time of the day is known by its rank, the number of matching
times of the day that are earlier, so that counting needs no stepping.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MINYEAR, date, datetime, timedelta
from itertools import pairwise

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class WallTimes:
    """What matches. All values are sorted, and none is empty.

    :ivar days: the days of a month as bits, for each length from 28 to 31 and weekday of the first from Monday
    :ivar repeats: where a wall time comes twice, both count
    """

    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]
    months: tuple[int, ...]
    days: tuple[int, ...]
    repeats: bool

    @property
    def per_day(self) -> int:
        """How many times a matching day has."""
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def first_from(self, wall: datetime) -> datetime:
        """Give the first match from *wall* on.

        :raises OverflowError: it is after the year 9999
        """
        day, rank = wall.date(), self.rank(wall)
        if rank < self.per_day and self.has_day(day):
            return self._at(day, rank)
        return self._at(next(self.days_between(day + _DAY, date.max), None), 0)

    def last_before(self, wall: datetime) -> datetime:
        """Give the last match before *wall*.

        :raises OverflowError: it is before the year 1
        """
        day, rank = wall.date(), self.rank(wall)
        if rank > 0 and self.has_day(day):
            return self._at(day, rank - 1)
        return self._at(self._last_day(day - _DAY), self.per_day - 1)

    def count(self, start: datetime, end: datetime) -> int:
        """Count the matches from *start* to before *end*. It steps by days."""
        whole = sum(1 for _ in self.days_between(start.date(), end.date() - _DAY))
        first, last = (self.rank(wall) if self.has_day(wall.date()) else 0 for wall in (start, end))
        return whole * self.per_day + last - first

    def rank(self, wall: datetime) -> int:
        """Give the number of matching times of a day that are before the time of *wall*."""
        rank, is_exact = 0, True
        for values, value in ((self.hours, wall.hour), (self.minutes, wall.minute), (self.seconds, wall.second)):
            place = bisect_left(values, value) if is_exact else 0
            rank = rank * len(values) + place
            is_exact = is_exact and place < len(values) and values[place] == value
        return rank

    def has_day(self, day: date) -> bool:
        """Tell whether *day* matches."""
        return day.month in self.months and self._bits(day.year, day.month) >> day.day & 1 == 1

    def days_between(self, first: date, last: date) -> Iterator[date]:
        """Give the days from *first* to *last* that match."""
        for year in range(first.year, last.year + 1):
            for month in self.months:
                if (year, month) < (first.year, first.month):
                    continue
                bits = self._bits(year, month)
                if (year, month) == (first.year, first.month):
                    bits = bits >> first.day << first.day
                while bits:
                    day = date(year, month, (bits & -bits).bit_length() - 1)
                    if day > last:
                        return
                    yield day
                    bits &= bits - 1

    @property
    def shortest_gap(self) -> timedelta:
        """The least time from one match to the next, as if every day matched."""
        second = self.seconds[-1] - self.seconds[0]
        minute = (self.minutes[-1] - self.minutes[0]) * 60 + second
        hour = (self.hours[-1] - self.hours[0]) * 3600 + minute
        units = ((self.seconds, 1, 0), (self.minutes, 60, second), (self.hours, 3600, minute))
        gaps = [(later - earlier) * unit - used for values, unit, used in units for earlier, later in pairwise(values)]
        return timedelta(seconds=min([86_400 - hour, *gaps]))

    def _last_day(self, last: date) -> date | None:
        for year in range(last.year, MINYEAR - 1, -1):
            for month in reversed(self.months):
                if (year, month) > (last.year, last.month):
                    continue
                bits = self._bits(year, month)
                if (year, month) == (last.year, last.month):
                    bits &= (2 << last.day) - 1
                if bits:
                    return date(year, month, bits.bit_length() - 1)
        return None

    def _bits(self, year: int, month: int) -> int:
        weekday, length = monthrange(year, month)
        return self.days[(length - 28) * 7 + weekday]

    def _at(self, day: date | None, rank: int) -> datetime:
        if day is None:
            raise OverflowError("no day that matches")
        rank, second = divmod(rank, len(self.seconds))
        hour, minute = divmod(rank, len(self.minutes))
        return datetime(day.year, day.month, day.day, self.hours[hour], self.minutes[minute], self.seconds[second])  # noqa: DTZ001  # a wall time
