"""What is measured: rounds of ours and of its raw limit, in turn, so that both meet the same moments of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One quantity, measured in each round.

    :ivar raw: the limit's, of the same rounds; empty where there is none
    :ivar is_rate: more is better; for times and sizes, less is
    :ivar settings: what one has to know in order to measure it again
    """

    name: str
    unit: str
    ours: tuple[float, ...]
    raw: tuple[float, ...] = ()
    is_rate: bool = True
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ratios(self) -> tuple[float, ...]:
        """How near ours comes to the limit, round by round: 1.0 is as good, less is worse."""
        pairs = zip(self.ours, self.raw, strict=False)
        return tuple(_share(ours, raw) if self.is_rate else _share(raw, ours) for ours, raw in pairs)

    @property
    def ratio(self) -> float | None:
        """The middle one of the rounds' ratios; None without a limit."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def median(self) -> float:
        return statistics.median(self.ours)

    @property
    def raw_median(self) -> float | None:
        return statistics.median(self.raw) if self.raw else None

    @property
    def spread(self) -> float:
        """How far the rounds lie apart, as a share of their median."""
        return _share(max(self.ours) - min(self.ours), self.median)

    def as_json(self) -> dict[str, Any]:
        """Give medians, extremes and settings, as JSON can hold them."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.median,
            "raw": self.raw_median,
            "ratio": self.ratio,
            "ours_min": min(self.ours),
            "ours_max": max(self.ours),
            "raw_min": min(self.raw, default=None),
            "raw_max": max(self.raw, default=None),
            "ratio_min": min(self.ratios, default=None),
            "ratio_max": max(self.ratios, default=None),
            "settings": self.settings,
        }


def compare(
    name: str,
    *,
    ours: Callable[[], float],
    raw: Callable[[], float] | None = None,
    repeat: int,
    unit: str,
    is_rate: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Figure:
    """Measure *repeat* rounds of both; every other round begins with the limit."""
    sides = {"ours": ours} if raw is None else {"ours": ours, "raw": raw}
    found = rounds(sides, repeat)
    return Figure(name, unit, found["ours"], found.get("raw", ()), is_rate, dict(settings or {}))


def rounds(sides: Mapping[str, Callable[[], T]], repeat: int) -> dict[str, tuple[T, ...]]:
    """Measure all sides in turn, *repeat* times; every other round goes backwards."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(repeat):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(sides[name]())
    return {name: tuple(values) for name, values in found.items()}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
