"""Which session a handler takes, where its annotation is the name of something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NewType, Optional, TypeVar, Union, get_type_hints

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import TypeAliasType

from sqla_jobs.errors import InvalidHandler
from sqla_jobs.rules.registry import HandlerSpec, SessionKind, inspect_handler
from sqla_jobs.rules.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

Dependency = Annotated[Session, "of the request"]
AsyncDependency = Annotated[AsyncSession, "of the request"]
Reading = NewType("Reading", Session)
Alias = TypeAliasType("Alias", Dependency)
Bound = TypeVar("Bound", bound=Session)
OfTheReading = Annotated[Optional[Reading], "of the request"]  # noqa: UP045  # as people write it


def annotated(session: Annotated[Session, "own"], order_id: int) -> None: ...
def dependency(session: Dependency, order_id: int) -> None: ...
def new_type(session: Reading, order_id: int) -> None: ...
def alias(session: Alias, order_id: int) -> None: ...
def bound(session: Bound, order_id: int) -> None: ...  # pyright: ignore[reportInvalidTypeVarUse]
def or_none(session: Session | None, order_id: int) -> None: ...
def optional(session: Optional[Session], order_id: int) -> None: ...  # noqa: UP045
def union(session: Union[Session, None], order_id: int) -> None: ...  # noqa: UP007
def nested(session: OfTheReading, order_id: int) -> None: ...
async def async_dependency(session: AsyncDependency, order_id: int) -> None: ...
async def async_or_none(session: AsyncSession | None, order_id: int) -> None: ...


SYNC = [annotated, dependency, new_type, alias, bound, or_none, optional, union, nested]
ASYNC = [async_dependency, async_or_none]


def spec_of(function: Callable[..., Any]) -> HandlerSpec:
    """Look at *function* as `@jobs.handler` does when nothing else is said."""
    return inspect_handler(
        function,
        name=None,
        queue="default",
        max_attempts=5,
        timeout=None,
        backoff=Backoff(),
        aliases=(),
        max_bytes=1000,
    )


def evaluated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function whose annotations are no strings, as in a module without `from __future__`."""

    def sync(session: Any, order_id: int) -> None: ...
    async def coroutine(session: Any, order_id: int) -> None: ...

    made: Callable[..., Any] = coroutine if function in ASYNC else sync
    made.__annotations__ = get_type_hints(function, include_extras=True)
    return made


@pytest.mark.parametrize("function", [*SYNC, *ASYNC], ids=lambda function: function.__name__)
def test_session_is_seen_behind_other_names(function: Callable[..., Any]) -> None:
    """A session under `Annotated`, an alias, a new type, a bound or with None is the job's own, postponed or not."""
    kind = SessionKind.ASYNC if function in ASYNC else SessionKind.SYNC

    for form in (function, evaluated(function)):
        spec = spec_of(form)
        assert spec.session is kind
        assert spec.arguments.dump((), {"order_id": 1}) == {"order_id": 1}


def either(session: Session | AsyncSession) -> None: ...
def maybe_text(text: str | None) -> None: ...
def second(order_id: int, session: Dependency) -> None: ...


def test_annotation_that_names_no_one_session() -> None:
    """What may be the one or the other is an argument like any; and one in another place is refused as ever."""
    assert spec_of(either).session is SessionKind.NONE
    assert spec_of(maybe_text).session is SessionKind.NONE
    with pytest.raises(InvalidHandler, match="the session comes first"):
        spec_of(second)


def test_alias_that_only_type_checkers_can_follow() -> None:
    """A `type` statement is evaluated when somebody looks; that it fails is for those to say who need it."""

    class Hidden:
        @property
        def __value__(self) -> object:
            raise NameError("name 'Missing' is not defined")

    def handle(session: Any) -> None: ...

    handle.__annotations__["session"] = Hidden()

    assert spec_of(handle).session is SessionKind.NONE
