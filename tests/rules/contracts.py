"""Types that payloads carry, and contracts to carry them by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from enum import Enum, IntEnum
from typing import Any, NamedTuple, NewType
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs.errors import PayloadError
from sqla_jobs.rules.payload import Arguments


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Shade(str, Enum):  # noqa: UP042 - the older spelling is what apps have
    RED = "red"


class Rank(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: str


@dataclass
class Line:
    sku: str
    price: float
    note: Any = None


@dataclass(frozen=True, slots=True)
class Order:
    lines: list[Line]


@dataclass
class SpecialLine(Line):
    gift: bool = True


@dataclass(eq=False)
class Identity:
    number: int


class Customer(BaseModel):
    name: str
    born: date | None = None
    ratio: float = 0.0
    raw: bytes = b""


class Aliased(BaseModel):
    inner: int = Field(alias="outer")


class Hidden(BaseModel):
    shown: int
    secret: int = Field(default=0, exclude=True)


class Private(BaseModel):
    shown: int
    _cache: int = PrivateAttr(default=0)

    def remember(self, number: int) -> None:
        self._cache = number


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class DriverUUID(UUID):
    """Stands for asyncpg's own UUID class."""


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)


OrderId = NewType("OrderId", int)


def label(each: object) -> str:
    """Name a test's parameter, the same in every process; a huge int has no text."""
    return "huge" if isinstance(each, int) and each > 2**99 else ascii(each).partition(" at 0x")[0][:40]


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def taking(hint: object) -> Arguments:
    """Build the contract of a handler with one parameter `value` of that type."""

    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": hint}
    return Arguments(handler, name="handler", skip_first=False)


def untyped() -> Arguments:
    def handler(value: Any) -> None: ...

    del handler.__annotations__["value"]
    return Arguments(handler, name="handler", skip_first=False)


def round_trip(arguments: Arguments, value: object) -> Any:
    """Send *value* through enqueue, the text in the database, and the worker."""
    stored = json.dumps(arguments.dump((), {"value": value}))
    return arguments.load(json.loads(stored))["value"]


def refusal(arguments: Arguments, value: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        arguments.dump((), {"value": value})
    return caught.value


def receipt(session: Any, order_id: int, copies: int = 1, *, to: str = "me") -> None: ...


RECEIPT = Arguments(receipt, name="receipt", skip_first=True)
