"""What a job carries comes back as it was, or is refused at enqueue by name."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, SecretStr
from pydantic_core import CoreSchema, core_schema
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs.errors import PayloadError, PayloadTooLarge
from sqla_jobs.rules.json_values import JsonValue
from sqla_jobs.rules.payload import Arguments, to_json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Shade(str, Enum):  # noqa: UP042 - the older spelling is what apps have
    RED = "red"


class Rank(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: str


@dataclass
class Line:
    sku: str
    price: float
    note: Any = None


@dataclass(frozen=True, slots=True)
class Order:
    lines: list[Line]


@dataclass
class SpecialLine(Line):
    gift: bool = True


@dataclass(eq=False)
class Identity:
    number: int


class Customer(BaseModel):
    name: str
    born: date | None = None
    ratio: float = 0.0
    raw: bytes = b""


class Aliased(BaseModel):
    inner: int = Field(alias="outer")


class Hidden(BaseModel):
    shown: int
    secret: int = Field(default=0, exclude=True)


class Private(BaseModel):
    shown: int
    _cache: int = PrivateAttr(default=0)

    def remember(self, number: int) -> None:
        self._cache = number


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class DriverUUID(UUID):
    """Stands for asyncpg's own UUID class."""


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)


OrderId = NewType("OrderId", int)


def label(each: object) -> str:
    """Name a test's parameter, the same in every process; a huge int has no text."""
    return "huge" if isinstance(each, int) and each > 2**99 else ascii(each).partition(" at 0x")[0][:40]


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def taking(hint: object) -> Arguments:
    """Build the contract of a handler with one parameter `value` of that type."""

    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": hint}
    return Arguments(handler, name="handler", skip_first=False)


def untyped() -> Arguments:
    def handler(value: Any) -> None: ...

    del handler.__annotations__["value"]
    return Arguments(handler, name="handler", skip_first=False)


def round_trip(arguments: Arguments, value: object) -> Any:
    """Send *value* through enqueue, the text in the database, and the worker."""
    stored = json.dumps(arguments.dump((), {"value": value}))
    return arguments.load(json.loads(stored))["value"]


def refusal(arguments: Arguments, value: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        arguments.dump((), {"value": value})
    return caught.value


def receipt(session: Any, order_id: int, copies: int = 1, *, to: str = "me") -> None: ...


RECEIPT = Arguments(receipt, name="receipt", skip_first=True)

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


@pytest.mark.parametrize(
    ("args", "kwargs", "argument", "text"),
    [
        ((), {}, "order_id", "argument 'order_id' of handler 'receipt' is missing"),
        ((), {"order_id": 1, "copie": 2}, "copie", "did you mean 'copies'?"),
        ((), {"order_id": 1, "session": 2}, "session", "does not exist"),
        ((1,), {"order_id": 1}, "order_id", "given by place and by name"),
        ((1, 2, "you"), {}, None, "at most 2 arguments without a name, not 3"),
    ],
)
def test_dump_that_does_not_fit_the_signature_names_the_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], argument: str | None, text: str
) -> None:
    """Arguments bind as in a call, and a call that would fail fails at enqueue."""
    with pytest.raises(PayloadError) as caught:
        RECEIPT.dump(args, kwargs)

    assert caught.value.argument == argument
    assert text in str(caught.value)


def test_dump_by_place_is_stored_by_name() -> None:
    """What was passed by place is stored under its name."""
    assert RECEIPT.dump((7, 2), {"to": "you"}) == {"order_id": 7, "copies": 2, "to": "you"}


def test_default_that_was_not_given_is_not_stored() -> None:
    """A default is left to the function as it is when the job runs, Field(default=…) included."""

    def handler(value: int, other: Annotated[int, Field(default=3)] = 4, third: date = date(2024, 1, 1)) -> None: ...

    stored = Arguments(handler, name="handler", skip_first=False).dump((Rank.LOW,), {})

    assert stored == {"value": 1}
    assert Arguments(handler, name="handler", skip_first=False).load(stored) == {"value": 1}


def test_stored_payload_is_not_shared_with_the_caller() -> None:
    """A list changed after enqueue does not change the job."""
    value = [1]
    stored = untyped().dump((value,), {})

    value.append(2)

    assert stored == {"value": [1]}


@pytest.mark.parametrize(
    ("payload", "argument", "text"),
    [
        ({}, "order_id", "is missing"),
        ({"order_id": 1, "gone": 2}, "gone", "does not exist"),
        ({"order_id": "7"}, "order_id", "is a str that its annotation does not allow"),
        ({"order_id": None}, "order_id", "other code stored the job"),
        ({"order_id": 1, "a" * 99: 2}, "a" * 99, "does not exist"),
        ([], None, "is a list, not an object"),
        ("{}", None, "is a str, not an object"),
        (None, None, "is a NoneType, not an object"),
    ],
)
def test_load_of_payload_of_another_signature_names_the_argument(
    payload: object, argument: str | None, text: str
) -> None:
    """A job stored for another version of the handler fails with a text that names the argument."""
    with pytest.raises(PayloadError) as caught:
        RECEIPT.load(payload)

    assert caught.value.argument == argument
    assert text in str(caught.value)


def test_load_of_broken_value_names_the_path() -> None:
    """A field that is missing deep inside a stored argument is named by its path."""
    with pytest.raises(PayloadError) as caught:
        taking(Order).load({"value": {"lines": [{"sku": "a", "price": 1.0}, {"sku": "b"}]}})

    assert caught.value.argument == "value.lines[1].price"


def test_load_after_the_limit_was_lowered_succeeds() -> None:
    """The size limit is one of enqueue: what is stored can be run."""
    arguments = Arguments(receipt, name="receipt", skip_first=True, max_bytes=1)

    assert arguments.load({"order_id": 10**9}) == {"order_id": 10**9}


def test_dump_some_takes_a_part_of_the_arguments() -> None:
    """An assertion on stored jobs may name some arguments, and converts them as enqueue does."""

    def handler(at: date, number: int) -> None: ...

    arguments = Arguments(handler, name="handler", skip_first=False)

    assert arguments.dump_some({"at": date(2024, 1, 1)}) == {"at": "2024-01-01"}
    assert arguments.dump_some({}) == {}
    with pytest.raises(PayloadError, match="did you mean 'number'"):
        arguments.dump_some({"numbers": 1})


def shout(value: str) -> str:
    raise ValueError(f"{value} is not allowed")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, "hunter2"),
        (Annotated[str, AfterValidator(shout)], "hunter2"),
        (Annotated[str, BeforeValidator(shout)], "hunter2"),
        (Annotated[str, Field(max_length=3)], "hunter2"),
        (Literal["a"], "hunter2"),
        (list[int], ["hunter2"]),
        (dict[str, int], {"a": "hunter2"}),
        (Line, Line("a", "hunter2")),  # type: ignore[arg-type]
        (Any, {"a": "hunter2\0"}),
        (str, "hunter2\ud800"),
        (Customer, Customer.model_construct(name="a", born="hunter2")),
    ],
    ids=label,
)
def test_error_text_never_holds_the_value(hint: object, value: object) -> None:
    """No error text, nor that of any error behind it, quotes what was passed: it may be a secret."""
    with pytest.raises(PayloadError) as caught:
        taking(hint).dump((), {"value": value})

    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        assert "input_value" not in str(error)
        error = error.__cause__ or error.__context__


def test_error_of_loaded_value_never_holds_the_value() -> None:
    """The error of a stored value does not quote it either, whatever parser refused it."""
    for hint in (datetime, UUID, Decimal, date, timedelta, bytes, Colour):
        with pytest.raises(PayloadError) as caught:
            taking(hint).load({"value": "hunter2 é"})

        assert "hunter2" not in str(caught.value)
        assert caught.value.__context__ is None


class Counted:
    built = 0

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        cls.built += 1
        return core_schema.int_schema()


def test_check_builds_once_when_many_threads_arrive_together() -> None:
    """Workers' threads that meet at a new handler build its contract once."""
    taking(Counted).check()
    once, Counted.built = Counted.built, 0
    arguments = taking(Counted)
    barrier = threading.Barrier(8)

    def arrive() -> None:
        barrier.wait(timeout=10)
        arguments.check()

    threads = [threading.Thread(target=arrive) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)

    assert not any(thread.is_alive() for thread in threads)
    assert Counted.built == once


def test_import_needs_no_pydantic() -> None:
    """Pydantic is loaded with the first contract, not with the module."""
    source = (
        "import sys; from sqla_jobs.rules.payload import Arguments\n"
        "Arguments(lambda a: None, name='h', skip_first=False)\n"
        "assert 'pydantic' not in sys.modules and 'pydantic_core' not in sys.modules"
    )

    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr


@dataclass
class Report:
    at: date
    rows: tuple[int, ...] = field(default=(1, 2))


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, None),
        (5, 5),
        ({"a": [1, None]}, {"a": [1, None]}),
        (Report(date(2024, 1, 1)), {"at": "2024-01-01", "rows": [1, 2]}),
        (Customer(name="Ada", raw=b"a"), {"name": "Ada", "born": None, "ratio": 0.0, "raw": "a"}),
        ((Colour.RED, UUID(int=7)), ["red", "00000000-0000-0000-0000-000000000007"]),
        (b"\xff", "_w=="),
    ],
    ids=label,
)
def test_to_json_of_return_value_is_its_plain_form(value: object, result: object) -> None:
    """What a handler returns is stored as JSON that a reader would expect."""
    assert to_json(value, max_bytes=1000) == result


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ([1, float("nan")], ValueError, "'result[1]' is NaN or infinite"),
        ({"a": "\0"}, ValueError, "'result.a' holds a NUL character"),
        ({"a": "\ud800"}, ValueError, "surrogate"),
        ("x" * 999, ValueError, "1001 bytes of JSON, over the limit of 1000"),
        ({"a": object()}, TypeError, "holds an object"),
        (Invoice(id=1), TypeError, "holds an Invoice"),
        (10**5000, ValueError, "digits"),
        (nested(65), ValueError, "64 levels"),
        (nested(900), ValueError, "nests"),
    ],
    ids=label,
)
def test_to_json_of_what_cannot_be_stored_says_why(value: object, kind: type[Exception], text: str) -> None:
    """A return value that can't be stored is an error with its path, not a broken row."""
    with pytest.raises(kind) as caught:
        to_json(value, max_bytes=1000)

    assert text in str(caught.value)


def test_to_json_of_list_that_holds_itself_is_refused() -> None:
    """A self-referencing return value is an error, not a crash."""
    value: list[object] = []
    value.append(value)

    with pytest.raises(ValueError, match="refers to itself"):
        to_json(value, max_bytes=1000)
