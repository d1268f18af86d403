from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest

from sqla_jobs.operations.stats import Stats
from sqla_jobs.prometheus.figures import TABLE, Figure
from tests.prometheus.shop import Figures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

NOTHING = Stats(
    at=datetime(2026, 1, 1, tzinfo=UTC),
    cap=10,
    lanes=(),
    lanes_left_out=False,
    attempts={},
    expired_last_hour=0,
    leases_over=0,
    failed={},
    dead={},
    oldest_running=None,
    schedules=None,
    oldest_transaction=None,
    capped=frozenset(),
)


def test_attempts_are_few_groups() -> None:
    """A job that may be tried a thousand times brings no series of its own for each number of attempts."""
    page = read(replace(NOTHING, attempts={0: 7, 5: 1, 9: 2, 10: 3, 500: 4}))

    found = {name: page("sqla_jobs_unfinished", attempts=name) for name in ("0", "1", "4", "5-9", "10+")}

    assert found == {"0": [7], "1": [0], "4": [0], "5-9": [3], "10+": [7]}
    assert len(page("sqla_jobs_unfinished")) == 7


def test_parts_that_reached_their_cap_are_named() -> None:
    """Whatever means "at least" is named, more queues and types than are shown too."""
    page = read(replace(NOTHING, capped=frozenset({"dead", "due"}), lanes_left_out=True))

    assert [page("sqla_jobs_capped", part=part) for part in ("dead", "due", "lanes", "later")] == [[1], [1], [1], []]


def test_what_is_not_known_is_absent() -> None:
    """Nothing is shown as zero that nobody has counted: ages where there is no job, schedules where there are none."""
    page = read(NOTHING)

    assert [family.name for family in page.families if family.samples] == [
        "sqla_jobs_unfinished",
        "sqla_jobs_expired_last_hour",
        "sqla_jobs_leases_over",
    ]


def test_label_with_text_that_is_no_utf8() -> None:
    """A name of a queue with quotes, line breaks or half a character spoils no page."""
    figure: Figure[str] = Figure("odd", "gauge", "Odd.", ("queue",), lambda name: [((name,), 1)])

    text = generate_latest(Fixed(figure.family("shop", 'a"\n\\\ud800'))).decode()

    assert Figures(text)("odd", queue='a"\n\\\\ud800') == [1]


class Fixed:
    """A collector of what it is given."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def read(stats: Stats) -> Figures:
    families: list[Any] = [figure.family("shop", stats) for figure in TABLE]
    return Figures(generate_latest(Fixed(*families)).decode())
