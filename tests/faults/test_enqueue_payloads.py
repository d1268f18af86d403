"""Arguments that JSON has no word for, and those that are too large."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import PayloadError, PayloadTooLarge, enqueue
from tests.operations.shop import Customer, Job, store

if TYPE_CHECKING:
    from tests.runtime.app import App


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    price: Decimal


def loop() -> list[Any]:
    """Give a list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


UNSTORABLE: list[tuple[object, str]] = [
    (datetime(2024, 1, 1, tzinfo=UTC), "value"),
    ({"orders": [{"on": date(2024, 1, 1)}]}, "value.orders[0].on"),
    ([1, Decimal("1.5")], "value[1]"),
    ({"order id": UUID(int=7)}, "value['order id']"),
    (b"bytes", "value"),
    ({1, 2}, "value"),
    ([[(1, 2)]], "value[0][0]"),
    (Colour.RED, "value"),
    ({"line": Line("a", Decimal(1))}, "value.line"),
    ({"a": {1: "int key"}}, "value.a"),
    (object(), "value"),
    (loop(), "value[0]"),
    (nested(1000), "value[0]"),
    (float("nan"), "value"),
    ([float("inf")], "value[0]"),
    ("a\x00b", "value"),
    ("\ud800", "value"),
    ({"a": [{"b\x00": 1}]}, "value.a[0]"),
    ("x" * 5_000_000, "value"),
]


def test_f33_payload_that_cannot_be_stored_leaves_the_session_as_it_was(sessions: sessionmaker[Session]) -> None:
    """The third of three enqueues fails in the call, naming the path; the first two are committed, and what is new."""
    for number, (value, path) in enumerate(UNSTORABLE):
        with sessions.begin() as session:
            enqueue(session, store, value=1)
            enqueue(session, store, value=2)
            customer = Customer(name=f"{number}")
            session.add(customer)

            with session.no_autoflush, pytest.raises(PayloadError) as caught:
                enqueue(session, store, value=value)

            assert customer in session.new
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, ValueError)
        assert caught.value.handler == "store"
        assert (caught.value.argument or "").startswith(path)
        assert repr(path)[1:-1] in str(caught.value)
        assert len(str(caught.value)) < 500
    with sessions() as session:
        stored = [payload["value"] for payload in session.scalars(select(Job.payload).order_by(Job.id))]
        assert len(session.scalars(select(Customer)).all()) == len(UNSTORABLE)
    assert stored == [1, 2] * len(UNSTORABLE)


def test_f33_payload_over_the_limit_says_the_limit(session: Session) -> None:
    """64 KiB are stored, a byte more is refused with what to do."""
    most = 64 * 1024 - len('{"value":""}')

    assert enqueue(session, store, value="x" * most).payload == {"value": "x" * most}
    with pytest.raises(PayloadTooLarge, match="over the limit of 65536"):
        enqueue(session, store, value="x" * (most + 1))


def test_f33_arguments_come_back_in_the_types_of_the_handler(app: App) -> None:
    """What is accepted comes back equal, by way of the stored JSON: rich types, too, where they are annotated."""
    given: list[object] = []

    @app.jobs.handler
    def remind(
        at: datetime,
        every: timedelta,
        days: list[date],
        price: Decimal,
        order: UUID,
        seal: bytes,
        tags: set[str],
        pair: tuple[int, str],
        colour: Colour,
        line: Line,
        counts: dict[int, str],
        plain: Any,
    ) -> None:
        given.extend([at, every, days, price, order, seal, tags, pair, colour, line, counts, plain])

    sent: list[Any] = [
        *(datetime(2026, 3, 1, 12, 30, tzinfo=UTC), timedelta(hours=2), [date(2026, 3, 2)], Decimal("1.10")),
        *(UUID(int=7), b"\xff\x00", {"a", "b"}, (1, "a"), Colour.RED, Line("a", Decimal("0.30")), {1: "one"}),
        {"deep": [1, 2.5, None, True, "ü"]},
    ]
    job = app.add(remind, *sent)

    app.run()

    assert app.row(job).status == "done"
    assert given == sent
    assert [type(value) for value in given] == [type(value) for value in sent]


@pytest.mark.parametrize("number", [1e16, 1e23, -1.5e300, 5e-324, 2**70])
def test_f33_number_without_an_annotation_comes_back_as_it_was(app: App, number: float) -> None:
    """A float from 1e16 on may come back as the int that its JSON is, as the README says; as a float it is the same."""
    given: list[object] = []

    @app.jobs.handler
    def plain(*, value: Any) -> Any:
        given.append(value)
        return value

    job = app.add(plain, value=number)

    app.run()

    result = app.row(job).result
    assert [float(cast("float", given[0])), float(result)] == [float(number)] * 2
