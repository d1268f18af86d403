"""A value comes back as it was, or is refused with its path."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SecretStr

from sqla_jobs.errors import PayloadTooLarge
from sqla_jobs.rules.json_values import JsonValue
from sqla_jobs.rules.payload import Arguments
from tests.rules.contracts import (
    Aliased,
    Colour,
    Customer,
    DriverUUID,
    Hidden,
    Identity,
    Line,
    Open,
    Order,
    OrderId,
    Point,
    Private,
    Rank,
    Shade,
    SpecialLine,
    label,
    refusal,
    round_trip,
    taking,
    untyped,
)

ROUND_TRIPS: list[tuple[object, object]] = [
    (datetime, datetime(2024, 2, 29, 12, 30, 1, 5)),
    (datetime, datetime(2024, 2, 29, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    (date, date(1, 1, 1)),
    (time, time(23, 59, 59, 999999)),
    (timedelta, timedelta.max),
    (timedelta, timedelta(days=-1, microseconds=-3)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("-1.10E+5")),
    (Colour, Colour.BLUE),
    (Rank, Rank.LOW),
    (Shade, Shade.RED),
    (bytes, b"\xff\x00"),
    (bytes | None, None),
    (list[bytes], [b"\xff"]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2)),
    (Point, Point(1, "a")),
    (set[int], {1, 2}),
    (frozenset[Colour], frozenset({Colour.RED})),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[Colour, int], {Colour.RED: 1}),
    (dict[date, int], {date(2024, 1, 1): 1}),
    (Literal["a", 1], 1),
    (int | str, "1"),
    (int | float, 1.0),
    (bool | int, True),
    (date | None, date(2024, 1, 1)),
    (OrderId, 7),
    (Annotated[int, Field(ge=1)], 7),
    (int, 2**70),
    (Order, Order([Line("a", 1.5, {"deep": [None]})])),
    (Identity | None, None),
    (list[Line], [Line("a", 1.0)]),
    (Customer, Customer(name="Ada", born=date(1815, 12, 10))),
    (Aliased, Aliased(outer=1)),
    (Open, Open.model_validate({"more": [1]})),
    (JsonValue, {"a": [1, 2.5, None, True, "x"]}),
    (list, [1, "a"]),
    (str, "back\\u0000slash is no NUL"),
]


@pytest.mark.parametrize(("hint", "value"), ROUND_TRIPS, ids=label)
def test_value_of_annotated_type_comes_back_equal(hint: object, value: object) -> None:
    """An annotated value comes back equal and of the same type, through JSON text."""
    arguments = taking(hint)

    back = round_trip(arguments, value)

    assert back == value
    assert type(back) is type(value)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OFFSETS = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TYPED: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(timezones=OFFSETS),
    time: st.times(),
    timedelta: st.timedeltas(),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    bytes: st.binary(),
    tuple[int, str | None]: st.tuples(st.integers(), st.none() | TEXT),
    frozenset[date]: st.frozensets(st.dates()),
    dict[int, list[float]]: st.dictionaries(
        st.integers(), st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3), max_size=3
    ),
    Order: st.builds(Order, st.lists(st.builds(Line, TEXT, st.floats(0, 9), JSON), max_size=2)),
    Any: JSON,
}
CONTRACTS = [(taking(hint), values) for hint, values in TYPED.items()]


@given(st.data())
def test_any_value_of_the_annotated_type_comes_back_equal(data: st.DataObject) -> None:
    """Whatever a supported type can hold is accepted, and the handler gets it back unchanged."""
    arguments, values = data.draw(st.sampled_from(CONTRACTS))
    value = data.draw(values)

    back = round_trip(arguments, value)

    assert back == value
    assert type(back) is type(value)


def test_datetime_in_repeated_hour_keeps_its_instant() -> None:
    """The second 02:30 of the night when the clocks go back is still the second one."""
    second = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Zurich"))

    back = round_trip(taking(datetime), second)

    assert back.timestamp() == second.timestamp()
    assert back.utcoffset() == timedelta(hours=1)


def test_datetime_with_seconds_in_its_offset_is_refused() -> None:
    """An offset that the JSON text would round is an error, not another instant."""
    old: tzinfo = ZoneInfo("Europe/Amsterdam")

    error = refusal(taking(datetime), datetime(1900, 1, 1, tzinfo=old))

    assert "come back from JSON with another value" in str(error)


def test_uuid_of_driver_class_is_stored_as_uuid() -> None:
    """An id as the driver hands it out, of a subclass of UUID, can be passed on."""
    back = round_trip(taking(UUID), DriverUUID(int=7))

    assert back == UUID(int=7)


@pytest.mark.parametrize(
    ("hint", "value", "given_type"),
    [
        (int, "5", "a str"),
        (int, True, "a bool"),
        (int, 5.0, "a float"),
        (bool, 1, "an int"),
        (str, 5, "an int"),
        (datetime, "2024-01-01T00:00:00", "a str"),
        (Decimal, "1.5", "a str"),
        (UUID, "00000000-0000-0000-0000-000000000007", "a str"),
        (date, datetime(2024, 1, 1), "a datetime"),
        (tuple[int, ...], [1], "a list"),
        (list[int], (1,), "a tuple"),
        (Colour, "red", "a str"),
        (Customer, {"name": "Ada"}, "a dict"),
        (Line, {"sku": "a", "price": 1.0}, "a dict"),
        (int | None, "5", "a str"),
    ],
    ids=label,
)
def test_dump_of_another_type_is_refused(hint: object, value: object, given_type: str) -> None:
    """Nothing is converted on the way in: the error names the argument and the type that was given."""
    error = refusal(taking(hint), value)

    assert error.argument == "value"
    assert error.handler == "handler"
    assert f"argument 'value' of handler 'handler' is {given_type}" in str(error)


@pytest.mark.parametrize(
    ("hint", "value", "path"),
    [
        (Order, Order([Line("a", 1.0), Line("b", 1.0), Line("c", "free")]), "value.lines[2].price"),  # type: ignore[arg-type]
        (Order, Order([Line("a", 1.0, (1, 2))]), "value.lines[0].note"),
        (Order, Order([Line("a", 1.0, object())]), "value.lines[0].note"),
        (Order, Order([Line("a", float("nan"))]), "value.lines[0].price"),
        (Order, Order([Line("a\0", 1.0)]), "value.lines[0].sku"),
        (Order, Order([SpecialLine("a", 1.0)]), "value.lines[0]"),
        (list[Any], [[], [(1,)]], "value[1][0]"),
        (dict[str, list[int]], {"a": [1, "2"]}, "value.a[1]"),
        (list[int | str], [1, None], "value[1]"),
        (Customer, Customer.model_construct(name=5), "value.name"),
        (Customer, Customer(name="a", ratio=float("inf")), "value.ratio"),
        (Customer, Customer(name="a", raw=b"\xff"), "value"),
        (Hidden, Hidden(shown=1, secret=2), "value.secret"),
        (SecretStr, SecretStr("hunter2"), "value"),
        (datetime | str, "2024-01-01T00:00:00", "value"),
        (Shade | str, Shade.RED, "value"),
        (Decimal, Decimal("NaN"), "value"),
        (Decimal, Decimal("Infinity"), "value"),
        (list[float], [1.0, float("inf")], "value[1]"),
        (float, 2**53 + 1, "value"),
        (list[float], [1, 2**53 + 1], "value[1]"),
        (dict[str, list[Customer]], {"a": [{"name": "Ada"}]}, "value.a[0]"),
        (list[str], ["a", "\0"], "value[1]"),
        (str, "\ud800", "value"),
        (Callable[[], None], print, "value"),
    ],
    ids=label,
)
def test_typed_value_that_would_not_come_back_is_refused(hint: object, value: object, path: str) -> None:
    """A value that fits its annotation but would be lost or changed is refused, by its path."""
    error = refusal(taking(hint), value)

    assert error.argument == path


def test_private_attribute_of_model_that_would_be_lost_is_refused() -> None:
    """A model whose private state JSON would drop does not come back equal, so it is refused."""
    model = Private(shown=1)
    model.remember(5)

    error = refusal(taking(Private), model)

    assert error.argument == "value._cache"


def test_int_in_float_field_of_dataclass_is_accepted() -> None:
    """A dataclass that was filled with 1 where it says float comes back equal."""
    assert round_trip(taking(Line), Line("a", 1)) == Line("a", 1)


@pytest.mark.parametrize("arguments", [untyped(), taking(list[Any]), taking(JsonValue)], ids=["none", "Any", "Json"])
def test_list_that_holds_itself_is_refused(arguments: Arguments) -> None:
    """A self-referencing list is an error at enqueue, not a crash of the interpreter."""
    value: list[object] = []
    value.append(value)

    error = refusal(arguments, value)

    assert "refers to itself" in str(error)
    assert (error.argument or "").startswith("value")


def test_typed_nesting_over_the_limit_is_refused() -> None:
    """The limit on nesting holds inside dataclasses too."""
    value: Any = None
    for _ in range(300):
        value = Line("a", 1.0, [value])

    error = refusal(taking(Line), value)

    assert "nests" in str(error)


def test_payload_over_the_limit_names_the_largest_argument() -> None:
    """The error of an oversize payload says which argument is large, how large, and what to do instead."""

    def handler(a: str, b: str) -> None: ...

    arguments = Arguments(handler, name="handler", skip_first=False, max_bytes=100)

    with pytest.raises(PayloadTooLarge) as caught:
        arguments.dump(("x" * 10, "é" * 60), {})

    assert caught.value.argument == "b"
    assert "the largest is 'b' with 122" in str(caught.value)
    assert "over the limit of 100" in str(caught.value)
    assert "store it in a table and pass its id" in str(caught.value)


def test_payload_of_exactly_the_limit_is_accepted() -> None:
    """The limit counts the bytes of the compact UTF-8 JSON, and is itself allowed."""
    size = len(b'{"value":"\xc3\xa9"}')

    def handler(value: str) -> None: ...

    stored = Arguments(handler, name="handler", skip_first=False, max_bytes=size).dump(("é",), {})

    assert stored == {"value": "é"}
    with pytest.raises(PayloadTooLarge):
        Arguments(handler, name="handler", skip_first=False, max_bytes=size - 1).dump(("é",), {})
