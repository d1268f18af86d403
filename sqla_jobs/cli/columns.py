"""Values of the app's own columns, as people write them: `tenant=acme`."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import typer
from sqlalchemy import JSON, Column

from sqla_jobs.cli.stops import refused
from sqla_jobs.cli.texts import duration, instant
from sqla_jobs.operations.listing_filter import LARGEST_ID, own_column
from sqla_jobs.schema.tables import MappedTable

_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_columns(table: MappedTable, given: Sequence[str]) -> dict[str, object]:
    """Read `name=value`, each value as its column's Python type.

    :raises InvalidOption: the table has no such column
    :raises Stop: it is no such text, or the column holds what no text can be compared with
    """
    found = dict[str, object]()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise refused(f"--column {text!r} says no value: write --column tenant=acme")
        column = own_column(table, name)
        if name in found:
            raise refused(f"--column {name} is given twice: one column has one value")
        found[name] = _value(name, column, value)
    return found


def _value(name: str, column: Column[Any], text: str) -> object:
    kind = _kind(column)
    if issubclass(kind, Enum):
        return _member(name, kind, text)
    read = next((read for each, read in _READERS.items() if issubclass(kind, each)), None)
    if read is None:
        raise refused(f"--column {name}: it holds a {kind.__name__}, which can't be compared with a text")
    if kind is datetime and not getattr(column.type, "timezone", False):
        read = datetime.fromisoformat
    try:
        return read(text)
    except (ValueError, ArithmeticError):
        raise refused(f"--column {name}: {text!r} is no {kind.__name__}") from None
    except typer.BadParameter as error:
        raise refused(f"--column {name}: {error}") from None


def _kind(column: Column[Any]) -> type[Any]:
    """Give the Python type of a column's values; text, where neither its type nor what is below that says."""
    for type_ in (column.type, getattr(column.type, "impl_instance", column.type)):
        if isinstance(type_, JSON):
            return dict  # SQLAlchemy 2.1 does not say
        with contextlib.suppress(NotImplementedError):
            kind: type[Any] = type_.python_type
            if kind is not object:
                return kind
    return str


def _member(name: str, kind: type[Enum], text: str) -> Enum:
    for member in kind:
        if text in {member.name, str(member.value)}:
            return member
    raise refused(f"--column {name}: {text!r} is none of {', '.join(member.name for member in kind)}")


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError
    return _TRUTHS[text.lower()]


def _number(text: str) -> int:
    number = int(text)
    if abs(number) > LARGEST_ID:
        raise ValueError
    return number


_READERS: Final[Mapping[type[Any], Callable[[str], object]]] = {
    # In this order: a bool is an int, a datetime is a date.
    bool: _truth,
    int: _number,
    str: str,
    float: float,
    Decimal: Decimal,
    uuid.UUID: uuid.UUID,
    datetime: instant,
    date: date.fromisoformat,
    time: time.fromisoformat,
    timedelta: duration,
}
