from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.cli.texts import ago, clock, counted, duration, instant, line, plural


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604800), ("1d12h", 129600), ("0.5s", 0.5), (" 1H30M ", 5400)],
)
def test_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    """Days, hours, minutes and seconds, in that order."""
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "1.5h", "-5m", "5m2h", "5 minutes", "9999d", "1h1h"])
def test_what_is_no_duration_is_refused_with_the_remedy(text: str) -> None:
    """A number without its unit is no duration: nobody can tell what was meant."""
    with pytest.raises(typer.BadParameter, match=r"is no duration: write 90s, 15m, 2h, 7d or 1d12h|over 3650 days"):
        duration(text)


def test_instant_needs_its_offset() -> None:
    """A bare time is of nobody knows which zone."""
    assert instant("2026-03-01T06:00+01:00") == datetime(2026, 3, 1, 5, tzinfo=UTC)
    assert instant("2026-03-01T06:00Z") == datetime(2026, 3, 1, 6, tzinfo=UTC)
    with pytest.raises(typer.BadParameter, match=r"write 2026-03-01T06:00Z for UTC, or 2026-03-01T06:00\+01:00"):
        instant("2026-03-01T06:00")
    with pytest.raises(typer.BadParameter, match="2026-03-01T00:00Z for UTC"):
        instant("2026-03-01")
    with pytest.raises(typer.BadParameter, match="is no time: write it like"):
        instant("yesterday")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (0.01, "0s"), (4.26, "4.3s"), (59.7, "1m"), (61, "1m 1s"), (3600, "1h"), (3661, "1h 1m")),
        *((86400, "1d"), (100_000, "1d 3h"), (86400 * 400 + 59, "400d"), (-5, "-5.0s")),
    ],
)
def test_span_is_written_in_its_two_largest_units(seconds: float, text: str) -> None:
    """Whoever is on call wants to know the size of it."""
    assert ago(timedelta(seconds=seconds)) == text


@given(st.timedeltas(timedelta(seconds=10), timedelta(days=3000)))
def test_written_span_is_read_again(span: timedelta) -> None:
    """What is printed can be typed as an option; only what is smaller than its second unit is lost."""
    read = duration(ago(span).replace(" ", ""))

    assert abs(read - span) <= max(timedelta(seconds=1), span / 24)


def test_what_is_not_there_is_a_dash() -> None:
    """Times and spans that the row hasn't, or that no datetime can hold."""
    assert (ago(None), clock(None)) == ("-", "-")
    assert clock(datetime(2026, 3, 1, 5, 6, 7, 999, tzinfo=UTC)) == "2026-03-01 05:06:07Z"


def test_capped_count_says_so() -> None:
    """A count that has reached its cap means at least that many."""
    assert (counted(9999), counted(10_000, is_capped=True)) == ("9,999", "10,000+")
    assert (plural(1, "job"), plural(10_000, "job", is_capped=True)) == ("1 job", "at least 10,000 jobs")


def test_long_text_is_cut_to_a_line() -> None:
    """Rows of tables stay rows."""
    assert line("a\n b\t c") == "a b c"
    assert line("x" * 500) == "x" * 119 + "…"
    assert line(None) == ""
