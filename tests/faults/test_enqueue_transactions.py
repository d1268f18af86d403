"""Transactions that enqueue one key while the other is open, and at one moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.exc import OperationalError

from sqla_jobs import enqueue, enqueue_many
from sqla_jobs.schema.trouble import is_outage
from tests.operations.blocking import PATIENCE, until_blocked
from tests.operations.shop import Job, send
from tests.races.scene import Job as RacedJob
from tests.races.scene import Scene, work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, sessionmaker


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    """Give a thread for the second of two transactions."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def race(database_url: str) -> Iterator[Scene]:
    """Give a job table to race on, on each kind of database in turn."""
    scene = Scene(database_url)
    yield scene
    scene.engine.dispose()


def keyed(session: Session, key: str, order_id: int) -> Job:
    return enqueue(session, send.using(key=key), order_id=order_id)


def stored(sessions: sessionmaker[Session]) -> list[tuple[str | None, int]]:
    """Give the key and the order of each job."""
    with sessions() as session:
        rows = session.execute(select(Job.idempotency_key, Job.payload).order_by(Job.idempotency_key)).all()
    return [(row.idempotency_key, row.payload["order_id"]) for row in rows]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_f25_second_transaction_waits_for_the_first_of_a_key(
    postgresql_engine: Engine,
    postgresql_sessions: sessionmaker[Session],
    other_thread: ThreadPoolExecutor,
    end: str,
) -> None:
    """While a key's transaction is open the next waits: then it gets that job, or stores its own: one in each case."""

    def second() -> tuple[int, bool]:
        with postgresql_sessions.begin() as session:
            job = keyed(session, "k", 2)
            return job.payload["order_id"], job.is_duplicate

    with postgresql_sessions() as session:
        keyed(session, "k", 1)
        answer = other_thread.submit(second)
        until_blocked(postgresql_engine, answer)
        getattr(session, end)()

    expected = (1, True) if end == "commit" else (2, False)
    assert answer.result(PATIENCE) == expected
    assert stored(postgresql_sessions) == [("k", expected[0])]


def test_f25_lock_timeout_on_a_taken_key_is_an_error(postgresql_sessions: sessionmaker[Session]) -> None:
    """A wait that is cut off is the database's error, never a false success."""
    with postgresql_sessions() as first, postgresql_sessions() as second:
        keyed(first, "k", 1)
        second.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(OperationalError, match="lock timeout"):
            keyed(second, "k", 2)
        second.rollback()
        first.commit()

    assert stored(postgresql_sessions) == [("k", 1)]


def test_f25_keys_taken_crosswise_end_one_transaction(
    postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session], other_thread: ThreadPoolExecutor
) -> None:
    """Two transactions that take a, b and b, a can't both go on: one gets the database's deadlock error."""
    has_b, may_go_on = threading.Event(), threading.Event()

    def second() -> str:
        with postgresql_sessions() as session:
            keyed(session, "b", 2)
            has_b.set()
            assert may_go_on.wait(PATIENCE)
            return finish(session, "a", 2)

    def finish(session: Session, key: str, order_id: int) -> str:
        try:
            keyed(session, key, order_id)
            session.commit()
        except OperationalError as error:
            session.rollback()
            return getattr(error.orig, "sqlstate", "")
        return "committed"

    with postgresql_sessions() as session:
        keyed(session, "a", 1)
        answer = other_thread.submit(second)
        assert has_b.wait(PATIENCE)
        may_go_on.set()
        until_blocked(postgresql_engine, answer)
        ends = [finish(session, "b", 1), answer.result(PATIENCE)]

    assert sorted(ends) == ["40P01", "committed"]
    assert [key for key, _ in stored(postgresql_sessions)] == ["a", "b"]
    assert len({order_id for _, order_id in stored(postgresql_sessions)}) == 1


def wait_for_nobody(connection: Any, _: object) -> None:
    connection.execute("PRAGMA busy_timeout = 0")


def test_f25_second_writer_of_a_key_fails_on_a_busy_file(
    sqlite_engine: Engine, sqlite_sessions: sessionmaker[Session]
) -> None:
    """On SQLite the second writer gets the database's own error when its patience ends, and then the first's job."""
    event.listen(sqlite_engine, "connect", wait_for_nobody)

    with sqlite_sessions() as first, sqlite_sessions() as second:
        keyed(first, "k", 1)
        with pytest.raises(OperationalError, match="locked") as caught:
            keyed(second, "k", 2)
        second.rollback()
        first.commit()

        assert is_outage(caught.value.orig)  # type: ignore[arg-type]  # it has one
        assert keyed(second, "k", 2).payload == {"order_id": 1}


ROUNDS = 10


def put(session: Session, key: str) -> tuple[int, bool]:
    """Enqueue a job with a key, and give its id and whether it was there."""
    job = enqueue(session, work.using(key=key))
    return job.id, job.is_duplicate


def put_all(session: Session, keys: list[str]) -> dict[str, tuple[int, bool]]:
    """Enqueue a job for each key, in this order; give the same by key."""
    enqueued = enqueue_many(session, [work.using(key=key).job() for key in keys])
    return {key: (one.id, one.is_duplicate) for key, one in zip(keys, enqueued, strict=True)}


def test_f25_enqueue_of_one_key_at_one_moment_makes_one_job(race: Scene) -> None:
    """Eight threads enqueue a key: one makes the job, and the others are given it, marked as a duplicate."""
    for number in range(ROUNDS):
        key = f"key {number}"

        told = race.race(*[partial(put, key=key)] * 8)

        assert sorted(is_duplicate for _, is_duplicate in told) == [False] + [True] * 7
        with race.transaction() as session:
            stored = session.scalars(select(RacedJob.id).where(RacedJob.idempotency_key == key)).all()
        assert {job_id for job_id, _ in told} == set(stored)
        assert len(stored) == 1


def test_f25_enqueue_many_of_the_same_keys_in_any_order_makes_each_job_once(race: Scene) -> None:
    """Eight threads enqueue the same keys in different orders: nobody waits in a circle, and each key has one job."""
    keys = [f"key {number}" for number in range(10)]

    told = race.race(*(partial(put_all, keys=keys[turn:] + keys[:turn]) for turn in range(8)))

    with race.transaction() as session:
        stored = {job.idempotency_key: job.id for job in session.scalars(select(RacedJob))}
        assert session.scalar(select(func.count()).select_from(RacedJob)) == len(keys)
    assert stored.keys() == set(keys)
    for key in keys:
        assert {one[key][0] for one in told} == {stored[key]}
        assert sorted(one[key][1] for one in told) == [False] + [True] * 7
