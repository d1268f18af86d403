"""What a function's parameters are: which of them a payload fills, and of what types.

Owns the reading of a signature, the resolving of its annotations, and the pydantic adapter made of them. Must not see
a payload (`rules.payload` does), and imports pydantic only when the first contract is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, cast, get_args, get_origin, get_type_hints

from sqla_jobs.errors import InvalidHandler
from sqla_jobs.rules.json_values import PLAIN, JsonValue, cut

if TYPE_CHECKING:
    from pydantic import TypeAdapter

BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
"""The kinds of parameters that a call may fill without naming them."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The annotations of one function, ready to check values: what `Arguments` dumps and loads with."""

    adapter: TypeAdapter[dict[str, Any]]
    plain: dict[str, Any]
    """Parameters whose type is a JSON scalar: a value of exactly that type needs no pydantic."""
    untyped: frozenset[str]
    is_exact: bool
    """Whether all that validates is JSON already, so that no round trip needs to prove it."""


def parameters_of(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """Return the parameters of a handler.

    :raises InvalidHandler: nobody can tell
    """
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError) as error:
        raise InvalidHandler(f"handler {name!r} has no signature to read: wrap it in a `def`") from error


def job_parameters(function: Callable[..., Any], name: str, *, skip_first: bool) -> list[inspect.Parameter]:
    """Return the parameters that a payload fills, or refuse a signature that none can fill."""
    parameters = parameters_of(function, name)
    if skip_first and not (parameters and parameters.pop(0).kind in BY_PLACE):
        raise InvalidHandler(f"handler {name!r} must take the session first, by place: `def {name}(session, …)`")
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidHandler(f"handler {name!r} takes {parameter.name!r} by place only: remove the `/`")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidHandler(f"handler {name!r} takes `{parameter}`, which a payload can't fit: name the arguments")
    return parameters


def build_contract(function: Callable[..., Any], name: str, keys: tuple[str, ...]) -> Contract:
    """Resolve the annotations of *keys* and build what checks them."""
    parameters = inspect.signature(function).parameters
    hints = {key: _hint(function, name, parameters[key]) for key in keys}
    untyped = frozenset(key for key, hint in hints.items() if hint in (Any, object, JsonValue))
    return Contract(
        adapter=_adapter(hints | dict.fromkeys(untyped, Any), name),
        plain={key: hint for key, hint in hints.items() if hint in PLAIN},
        untyped=untyped,
        is_exact=all(key in untyped or _is_exact(hint) for key, hint in hints.items()),
    )


def _hint(function: Callable[..., Any], name: str, parameter: inspect.Parameter) -> Any:
    """Resolve this annotation alone: `session: Session` and the return type need not exist at run time."""
    if parameter.annotation is parameter.empty:
        return Any
    try:
        return resolve(function, parameter.annotation)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidHandler(
            f"handler {name!r}: the annotation of {parameter.name!r} cannot be resolved ({error}): define the name at "
            "module level, and import it outside `if TYPE_CHECKING:`"
        ) from error


def resolve(function: Callable[..., Any], annotation: object) -> Any:
    """Evaluate one annotation of *function*, postponed or not; the others may not be defined yet.

    :raises Exception: whatever evaluating it raises
    """

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return get_type_hints(holder, globalns=_namespace(function), include_extras=True)["it"]


def _namespace(function: Callable[..., Any]) -> dict[str, Any]:
    target: Any = inspect.unwrap(function)
    while isinstance(target, partial):
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__globals__"):
        target = type(target).__call__
    return getattr(target, "__globals__", {})


def _is_exact(hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (list, dict) and arguments:
        return _is_exact(arguments[-1]) and (origin is list or arguments[0] is str)
    if origin in (Union, UnionType):
        return all(argument in PLAIN for argument in arguments)
    return hint in PLAIN


def _adapter(hints: dict[str, Any], name: str) -> TypeAdapter[dict[str, Any]]:
    from pydantic_core import SchemaError

    try:
        return _built(hints)
    except (RuntimeError, TypeError, ValueError, NameError, SchemaError) as error:
        if len(hints) > 1:
            for key, hint in hints.items():
                _adapter({key: hint}, name)
        text = cut(str(error).splitlines()[0], 200)
        raise InvalidHandler(
            f"handler {name!r}: JSON cannot carry the type of {next(iter(hints))!r} ({text}). Take plain values, a "
            "dataclass or a pydantic model; instead of an ORM object take its id, and load it in the handler"
        ) from error


def _built(hints: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

    config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, ser_json_bytes="base64", val_json_bytes="base64"
    )
    shape: Any = cast("Any", TypedDict)("Payload", hints, total=False)
    shape.__pydantic_config__ = config
    # The serializers ignore a TypedDict's own config (pydantic 2.14), and a bare one takes no other: hence the None.
    whole: Any = shape | None
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(whole, config=config)
    adapter.validate_python({}, strict=True)  # pydantic puts off undefined names until the first use
    return adapter
