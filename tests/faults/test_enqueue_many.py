"""Batches, with keys that are taken and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, func, select

from sqla_jobs import Enqueued, PayloadError, enqueue, enqueue_many
from tests.operations.shop import Job, send, store

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker


def keyed(key: str, order_id: int) -> Any:
    return send.using(key=key).job(order_id=order_id)


def orders(session: Session, results: list[Enqueued]) -> list[int]:
    """Give the order id of the job that each result names."""
    payloads = {row.id: row.payload for row in session.execute(select(Job.id, Job.payload))}
    return [payloads[result.id]["order_id"] for result in results]


def statements_of(session: Session) -> list[str]:
    said: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *args: said.append(args[2]))
    return said


def test_f30_duplicates_within_and_before_the_batch_are_flagged(session: Session) -> None:
    """Two that share a key, one whose key exists, two without a key: one result for each, and no error."""
    old = enqueue(session, send.using(key="old"), order_id=0).id

    results = enqueue_many(
        session,
        [keyed("new", 1), keyed("old", 2), send.job(order_id=3), keyed("new", 4), send.job(order_id=5), keyed("x", 6)],
    )

    assert [result.is_duplicate for result in results] == [False, True, False, True, False, False]
    assert results[1].id == old
    assert results[3].id == results[0].id
    assert orders(session, results) == [1, 0, 3, 1, 5, 6]


def test_f30_bad_payload_is_refused_before_any_row_is_written(sessions: sessionmaker[Session]) -> None:
    """A payload that can't be stored fails where its job is made: the batch was never begun."""
    with sessions.begin() as session:
        with pytest.raises(PayloadError, match="value"):
            enqueue_many(session, [store.job(value=1), store.job(value=object()), store.job(value=2)])

        assert session.scalars(select(func.count()).select_from(Job)).one() == 0


def test_f30_20000_inputs_are_a_statement_for_each_thousand(sessions: sessionmaker[Session]) -> None:
    """A large batch is split below the limits of parameters, stays in one transaction, and keeps its order."""
    with sessions.begin() as session:
        said = statements_of(session)
        results = enqueue_many(session, [send.job(order_id=number) for number in range(20_000)])

        assert sum("INSERT" in each for each in said) <= 20
        assert len(said) <= 21
        assert orders(session, results) == list(range(20_000))
        session.rollback()
    with sessions() as session:
        assert session.scalars(select(func.count()).select_from(Job)).one() == 0


def test_f30_thousands_of_keys_are_stored_once_each(session: Session) -> None:
    """With keys the same, half of them taken already, and each result is at its place."""
    enqueue_many(session, [keyed(f"k{number}", number) for number in range(0, 5000, 2)])
    said = statements_of(session)

    results = enqueue_many(session, [keyed(f"k{number}", -number) for number in reversed(range(5000))])

    assert sum("INSERT" in each for each in said) <= 5
    assert [result.is_duplicate for result in results] == [False, True] * 2500
    assert orders(session, results) == [number if number % 2 == 0 else -number for number in reversed(range(5000))]
