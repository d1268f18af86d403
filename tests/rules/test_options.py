from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from sqla_jobs.errors import LONGEST_DELAY, InvalidOption
from sqla_jobs.rules.options import EnqueueOptions, check_instant

EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))


def test_options_are_empty_when_nothing_is_given() -> None:
    """What is not given is left to the handler."""
    options = EnqueueOptions()

    assert (options.key, options.delay, options.run_at, options.queue, options.max_attempts) == (None,) * 5
    assert options.columns == {}


@pytest.mark.parametrize(
    "values",
    [
        {"key": "k"},
        {"key": "k" * 255},
        {"key": "ü€😀" * 85},
        {"key": " k "},
        {"key": "\x01"},
        {"delay": timedelta(0)},
        {"delay": timedelta(microseconds=1)},
        {"delay": LONGEST_DELAY},
        {"run_at": datetime(1970, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
        {"run_at": datetime(1970, 1, 1, 14, tzinfo=EAST)},
        {"run_at": datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"), fold=1)},
        {"queue": "mail"},
        {"max_attempts": 1},
        {"max_attempts": 2**31 - 1},
    ],
    ids=str,
)
def test_options_within_their_ranges_are_kept_as_given(values: dict[str, Any]) -> None:
    """What is in range is kept, never cut short and never converted."""
    options = EnqueueOptions(**values)

    (name,) = values
    assert getattr(options, name) == values[name]


class NoOffset(datetime):
    def utcoffset(self) -> None:
        return None


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("key", "", "empty"),
        ("key", "k" * 256, "256 characters, and at most 255"),
        ("key", "k" * 10_000, "10000 characters"),
        ("key", "a\x00b", "NUL"),
        ("key", "\ud800", "surrogate"),
        ("key", 7, "is a int"),
        ("key", b"k", "is a bytes"),
        ("queue", "", "empty"),
        ("queue", "q" * 256, "at most 255"),
        ("queue", "a\x00b", "NUL"),
        ("queue", 7, "is a str"),
        ("max_attempts", 0, "from 1"),
        ("max_attempts", -1, "from 1"),
        ("max_attempts", 2**31, "from 1"),
        ("max_attempts", True, "is an int"),
        ("max_attempts", 2.5, "is an int"),
        ("max_attempts", "5", "is an int"),
        ("delay", timedelta(seconds=-5), "from 0"),
        ("delay", timedelta(microseconds=-1), "from 0"),
        ("delay", LONGEST_DELAY + timedelta(microseconds=1), "from 0"),
        ("delay", timedelta.max, "from 0"),
        ("delay", 5, r"timedelta\(seconds=…\)"),
        ("delay", 5.0, r"timedelta\(seconds=…\)"),
        ("delay", float("nan"), r"timedelta\(seconds=…\)"),
        ("delay", "5s", r"timedelta\(seconds=…\)"),
        ("run_at", datetime(2024, 1, 1), r"naive .*tzinfo=UTC"),
        ("run_at", NoOffset(2024, 1, 1, tzinfo=UTC), r"naive .*tzinfo=UTC"),
        ("run_at", date(2024, 1, 1), "is a date"),
        ("run_at", "2024-01-01T00:00:00Z", "is a str"),
        ("run_at", 1704067200, "is a int"),
        ("run_at", datetime.max.replace(tzinfo=UTC), "from 1970 to 9998"),
        ("run_at", datetime.max.replace(tzinfo=EAST), "from 1970 to 9998"),
        ("run_at", datetime.max.replace(tzinfo=WEST), "from 1970 to 9998"),
        ("run_at", datetime.min.replace(tzinfo=UTC), "from 1970 to 9998"),
        ("run_at", datetime.min.replace(tzinfo=EAST), "from 1970 to 9998"),
        ("run_at", datetime(1970, 1, 1, tzinfo=EAST), "from 1970 to 9998"),
    ],
)
def test_option_out_of_range_is_refused_with_the_remedy(name: str, value: Any, says: str) -> None:
    """What no database could store, or what is a mistake, is a `ValueError` that names the option, before any SQL."""
    with pytest.raises(InvalidOption, match=says) as caught:
        EnqueueOptions(**{name: value})

    assert name in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_run_at_and_delay_together_are_refused() -> None:
    """There is one time at which a job is due."""
    with pytest.raises(InvalidOption, match="not both"):
        EnqueueOptions(run_at=datetime(2024, 1, 1, tzinfo=UTC), delay=timedelta(seconds=5))


def test_check_instant_names_what_it_checked() -> None:
    """The error says which value was wrong, by the name that the caller knows."""
    with pytest.raises(InvalidOption, match="starts_at is naive"):
        check_instant("starts_at", datetime(2024, 1, 1))
