"""Which functions a payload can fill, and how their annotations are found."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs.errors import InvalidHandler, PayloadError
from sqla_jobs.rules.payload import Arguments

if TYPE_CHECKING:
    from email.message import EmailMessage


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)


def positional_only(order_id: int, /) -> None: ...
def star_args(*ids: int) -> None: ...
def star_kwargs(**options: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (positional_only, "remove the `/`"),
        (star_args, "takes `*ids: "),
        (star_kwargs, "name the arguments"),
    ],
)
def test_signature_that_no_payload_fits_is_refused_at_once(function: Callable[..., Any], text: str) -> None:
    """Parameters without a name of their own are refused when the handler is declared."""
    with pytest.raises(InvalidHandler) as caught:
        Arguments(function, name="handler", skip_first=False)

    assert text in str(caught.value)


def nothing() -> None: ...
def session_by_name(*, session: Any) -> None: ...


@pytest.mark.parametrize("function", [nothing, session_by_name])
def test_handler_that_cannot_take_the_session_first_is_refused(function: Callable[..., Any]) -> None:
    """A session parameter must be the first, and by place."""
    with pytest.raises(InvalidHandler, match="must take the session first"):
        Arguments(function, name="handler", skip_first=True)


def before_its_class(session: Any, later: Any) -> None: ...


before_its_class.__annotations__ = {"session": "Missing", "later": "Later", "return": "AlsoMissing"}
BEFORE = Arguments(before_its_class, name="before_its_class", skip_first=True)


@dataclass
class Later:
    number: int


def test_annotation_of_class_defined_later_is_resolved_at_first_use() -> None:
    """A handler may name a class that the module defines further down; its session's type need not exist at all."""
    stored = BEFORE.dump((Later(1),), {})

    assert stored == {"later": {"number": 1}}
    assert BEFORE.load(stored) == {"later": Later(1)}


def type_checking_only(mail: EmailMessage) -> None: ...
def misspelt(number: Any) -> None: ...


misspelt.__annotations__ = {"number": "intt"}


@pytest.mark.parametrize(("function", "name"), [(type_checking_only, "EmailMessage"), (misspelt, "intt")])
def test_annotation_that_cannot_be_resolved_is_refused_by_name(function: Callable[..., Any], name: str) -> None:
    """A name that exists for the type checker only is an error that says so, before any job is stored."""
    arguments = Arguments(function, name="handler", skip_first=False)

    for _ in range(2):
        with pytest.raises(InvalidHandler) as caught:
            arguments.check()

        assert name in str(caught.value)
        assert "outside `if TYPE_CHECKING:`" in str(caught.value)


@dataclass
class Unfinished:
    part: Nowhere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "hint",
    [Invoice, Invoice | None, list[Invoice], threading.Lock, Unfinished],
    ids=str,
)
def test_type_that_json_cannot_carry_is_refused_by_argument(hint: object) -> None:
    """An ORM class, or any that pydantic has no schema for, is refused with what to take instead."""

    def handler(number: int, value: Any) -> None: ...

    handler.__annotations__ = {"number": int, "value": hint}
    arguments = Arguments(handler, name="handler", skip_first=False)

    with pytest.raises(InvalidHandler) as caught:
        arguments.check()

    assert "the type of 'value'" in str(caught.value)
    assert "instead of an ORM object take its id" in str(caught.value)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def nightly(at: date) -> None: ...


class Mailer:
    def send(self, at: date) -> None: ...
    def __call__(self, at: date) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        logged(logged(nightly)),
        logged(Mailer().send),
        Mailer().send,
        Mailer(),
        functools.partial(Mailer.send, Mailer()),
    ],
    ids=["wrapped twice", "wrapped method", "method", "callable object", "partial"],
)
def test_decorated_or_bound_handler_has_the_inner_signature(function: Callable[..., Any]) -> None:
    """Decorators with functools.wraps, methods, callable objects and partials are seen through."""
    arguments = Arguments(function, name="handler", skip_first=False)

    arguments.check()

    with pytest.raises(PayloadError, match=r"'at'.*is missing"):
        arguments.dump((), {})
