from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import IntegrityError

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.enqueue_many import Enqueued, enqueue_many
from tests.operations.blocking import PATIENCE, until_blocked
from tests.operations.shop import Customer, Job, OtherJob, mail, other_jobs, send, store, tidy, timed_send

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, sessionmaker

NEXT_YEAR = datetime(2031, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


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


def test_results_come_in_the_order_of_the_inputs(session: Session) -> None:
    """Each input has its result at its place, with the id of its own row."""
    results = enqueue_many(session, [send.job(order_id=number) for number in range(50)])

    assert orders(session, results) == list(range(50))
    assert not any(result.is_duplicate for result in results)
    assert len({result.id for result in results}) == 50


def test_result_is_a_frozen_value(session: Session) -> None:
    """A result is no ORM object: it holds over commit and rollback, and can't be changed."""
    (result,) = enqueue_many(session, [send.job(order_id=1)])

    assert result == Enqueued(id=result.id, is_duplicate=False)
    assert not session.identity_map.values()
    changed: Any = result
    with pytest.raises(FrozenInstanceError):
        changed.id = 5


@pytest.mark.parametrize(
    "inputs", [[], iter(()), (number for number in list[int]())], ids=["list", "iterator", "generator"]
)
def test_no_inputs_say_nothing(session: Session, inputs: Any) -> None:
    """An empty batch is no statement, and no error."""
    said = statements_of(session)

    assert enqueue_many(session, inputs) == []
    assert said == []


def test_generator_is_taken(session: Session) -> None:
    """Inputs may come one by one."""
    results = enqueue_many(session, (send.job(order_id=number) for number in range(3)))

    assert orders(session, results) == [0, 1, 2]


def test_first_of_a_key_is_stored_whatever_the_options(session: Session) -> None:
    """Of inputs with one key the first in the list is stored, also where their options differ."""
    plain, delayed, at = send, send.using(delay=HOUR), send.using(run_at=NEXT_YEAR)

    results = enqueue_many(
        session,
        [
            plain.using(key="a").job(order_id=0),
            delayed.using(key="k").job(order_id=1),
            plain.using(key="k").job(order_id=2),
            at.using(key="k").job(order_id=3),
            plain.using(key="k", columns={"level": 3}).job(order_id=4),
        ],
    )

    assert [result.is_duplicate for result in results] == [False, False, True, True, True]
    assert orders(session, results) == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("mistake", [send, 5, None, "send", {"order_id": 5}])
def test_what_is_no_new_job_is_refused_before_any_row_is_written(session: Session, mistake: Any) -> None:
    """A handler, or arguments, in place of `handler.job(…)` are told with the remedy."""
    said = statements_of(session)

    with pytest.raises(InvalidOption, match=r"handler\.job\("):
        enqueue_many(session, [send.job(order_id=1), mistake])

    assert said == []


def test_options_of_each_input_hold(session: Session) -> None:
    """Handlers, queues, times, keys and own columns may differ from input to input."""
    session.add(Customer(id=3, name="ann"))
    results = enqueue_many(
        session,
        [
            send.job(order_id=1),
            mail.job("ann", urgent=True),
            send.using(queue="bulk", max_attempts=9, delay=HOUR).job(order_id=2),
            send.using(run_at=NEXT_YEAR, key="k").job(order_id=3),
            send.using(columns={"tenant": "north", "level": 7, "customer_id": 3}).job(order_id=4),
            send.using(columns={"tenant": "south"}, delay=2 * HOUR).job(order_id=5),
        ],
    )

    found = {job.id: job for job in session.scalars(select(Job)).unique()}
    rows = [found[result.id] for result in results]
    assert [(job.type, job.queue, job.max_attempts) for job in rows] == [
        ("send", "default", 5),
        ("mail", "mail", 3),
        ("send", "bulk", 9),
        *[("send", "default", 5)] * 3,
    ]
    assert rows[1].payload == {"to": "ann", "urgent": True}
    assert [round((job.run_at - job.created_at) / HOUR) for job in rows if job.run_at != NEXT_YEAR] == [0, 0, 1, 0, 2]
    assert (rows[3].run_at, rows[3].idempotency_key) == (NEXT_YEAR, "k")
    assert [(job.tenant, job.level, job.customer_id) for job in rows[3:]] == [
        ("house", 1, None),
        ("north", 7, 3),
        ("south", 1, None),
    ]
    assert len({job.token for job in rows}) == len(rows)


def test_values_that_are_equal_and_not_the_same_stay_apart(session: Session) -> None:
    """Payloads that Python takes for equal are stored as they are."""
    results = enqueue_many(session, [store.job(value=value) for value in (1, True, 1.0, "1", None)])

    payloads = {row.id: row.payload for row in session.execute(select(Job.id, Job.payload))}
    assert [repr(payloads[result.id]["value"]) for result in results] == ["1", "True", "1.0", "'1'", "None"]


def test_jobs_of_many_queues_are_one_batch(session: Session) -> None:
    """A queue for each of two thousand tenants is no more than a column's value."""
    results = enqueue_many(
        session, [send.using(queue=f"tenant-{number}").job(order_id=number) for number in range(2000)]
    )

    assert orders(session, results) == list(range(2000))


def test_jobs_of_several_tables_are_stored_in_their_own(session: Session) -> None:
    """One call may enqueue for several registries: each result has the id in its own table."""
    results = enqueue_many(
        session, [tidy.job(days=1), send.job(order_id=1), tidy.job(days=2), timed_send.job(order_id=2)]
    )

    assert session.scalars(select(OtherJob.id).order_by(OtherJob.id)).all() == [results[0].id, results[2].id]
    assert orders(session, [results[1], results[3]]) == [1, 2]
    assert other_jobs.model is OtherJob


def test_unique_column_of_the_apps_still_raises(session: Session) -> None:
    """A batch with keys ignores taken keys, and nothing else."""
    twice = send.using(columns={"reference": "r"})

    with pytest.raises(IntegrityError):
        enqueue_many(session, [twice.using(key=key).job(order_id=1) for key in "ab"])


@pytest.mark.parametrize("autoflush", [True, False])
def test_pending_objects_keep_their_ways(sessions: sessionmaker[Session], *, autoflush: bool) -> None:
    """Objects that wait for their flush are flushed first where autoflush is on, and wait on where it is off."""
    with sessions(autoflush=autoflush) as session:
        customer = Customer(name="ann")
        session.add(customer)

        enqueue_many(session, [send.job(order_id=1), keyed("k", 2)])

        assert (customer in session.new) is not autoflush
        session.commit()
        assert session.scalars(select(Customer.name)).one() == "ann"


def test_batches_follow_savepoints(session: Session) -> None:
    """A batch in a savepoint that is rolled back is gone, and its keys are free."""
    with session.begin_nested() as savepoint:
        enqueue_many(session, [keyed("a", 1), send.job(order_id=2)])
        savepoint.rollback()

    results = enqueue_many(session, [keyed("a", 3), send.job(order_id=4)])

    assert not any(result.is_duplicate for result in results)
    assert orders(session, results) == [3, 4]


Inputs = list[tuple[str, timedelta | None]]

BATCHES: dict[str, tuple[Inputs, Inputs]] = {
    "keys": ([("a", None), ("b", None)], [("b", None), ("a", None)]),
    "keys and delays": ([("a", None), ("b", HOUR)], [("b", None), ("a", HOUR)]),
    "delays": ([("b", HOUR), ("a", 2 * HOUR)], [("a", 2 * HOUR), ("b", HOUR)]),
}


@pytest.mark.parametrize("batch", BATCHES)
def test_batches_with_the_same_keys_cannot_deadlock(
    postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session], batch: str
) -> None:
    """Two batches take the keys that they share in one order, whatever order and options their inputs have."""
    at_first_key, may_go_on = threading.Event(), threading.Event()

    def jobs_of(inputs: Inputs) -> list[Any]:
        return [send.using(key=key, delay=delay).job(order_id=1) for key, delay in inputs]

    def pause(*args: Any) -> None:
        """Stop after the first statement that took a key."""
        if "ON CONFLICT" in args[2] and not at_first_key.is_set():
            at_first_key.set()
            assert may_go_on.wait(PATIENCE)

    def second() -> list[bool]:
        with postgresql_sessions.begin() as session:
            event.listen(session.connection(), "after_cursor_execute", pause)
            return [result.is_duplicate for result in enqueue_many(session, jobs_of(BATCHES[batch][1]))]

    with ThreadPoolExecutor(2) as threads, postgresql_sessions() as session:
        answer = threads.submit(second)
        assert at_first_key.wait(PATIENCE)
        mine = threads.submit(enqueue_many, session, jobs_of(BATCHES[batch][0]))
        until_blocked(postgresql_engine, mine)
        may_go_on.set()

        assert answer.result(PATIENCE) == [False, False]
        assert [result.is_duplicate for result in mine.result(PATIENCE)] == [True, True]
        session.commit()
