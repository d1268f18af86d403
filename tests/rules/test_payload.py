"""What a job carries comes back as it was, or is refused at enqueue by name."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import CoreSchema, core_schema

from sqla_jobs.errors import PayloadError
from sqla_jobs.rules.payload import Arguments, to_json
from tests.rules.contracts import (
    RECEIPT,
    Colour,
    Customer,
    Invoice,
    Line,
    Order,
    Rank,
    label,
    nested,
    receipt,
    taking,
    untyped,
)


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
