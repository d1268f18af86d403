"""What people may see of what is stored: secrets by the names that they have, and never a terminal's commands.

.. code-block:: python

    masked({"user": "ann", "smtp_password": "x"})       # {"user": "ann", "smtp_password": "***"}
    masked_text("GET postgresql://app:x@db/shop")       # "GET postgresql://app:***@db/shop"

A secret under a name that says nothing is not found: `Jobs(…, redact=…)` keeps it out of the table.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

from sqla_jobs.rules.failure import mask, storable

MASK: Final = "***"

_SECRET_NAMES: Final = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "accesskey", "privatekey"),
    *("authorization", "credential", "cookie"),
)

# Bounded on both sides: in one endless word each of its letters would be the start of a search to its end.
_NAMED_SO: Final = (
    r"[\w.-]{0,40}(?:password|passwd|passphrase|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|"
    r"authorization|credential|cookie)[\w.-]{0,40}"
)

_VALUE: Final = (
    r"(?:\w{0,20}\()?[bru]{0,2}"  # b'…', SecretStr('…')
    r"(?:\\\"[^\"]{0,4000}\"|\"(?:[^\"\\]|\\.){0,4000}\"|'(?:[^'\\]|\\.){0,4000}'|[^\s&;,'\")\]}]+)"
)

_ASSIGNED: Final = re.compile(rf"(?i)(\b{_NAMED_SO}\s{{0,3}}=\s{{0,3}}){_VALUE}")
"""`password=…`, as in connection strings, in the query of a URL, and in the arguments of a call."""

_QUOTED: Final = re.compile(rf"(?i)(\\?(['\"]){_NAMED_SO}\\?\2\s{{0,9}}[:,]\s{{0,9}}){_VALUE}")
"""`'password': '…'`, as in a dict or in JSON."""

_BEARER: Final = re.compile(r"(?i)\b((?:bearer|basic)\s)(?=[^\s\d]{0,80}\d)[\w.~+/=-]{8,}")
"""A header's value; there is a digit in it, unlike in `basic authentication`."""

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)
"""All controls but tab and line feed, and what turns the direction of text or breaks its lines."""


def is_secret(name: object) -> bool:
    """Tell whether a value of this name is a secret, however the name is written: `smtp_password`, `accessToken`."""
    bare = re.sub(r"[\W_]", "", name).lower() if isinstance(name, str) else ""
    return any(secret in bare for secret in _SECRET_NAMES)


def masked(value: object) -> Any:
    """Give JSON with `***` for what stands under the name of a secret, at any depth, and for passwords in its texts.

    Pairs of a name and a value, as HTTP headers often are, count as named. None and booleans stay: they tell nothing.
    """
    match value:
        case str():
            return masked_text(value)
        case dict():
            return _masked_dict(cast("dict[Any, object]", value))
        case list() | tuple():
            return _masked_list(cast("list[object]", value))
        case _:
            return value


def _masked_list(value: list[object]) -> list[Any]:
    if len(value) == 2 and is_secret(value[0]):
        return [value[0], _hidden(value[1])]
    return [masked(part) for part in value]


def _masked_dict(value: dict[Any, object]) -> dict[Any, Any]:
    hides_value = any(is_secret(value.get(key)) for key in ("name", "key"))
    return {
        key: _hidden(part) if is_secret(key) or (hides_value and key == "value") else masked(part)
        for key, part in value.items()
    }


def _hidden(value: object) -> Any:
    return value if value is None or isinstance(value, bool) else MASK


def masked_text(text: str) -> str:
    """Hide passwords in URLs, and what is written after the name of a secret: `password=…`, `'token': '…'`."""
    text = mask(text)
    for secret in (_ASSIGNED, _QUOTED, _BEARER):
        text = secret.sub(rf"\1{MASK}", text)
    return text


def printable(text: str) -> str:
    """Write a stored text so that a terminal only shows it: escape sequences and the like become their codes."""
    return _UNPRINTABLE.sub(_code, storable(text))


def _code(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
