"""What can be a handler, and which handler runs which type of job."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from sqla_jobs.errors import InvalidHandler, InvalidOption, UnknownHandler
from sqla_jobs.rules.payload import Arguments
from sqla_jobs.rules.retry import BackoffPolicy
from sqla_jobs.rules.signature import parameters_of, resolve

LONGEST_NAME = 255
LARGEST_INTEGER = 2**31 - 1

MAX_TIMEOUT = timedelta(days=365)

MAX_ATTEMPTS = 5
"""Unless told otherwise."""


class SessionKind(Enum):
    """Which session a handler wants as its first parameter."""

    NONE = "none"
    SYNC = "Session"
    ASYNC = "AsyncSession"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A function that runs jobs of one type, and how it wants them run."""

    name: str
    function: Callable[..., Any]
    session: SessionKind
    is_async: bool
    queue: str
    max_attempts: int
    timeout: timedelta | None
    backoff: BackoffPolicy
    aliases: tuple[str, ...]
    arguments: Arguments


class Handlers:
    """The handlers of one registry, by name and alias."""

    def __init__(self) -> None:
        self._by_name: dict[str, HandlerSpec] = {}

    def add(self, spec: HandlerSpec) -> None:
        """Add a handler.

        :raises InvalidHandler: another handler has this name or alias; give one of them `name="…"`
        """
        for name in (spec.name, *spec.aliases):
            if (other := self._by_name.get(name)) is not None:
                raise InvalidHandler(
                    f"two handlers are called {name!r}: {_place(other.function)} and {_place(spec.function)}; "
                    'give one of them another name with @jobs.handler(name="…")'
                )
        for name in (spec.name, *spec.aliases):
            self._by_name[name] = spec

    def find(self, name: str) -> HandlerSpec:
        """Give the handler of that name or alias.

        :raises UnknownHandler: there is none; the message names the nearest
        """
        try:
            return self._by_name[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._by_name, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UnknownHandler(f"no handler named {name!r}{hint}") from None

    @property
    def names(self) -> tuple[str, ...]:
        """All names and aliases, sorted."""
        return tuple(sorted(self._by_name))

    def __iter__(self) -> Iterator[HandlerSpec]:
        return iter(set(self._by_name.values()))


def inspect_handler(
    function: Callable[..., Any],
    *,
    name: str | None,
    queue: str,
    max_attempts: int,
    timeout: timedelta | None,
    backoff: BackoffPolicy,
    aliases: Iterable[str],
    max_bytes: int,
) -> HandlerSpec:
    """Look at a function and give what is needed to run it.

    :raises InvalidHandler: it cannot be a handler as it is written; the message says what to change
    :raises InvalidOption: an option is out of range
    """
    name = name if name is not None else getattr(function, "__name__", None)
    if name is None:
        raise InvalidHandler(f'{function!r} has no name of its own: give it one with @jobs.handler(name="…")')
    check_text("name", name)
    is_async = _is(inspect.iscoroutinefunction, function)
    session = _session_kind(function, name, is_async=is_async)
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise InvalidHandler(f"handler {name!r} is a generator; a handler returns once: use def or async def, no yield")
    if timeout is not None:
        check_duration("timeout", timeout, least=timedelta(milliseconds=1), most=MAX_TIMEOUT)
    if isinstance(aliases, str):
        raise InvalidOption(f"aliases is a list of names, and is the str {aliases!r}: aliases=[{aliases!r}]")
    return HandlerSpec(
        name=name,
        function=function,
        session=session,
        is_async=is_async,
        queue=check_text("queue", queue),
        max_attempts=check_number("max_attempts", max_attempts, least=1),
        timeout=timeout,
        backoff=backoff,
        aliases=tuple(check_text("alias", alias) for alias in aliases),
        arguments=Arguments(function, name=name, skip_first=session is not SessionKind.NONE, max_bytes=max_bytes),
    )


def _is(kind: Callable[[object], bool], function: Callable[..., Any]) -> bool:
    """Look at a function, or at what an object with `__call__` calls."""
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004  # its kind, not whether it has one


def check_text(what: str, value: object) -> str:
    """Give *value* if it is text that every database stores as it is: 1 to 255 characters, no NUL, no lone surrogate.

    :raises InvalidOption: it is not
    """
    if not isinstance(value, str):
        raise InvalidOption(f"{what} is a str, and is a {type(value).__name__}")
    if not value:
        raise InvalidOption(f"{what} is empty; leave it out instead, or give it text")
    if len(value) > LONGEST_NAME:
        raise InvalidOption(
            f"{what} has {len(value)} characters, and at most {LONGEST_NAME} are stored; hash what is longer"
        )
    if "\x00" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidOption(f"{what} has a NUL or a lone surrogate in it, which databases can't store")
    return value


def check_number(what: str, value: object, *, least: int) -> int:
    """Give *value* if it is an int from *least* to what an INTEGER column holds.

    :raises InvalidOption: it is not
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{what} is an int, and is a {type(value).__name__}")
    if not least <= value <= LARGEST_INTEGER:
        raise InvalidOption(f"{what} is from {least} to {LARGEST_INTEGER}, and is {value}")
    return value


def check_duration(what: str, value: object, *, most: timedelta, least: timedelta = timedelta(0)) -> timedelta:
    """Give *value* if it is a timedelta from *least* to *most*.

    :raises InvalidOption: it is not
    """
    if not isinstance(value, timedelta):
        raise InvalidOption(f"{what} is a timedelta, and is a {type(value).__name__}: timedelta(seconds=…)")
    if math.isnan(value.total_seconds()) or not least <= value <= most:
        raise InvalidOption(f"{what} is from {least} to {most}, and is {value}")
    return value


def _session_kind(function: Callable[..., Any], name: str, *, is_async: bool) -> SessionKind:
    kind = _annotated_kind(function, name)
    if kind is SessionKind.SYNC and is_async:
        raise InvalidHandler(
            f"handler {name!r} is async def and takes a Session, which would block the event loop: "
            "annotate it AsyncSession, or write def"
        )
    if kind is SessionKind.ASYNC and not is_async:
        raise InvalidHandler(
            f"handler {name!r} is def and takes an AsyncSession, which it can't await: annotate it Session, "
            "or write async def"
        )
    return kind


def _annotated_kind(function: Callable[..., Any], name: str) -> SessionKind:
    kinds = [_kind(function, parameter) for parameter in parameters_of(function, name)]
    if any(kind is not SessionKind.NONE for kind in kinds[1:]):
        raise InvalidHandler(f"handler {name!r}: the session comes first: `def {name}(session: Session, …)`")
    return kinds[0] if kinds else SessionKind.NONE


def _kind(function: Callable[..., Any], parameter: inspect.Parameter) -> SessionKind:
    annotation: Any = parameter.annotation
    if isinstance(annotation, str):
        with contextlib.suppress(Exception):  # an annotation is any expression; one that fails is judged by its name
            annotation = resolve(function, annotation)
    if isinstance(annotation, str):
        # Imported under TYPE_CHECKING only: the name is all there is.
        last = annotation.rpartition(".")[2]
        return next((kind for kind in (SessionKind.SYNC, SessionKind.ASYNC) if kind.value == last), SessionKind.NONE)
    with contextlib.suppress(Exception):  # a `type` alias is evaluated here, and may name what checkers alone see
        annotation = _bare(annotation)
    lineage = {(base.__module__, base.__name__) for base in getattr(annotation, "__mro__", ())}
    # By name, since this rank knows no SQLAlchemy, and since sqlalchemy.ext.asyncio can't be imported without greenlet.
    if ("sqlalchemy.ext.asyncio.session", "AsyncSession") in lineage:
        return SessionKind.ASYNC
    if ("sqlalchemy.orm.session", "Session") in lineage:
        return SessionKind.SYNC
    return SessionKind.NONE


def _bare(annotation: Any) -> Any:
    """Give the class behind `Annotated[Session, …]`, a type alias, a NewType, a bound TypeVar or `Session | None`."""
    for _ in range(8):
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            kinds = [each for each in get_args(annotation) if each is not NoneType]
            annotation = kinds[0] if len(kinds) == 1 else None
        else:
            behind = [getattr(annotation, name, None) for name in ("__value__", "__supertype__", "__bound__")]
            annotation = next((each for each in behind if each is not None), annotation)
    return annotation


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"
