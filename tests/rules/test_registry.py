from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidHandler, InvalidOption, UnknownHandler
from sqla_jobs.rules.registry import (
    MAX_TIMEOUT,
    Handlers,
    HandlerSpec,
    SessionKind,
    check_duration,
    check_number,
    check_text,
    inspect_handler,
)
from sqla_jobs.rules.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import sqlalchemy.ext.asyncio
    import sqlalchemy.orm


def spec_of(function: Callable[..., Any], **options: Any) -> HandlerSpec:
    """Look at *function* as `@jobs.handler` does when nothing else is said."""
    usual: dict[str, Any] = {
        "name": None,
        "queue": "default",
        "max_attempts": 5,
        "timeout": None,
        "backoff": Backoff(),
        "aliases": (),
        "max_bytes": 1000,
    }
    return inspect_handler(function, **usual | options)


def plain(order_id: int) -> None: ...
def with_session(session: Session, order_id: int) -> None: ...


async def async_plain(url: str) -> None: ...
async def async_with_session(session: AsyncSession, url: str) -> None: ...


def seen_by_checkers_only(session: sqlalchemy.orm.Session, order_id: int) -> None: ...
async def async_seen_by_checkers_only(session: sqlalchemy.ext.asyncio.AsyncSession) -> None: ...


class OwnSession(Session): ...


class OwnAsyncSession(AsyncSession): ...


def with_own_session(session: OwnSession) -> None: ...
async def async_with_own_session(session: OwnAsyncSession) -> None: ...


def nothing() -> None: ...
def unannotated(session: Any) -> None: ...


unannotated.__annotations__.clear()


@pytest.mark.parametrize(
    ("function", "kind", "is_async"),
    [
        (plain, SessionKind.NONE, False),
        (nothing, SessionKind.NONE, False),
        (unannotated, SessionKind.NONE, False),
        (with_session, SessionKind.SYNC, False),
        (with_own_session, SessionKind.SYNC, False),
        (seen_by_checkers_only, SessionKind.SYNC, False),
        (async_plain, SessionKind.NONE, True),
        (async_with_session, SessionKind.ASYNC, True),
        (async_with_own_session, SessionKind.ASYNC, True),
        (async_seen_by_checkers_only, SessionKind.ASYNC, True),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_session_kind_is_read_from_the_first_annotation(
    function: Callable[..., Any], kind: SessionKind, *, is_async: bool
) -> None:
    """A first parameter annotated `Session` or `AsyncSession` is the job's own transaction, however it is written."""
    spec = spec_of(function)

    assert (spec.session, spec.is_async) == (kind, is_async)


def test_session_kind_is_read_when_the_other_annotations_do_not_resolve() -> None:
    """A handler may name classes that are defined further down."""

    def handler(session: Any, later: Any) -> None: ...

    handler.__annotations__ = {"session": "Session", "later": "DefinedLater"}

    assert spec_of(handler).session is SessionKind.SYNC


def test_session_that_is_not_first_is_refused() -> None:
    """A session in another place would be asked for as an argument: the error says where it goes."""

    def handler(order_id: int, session: Session) -> None: ...

    with pytest.raises(InvalidHandler, match="the session comes first"):
        spec_of(handler)


def test_handler_is_named_for_its_function_unless_a_name_is_given() -> None:
    """The column `type` holds the function's name, or the one that was given."""
    assert spec_of(plain).name == "plain"
    assert spec_of(plain, name="shop.plain").name == "shop.plain"


def sync_with_async_session(session: AsyncSession) -> None: ...
async def async_with_sync_session(session: Session) -> None: ...
def generator(order_id: int) -> Iterator[int]:
    yield order_id


async def async_generator(order_id: int) -> AsyncIterator[int]:
    yield order_id


def star_args(session: Session, *ids: int) -> None: ...
def star_kwargs(**options: int) -> None: ...
def positional_only(order_id: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (sync_with_async_session, "annotate it Session, or write async def"),
        (async_with_sync_session, "annotate it AsyncSession, or write def"),
        (generator, "no yield"),
        (async_generator, "no yield"),
        (star_args, "name the arguments"),
        (star_kwargs, "name the arguments"),
        (positional_only, "remove the `/`"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_function_that_cannot_be_a_handler_is_refused_with_the_remedy(
    function: Callable[..., Any], remedy: str
) -> None:
    """What can't run as it is written is refused when it is declared, by name and with what to change."""
    with pytest.raises(InvalidHandler, match=remedy) as caught:
        spec_of(function)

    assert repr(function.__name__) in str(caught.value)


class Instance:
    def __call__(self, order_id: int) -> None: ...


@pytest.mark.parametrize("function", [functools.partial(plain, 5), Instance()], ids=["partial", "object"])
def test_callable_without_a_name_asks_for_one(function: Callable[..., Any]) -> None:
    """A partial or a callable object has no name of its own: the error asks for `name=`, which then suffices."""
    with pytest.raises(InvalidHandler, match="name="):
        spec_of(function)

    assert spec_of(function, name="named").name == "named"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "name is empty"),
        ({"name": "n" * 256}, "at most 255"),
        ({"name": "a\x00b"}, "NUL"),
        ({"queue": ""}, "queue is empty"),
        ({"queue": "q" * 256}, "at most 255"),
        ({"max_attempts": 0}, "max_attempts is from 1"),
        ({"max_attempts": True}, "max_attempts is an int"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
        ({"timeout": MAX_TIMEOUT + timedelta(seconds=1)}, "timeout"),
        ({"timeout": 120}, "timeout is a timedelta"),
        ({"aliases": ["old", ""]}, "alias is empty"),
        ({"aliases": "old_name"}, "aliases"),
    ],
    ids=str,
)
def test_option_out_of_range_is_refused_at_registration(options: dict[str, Any], says: str) -> None:
    """A wrong option is an `InvalidOption` where the handler is declared; a text is no list of aliases."""
    with pytest.raises(InvalidOption, match=says):
        spec_of(plain, **options)


def test_find_gives_the_handler_by_name_and_alias() -> None:
    """Jobs stored under an earlier name are run by the handler that took it over."""
    handlers = Handlers()
    spec = spec_of(plain, aliases=["older", "oldest"])
    handlers.add(spec)

    assert [handlers.find(name) for name in ("plain", "older", "oldest")] == [spec] * 3
    assert handlers.names == ("older", "oldest", "plain")
    assert list(handlers) == [spec]


@pytest.mark.parametrize(
    ("name", "hint"), [("plian", " (did you mean 'plain'?)"), ("send_mail", "")], ids=["near", "far"]
)
def test_find_of_an_unknown_name_says_the_nearest(name: str, hint: str) -> None:
    """An unknown name is told with the nearest that there is, if one is near."""
    handlers = Handlers()
    handlers.add(spec_of(plain))

    with pytest.raises(UnknownHandler) as caught:
        handlers.find(name)

    assert str(caught.value) == f"no handler named {name!r}{hint}"


@pytest.mark.parametrize(
    "options", [{"name": "plain"}, {"name": "old"}, {"aliases": ["plain"]}, {"aliases": ["old"]}], ids=str
)
def test_add_of_a_name_that_is_taken_is_refused_with_both_places(options: dict[str, Any]) -> None:
    """Two handlers of one name or alias are refused, both are named, and the second leaves nothing behind."""
    handlers = Handlers()
    handlers.add(spec_of(plain, aliases=["old"]))

    with pytest.raises(InvalidHandler, match="name=") as caught:
        handlers.add(spec_of(with_session, **options))

    assert f"{__name__}.plain" in str(caught.value)
    assert f"{__name__}.with_session" in str(caught.value)
    assert handlers.names == ("old", "plain")


@pytest.mark.parametrize("value", ["", "x" * 256, "\x00", "\udfff", 5, None, b"x"], ids=ascii)
def test_check_text_refuses_what_a_column_cannot_hold(value: object) -> None:
    """Text for a column has 1 to 255 characters, no NUL and no lone surrogate."""
    with pytest.raises(InvalidOption, match="^label "):
        check_text("label", value)


@pytest.mark.parametrize("value", ["x", "x" * 255, "😀" * 255, " ", "\n"])
def test_check_text_gives_back_what_a_column_holds(value: str) -> None:
    """Spaces, line ends and any letter of Unicode stay as they are."""
    assert check_text("label", value) == value


@pytest.mark.parametrize("value", [1, 2**31, True, False, 2.0, "2", None])
def test_check_number_refuses_what_is_no_such_number(value: object) -> None:
    """A count is an int, not a bool, from the least to what an INTEGER column holds."""
    with pytest.raises(InvalidOption, match="^size "):
        check_number("size", value, least=2)


@pytest.mark.parametrize("value", [2, 2**31 - 1])
def test_check_number_gives_back_its_ends(value: int) -> None:
    """Both ends are in range."""
    assert check_number("size", value, least=2) == value


@pytest.mark.parametrize("value", [timedelta(seconds=-1), timedelta(seconds=11), timedelta.max, 5, "5", None])
def test_check_duration_refuses_what_is_no_such_time(value: object) -> None:
    """A duration is a timedelta within its range."""
    with pytest.raises(InvalidOption, match="^pause "):
        check_duration("pause", value, most=timedelta(seconds=10))


@pytest.mark.parametrize("seconds", [0, 10])
def test_check_duration_gives_back_its_ends(seconds: int) -> None:
    """Both ends are in range."""
    pause = timedelta(seconds=seconds)

    assert check_duration("pause", pause, most=timedelta(seconds=10)) == pause
