"""What a job carries: a handler's arguments as JSON, checked on the way in and on the way out.

Owns the way from a call to a stored payload and back: binding, checking, converting, the limit on size. What a
function's parameters are is in `rules.signature`, what plain JSON is in `rules.json_values`. Must not touch a session,
a clock or a log, and imports pydantic only when the first contract is built.

.. code-block:: python

    arguments = Arguments(send_receipt, name="send_receipt", skip_first=True)
    payload = arguments.dump((), {"order_id": 7, "since": date(2024, 1, 1)})   # {"order_id": 7, "since": "2024-01-01"}
    send_receipt(session, **arguments.load(payload))                           # since is a date again

What `dump` accepts, `load` gives back equal and of the annotated type; everything else is refused at enqueue. An aware
datetime keeps its instant and UTC offset, not the name of its zone. Without an annotation, or with `Any`, a parameter
takes plain JSON only. Error texts name arguments, types and sizes, never values: they end up in logs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast, get_args

from sqla_jobs.errors import PayloadError, PayloadTooLarge
from sqla_jobs.rules.json_values import (
    JsonValue,
    Refusal,
    a_type,
    compare,
    encode,
    inspect_json,
    json_bytes,
    parts,
    short,
    step,
)
from sqla_jobs.rules.signature import BY_PLACE, Contract, build_contract, job_parameters

if TYPE_CHECKING:
    from pydantic import ValidationError


class Arguments:
    """The parameters of one handler as a JSON contract: what enqueue stores and what the handler gets back.

    Annotations are resolved at the first use, so they may name classes defined further down. Serves all threads.
    """

    __slots__ = ("_by_place", "_contract", "_function", "_lock", "_max_bytes", "_name", "_names", "_required")

    def __init__(self, function: Callable[..., Any], *, name: str, skip_first: bool, max_bytes: int = 65536) -> None:
        """Read the signature of *function*, without its annotations.

        :param skip_first: the first parameter is the session, which the worker passes
        :raises InvalidHandler: `*args`, `**kwargs` or positional-only parameters; name the arguments
        """
        parameters = job_parameters(function, name, skip_first=skip_first)
        self._function = function
        self._name = name
        self._max_bytes = max_bytes
        self._names = tuple(each.name for each in parameters)
        self._by_place = tuple(each.name for each in parameters if each.kind in BY_PLACE)
        self._required = frozenset(each.name for each in parameters if each.default is each.empty)
        self._contract: Contract | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Resolve the annotations and build the validator now.

        :raises InvalidHandler: an annotation can't be resolved, or JSON can't carry its type
        """
        self._built()

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Bind like a call and return what to store. Defaults that were not given are left to the time of the run.

        :raises PayloadError: an argument is missing, unknown, given twice, of the wrong type, or can't be stored
        :raises PayloadTooLarge: store the data in a table, and pass its id
        """
        contract = self._contract
        if contract is not None and not args and _is_plain(contract, kwargs) and kwargs.keys() >= self._required:
            return self._stored(dict(kwargs), is_plain=True)
        given = self._bind(args, kwargs)
        self._refuse_missing(given, "pass it, or give the parameter a default")
        return self._stored(given)

    def dump_some(self, arguments: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Return what `dump` would store of *arguments*, which may lack some; for comparing with stored payloads."""
        return self._stored(self._bind((), arguments))

    def load(self, payload: object) -> dict[str, Any]:
        """Turn a stored payload, as the driver decoded it, into the handler's keyword arguments.

        :raises PayloadError: other code stored it, for another signature; accept both, or rename the handler
        """
        if not isinstance(payload, dict):
            raise self._error(
                f"the payload of handler {self._name!r} is {a_type(payload)}, not an object: repair the row"
            )
        stored, contract = cast("dict[str, Any]", payload), self._contract or self._built()
        if _is_plain(contract, stored) and stored.keys() >= self._required:
            return stored
        given = self._bind((), stored)
        self._refuse_missing(given, "the job was stored without it, so give the parameter a default")
        try:
            return _parse(contract, given, json_bytes(given))
        except Refusal as refusal:
            error = self._refused(refusal, "other code stored the job, so accept both forms, or rename the handler")
        raise error

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._by_place):
            takes = f"at most {len(self._by_place)} arguments without a name, not {len(args)}"
            raise self._error(f"handler {self._name!r} takes {takes}: it takes {', '.join(self._names) or 'none'}")
        given = dict(zip(self._by_place, args, strict=False))
        for key, value in kwargs.items():
            if key not in self._names:
                raise self._unknown(key)
            if key in given:
                raise self._refused(Refusal(key, "was given by place and by name", "give it once"))
            given[key] = value
        return given

    def _stored(self, given: dict[str, Any], *, is_plain: bool = False) -> dict[str, JsonValue]:
        contract = self._contract or self._built()
        try:
            if is_plain or _is_plain(contract, given):
                return self._sized(given, json_bytes(given))
            return self._converted(contract, given)
        except Refusal as refusal:
            error = self._refused(refusal)
        raise error

    def _converted(self, contract: Contract, given: dict[str, Any]) -> dict[str, JsonValue]:
        for key in contract.untyped & given.keys():
            inspect_json(given[key], key)
        validated = _validate(contract, given)
        dumped = _write(contract, validated)
        text = json_bytes(dumped)
        self._sized(dumped, text)
        if not contract.is_exact:
            compare(validated, _parse(contract, dumped, text), "")
        return dumped

    def _sized(self, payload: dict[str, JsonValue], text: bytes) -> dict[str, JsonValue]:
        if len(text) <= self._max_bytes:
            return payload
        size, largest = max((len(encode(value).encode()), key) for key, value in payload.items())
        raise PayloadTooLarge(
            f"the arguments of handler {self._name!r} take {len(text)} bytes of JSON, over the limit of "
            f"{self._max_bytes}; the largest is {largest!r} with {size}: store it in a table and pass its id",
            handler=self._name,
            argument=largest,
        )

    def _refuse_missing(self, given: Collection[str], remedy: str) -> None:
        if self._required.issubset(given):
            return
        missing = next(key for key in self._names if key in self._required and key not in given)
        raise self._refused(Refusal(missing, "is missing", remedy))

    def _unknown(self, key: object) -> PayloadError:
        argument = key if isinstance(key, str) and key.isidentifier() else short(key)
        near = get_close_matches(argument, self._names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        takes = f"{hint}it takes {', '.join(self._names) or 'none'}"
        return self._refused(Refusal(argument, "does not exist", takes))

    def _refused(self, refusal: Refusal, remedy: str = "") -> PayloadError:
        text = f"argument {refusal.path!r} of handler {self._name!r} {refusal.reason}: {remedy or refusal.remedy}"
        return self._error(text, refusal.path)

    def _error(self, text: str, argument: str | None = None) -> PayloadError:
        return PayloadError(text, handler=self._name, argument=argument)

    def _built(self) -> Contract:
        with self._lock:
            if self._contract is None:
                self._contract = build_contract(self._function, self._name, self._names)
            return self._contract


def to_json(value: object, *, max_bytes: int) -> JsonValue:
    """Return *value*, which a handler returned, as JSON. One way: a date becomes a text, a tuple a list.

    :raises TypeError: there is an object in it that JSON can't carry; return a part of it, or its id
    :raises ValueError: NaN, infinity, NUL, a lone surrogate, a nesting over 64 levels, or too many bytes
    """
    if value is None:
        return None
    result = _jsonable(value)
    try:
        size = len(json_bytes({"result": result})) - len('{"result":}')
    except Refusal as refusal:
        fault = f"{refusal.path!r} {refusal.reason}: {refusal.remedy}"
    else:
        if size <= max_bytes:
            return result
        fault = f"{size} bytes of JSON, over the limit of {max_bytes}: write it to a table and return its id"
    raise ValueError(f"the handler's return value cannot be stored: {fault}")


def _jsonable(value: object) -> JsonValue:
    from pydantic_core import to_jsonable_python

    strangers: list[str] = []
    try:
        jsonable: JsonValue = to_jsonable_python(
            value, bytes_mode="base64", inf_nan_mode="constants", fallback=lambda found: strangers.append(a_type(found))
        )
    except (ValueError, TypeError, RecursionError):
        fault = "it refers to itself, nests too deeply, or has a serializer that fails"
    else:
        if not strangers:
            return jsonable
        raise TypeError(f"the handler's return value holds {strangers[0]}: return plain JSON, or an id")
    raise ValueError(f"the handler's return value cannot be stored: {fault}; return plain JSON, or an id")


def _is_plain(contract: Contract, given: Mapping[str, object]) -> bool:
    plain = contract.plain
    for key, value in given.items():  # noqa: SIM110  # this runs for each job, twice: a generator costs more
        if type(value) is not plain.get(key):
            return False
    return True


def _validate(contract: Contract, given: dict[str, Any]) -> dict[str, Any]:
    from pydantic import ValidationError

    try:
        validated = contract.adapter.validate_python(given, strict=True)
    except ValidationError as error:
        refusal = _explained(error, given)
    else:
        _refuse_converted(given, validated, "")
        return {key: validated[key] for key in given}  # without the default of a Field(…)
    raise refusal


def _refuse_converted(given: Any, validated: Any, path: str) -> None:
    """Refuse the two conversions that pydantic's strict mode still makes: a dict to a model, a huge int to a float."""
    if given is validated:
        return
    before, after = (cast("type[object]", type(each)) for each in (given, validated))
    if before is dict and not issubclass(after, dict):
        raise Refusal(path, f"is a dict, and not {a_type(validated)}", "pass an instance")
    if before is int and after is float and given != validated:
        raise Refusal(path, "is an int that a float cannot hold exactly", "annotate it as int")
    if before is after and before in (dict, list, tuple):
        ours, theirs = parts(given), parts(validated)
        for key in ours.keys() & theirs.keys():
            _refuse_converted(ours[key], theirs[key], step(path, key))


def _write(contract: Contract, validated: dict[str, Any]) -> dict[str, JsonValue]:
    try:
        # What pydantic can't write becomes None here: the comparison after the round trip knows its path.
        dumped: dict[str, JsonValue] = contract.adapter.serializer.to_python(
            validated, mode="json", by_alias=True, round_trip=True, warnings=False, fallback=lambda _: None
        )
    except (ValueError, TypeError, RecursionError):
        if len(validated) > 1:
            for key, value in validated.items():
                _write(contract, {key: value})
    else:
        return dumped
    reason = (
        "cannot be written as JSON (it refers to itself, nests too deeply, has a serializer that fails, or is a "
        "model with bytes but without ser_json_bytes='base64' and val_json_bytes='base64')"
    )
    raise Refusal(next(iter(validated)), reason, "flatten it, or pass an id")


def _parse(contract: Contract, payload: dict[str, Any], text: bytes) -> dict[str, Any]:
    from pydantic import ValidationError

    try:
        parsed = contract.adapter.validate_json(text, strict=True)
    except ValidationError as error:
        refusal = _explained(error, payload)
    else:
        return {key: parsed[key] for key in payload}
    raise refusal


def _explained(error: ValidationError, value: object) -> Refusal:
    """Tell where and why pydantic refused *value*, in words that hold nothing of it."""
    from pydantic_core.core_schema import ErrorType

    faults = error.errors(include_url=False, include_input=False)
    path, found = _followed(faults[0]["loc"], value)
    reasons: dict[str, None] = {}
    for fault in faults:
        # Texts of the app's validators and of pydantic's parsers may quote the value.
        is_quoting = fault["type"] not in get_args(ErrorType) or fault.get("ctx", {}).keys() & {"error", "tag"}
        if _followed(fault["loc"], value)[0] == path:
            reasons[fault["type"] if is_quoting else fault["msg"]] = None
    why = " / ".join([*reasons][:4])
    if faults[0]["type"] == "missing":
        return Refusal(step(path, faults[0]["loc"][-1]), f"is missing ({why})", "pass it")
    remedy = "pass what the annotation says, as nothing is converted"
    return Refusal(path, f"is {a_type(found)} that its annotation does not allow ({why})", remedy)


def _followed(loc: tuple[int | str, ...], value: object) -> tuple[str, object]:
    """Walk *loc* through *value*, passing over pydantic's own steps: branches of a union, validators."""
    path = ""
    for key in loc:
        if key in (inner := parts(value)):
            path, value = step(path, key), inner[key]
    return path, value
