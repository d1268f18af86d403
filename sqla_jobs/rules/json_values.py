"""Plain JSON: what it can say, how it is written, and whether a value comes back from it as it was.

Owns the text form of a payload, the limits of what databases store, and the paths by which errors name a part of a
value. Must not know handlers or signatures, nor import pydantic: what is wrong is a `Refusal`, which `rules.payload`
turns into an error. Its texts name keys, types and sizes, never values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Final, cast
from uuid import UUID

from typing_extensions import TypeAliasType

JsonValue = TypeAliasType("JsonValue", "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None")
"""What JSON can say; as the annotation of a parameter, the same as none at all."""

PLAIN: Final = (int, str, bool, float, NoneType)
"""The types of JSON's scalars, which come back as they were."""

encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""Write compact JSON, with no look at what a database would refuse in it."""

_DEPTH: Final = 64
_INT_BITS: Final = 14_000  # Python and pydantic read no number of over 4,300 digits
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
# Drivers and test clocks hand out subclasses of these: asyncpg's UUID, freezegun's datetime.
_OFTEN_SUBCLASSED: Final = (date, time, timedelta, UUID, Decimal)


class Refusal(Exception):
    """What is wrong inside a value; becomes a `PayloadError` where the handler's name is known."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path = cut(path, 120)
        self.reason = reason
        self.remedy = remedy


def json_bytes(payload: Mapping[str, object]) -> bytes:
    """Write compact UTF-8 JSON, or refuse what is wrong by its path."""
    try:
        text = encode(payload).encode()
    except (ValueError, TypeError, RecursionError):
        text = b""
    if not text or b"\\u0000" in text or text.count(b"[") + text.count(b"{") > _DEPTH:
        for key, value in payload.items():
            inspect_json(value, key)
    if not text:
        raise Refusal(next(iter(payload)), "cannot be written as JSON", "pass plain values")
    return text


def inspect_json(value: Any, path: str, depth: int = 1) -> None:
    """Refuse the first thing inside *value* that JSON would change or a database would not take."""
    kind = cast("type[object]", type(value))
    if kind is str:
        _inspect_text(value, path)
    elif kind is list or kind is dict:
        if depth > _DEPTH:
            raise Refusal(path, f"nests deeper than {_DEPTH} levels or refers to itself", "flatten it, or pass an id")
        for key, item in parts(value).items():
            if kind is dict:
                _inspect_key(key, path)
            inspect_json(item, step(path, key), depth + 1)
    elif kind not in PLAIN:
        raise Refusal(
            path, f"is {a_type(value)}, which plain JSON would change", "annotate the parameter with its type"
        )
    elif kind is float and not math.isfinite(value):
        raise Refusal(path, "is NaN or infinite, which JSON has no word for", "use None")
    elif kind is int and value.bit_length() > _INT_BITS:
        raise Refusal(path, "has over 4,000 digits and would not come back from JSON", "use bytes")


def _inspect_key(key: object, path: str) -> None:
    if type(key) is not str:
        raise Refusal(path, f"has {a_type(key)} as a key, which plain JSON would change", "annotate it as dict[…, …]")
    _inspect_text(key, step(path, key))


def _inspect_text(text: str, path: str) -> None:
    if found := _UNSTORABLE.search(text):
        what = "NUL character" if found[0] == "\0" else "lone surrogate"
        raise Refusal(path, f"holds a {what}, which databases refuse in a text", "remove it, or use bytes")


def compare(sent: object, back: object, path: str) -> None:
    """Refuse the first part of *sent* that came back from JSON as something else."""
    ours, theirs = parts(sent), parts(back)
    if _is_same_kind(sent, back) and [*map(_typed, ours)] == [*map(_typed, theirs)]:
        for key in ours:
            compare(ours[key], theirs[key], step(path, key))
        if ours or _is_same_value(sent, back):
            return
    change = "with another value" if type(sent) is type(back) else f"as {a_type(back)}"
    remedy = "annotate it with one type that holds it whole, or pass plain values or an id"
    raise Refusal(path, f"is {a_type(sent)} that would come back from JSON {change}", remedy)


def _is_same_kind(sent: object, back: object) -> bool:
    # An int in a float field of a dataclass, which nothing validated, is as good as a float.
    is_widened = type(sent) is int and type(back) is float
    is_subclass = isinstance(back, _OFTEN_SUBCLASSED) and isinstance(sent, type(back))
    return type(sent) is type(back) or is_widened or is_subclass


def _is_same_value(sent: Any, back: Any) -> bool:
    if isinstance(sent, datetime) and isinstance(back, datetime):
        # In a repeated hour two zones never compare equal (PEP 495): compare what is on the clock, and the offset.
        return sent.replace(tzinfo=None) == back.replace(tzinfo=None) and sent.utcoffset() == back.utcoffset()
    if isinstance(sent, set | frozenset):
        return {*map(_typed, cast("set[object]", sent))} == {*map(_typed, back)}
    return is_dataclass(sent) or bool(sent == back)


def _typed(value: object) -> tuple[type, object]:
    return type(value), value


def parts(value: Any) -> dict[Any, object]:
    """Return what is directly inside *value*, by key, place or field; nothing of a scalar."""
    if isinstance(value, dict):
        return cast("dict[Any, object]", value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("list[object]", value)))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    if hasattr(value, "__pydantic_fields_set__"):
        return {**vars(value), **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    return {}


def step(path: str, key: object) -> str:
    """Return the path of what *path* holds under *key*."""
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{cut(key, 40)}" if path else key
    return f"{path}[{short(key)}]"


def short(key: object) -> str:
    """Write a key of a payload so that it fits in an error's text."""
    return cut(repr(key), 40) if isinstance(key, str | int) else a_type(key)


def cut(text: str, length: int) -> str:
    """Shorten *text* to *length* characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def a_type(value: object) -> str:
    """Name the type of *value* with its article: never the value itself, which may be a secret."""
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"
