"""What plain JSON can hold, and by which path an error names the part of a value that it can't."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

import pytest

from tests.rules.contracts import Rank, Shade, label, nested, refusal, round_trip, untyped

UNTYPED = untyped()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ((1,), "value"),
        ({1}, "value"),
        ([1, {"at": datetime(2024, 1, 1)}], "value[1].at"),
        ({"id": UUID(int=7)}, "value.id"),
        ({"a b": Decimal(1)}, "value['a b']"),
        ({"a": {1: 2}}, "value.a"),
        ([Shade.RED], "value[0]"),
        ([Rank.LOW], "value[0]"),
        ([float("nan")], "value[0]"),
        ({"a": float("-inf")}, "value.a"),
        ({"a": "x\0y"}, "value.a"),
        ({"a\0": 1}, "value['a\\x00']"),
        (["\ud800"], "value[0]"),
        ({"\udfff": 1}, "value['\\udfff']"),
        (10**5000, "value"),
        (object(), "value"),
    ],
    ids=label,
)
def test_untyped_value_that_json_would_change_is_refused(value: object, path: str) -> None:
    """Without an annotation only plain JSON passes, and the error names the path inside the argument."""
    error = refusal(UNTYPED, value)

    assert error.argument == path
    assert str(error).isprintable()


@pytest.mark.parametrize(("levels", "is_accepted"), [(64, True), (65, False), (1_000, False), (100_000, False)])
def test_nesting_over_the_limit_is_refused(levels: int, is_accepted: bool) -> None:
    """64 levels of lists and objects pass, one more does not, and a thousand do not crash."""
    value = nested(levels)

    if is_accepted:
        assert round_trip(UNTYPED, value) == value
    else:
        assert "nests deeper than 64 levels" in str(refusal(UNTYPED, value))


def test_brackets_in_text_are_no_nesting() -> None:
    """Text full of brackets and of an escaped NUL is text."""
    value = "[{" * 500 + "\\u0000"

    assert round_trip(UNTYPED, value) == value
