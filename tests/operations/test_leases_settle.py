from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, func, select, text

from sqla_jobs.operations import leases
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.rules.failure import storable
from sqla_jobs.rules.settlement import (
    Failed,
    GaveUp,
    Interrupted,
    Outcome,
    Released,
    Returned,
    Snoozed,
    Vanished,
    decide,
)
from tests.operations.leasing import (
    BACKOFF,
    HOUR,
    MINUTE,
    SECOND,
    TABLE,
    add,
    changes,
    end,
    row,
    start_of,
    take,
    take_one,
)
from tests.operations.shop import Job, Note, clock, timed_send

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, sessionmaker

    from sqla_jobs.rules.lease import Lease


FREE = {"locked_until": None, "locked_by": None}


def entry(lease: Lease, error: str) -> dict[str, Any]:
    return {"attempt": 1, "started_at": start_of(lease).isoformat(), "worker": "w1", "error": error}


OUTCOMES: dict[str, tuple[Outcome, dict[str, Any], Any]] = {
    "returned": (Returned({"sent": [1, None]}), {"status": "done", "result": {"sent": [1, None]}}, None),
    "returned nothing": (Returned(), {"status": "done"}, None),
    "returned false": (Returned(False), {"status": "done", "result": False}, None),
    "returned zero": (Returned(0), {"status": "done", "result": 0}, None),
    "returned nothing much": (Returned(""), {"status": "done", "result": ""}, None),
    "returned with a note": (Returned(note="a set"), {"status": "done", "last_error": "a set"}, None),
    "failed": (Failed("boom"), {"status": "ready", "last_error": "boom", "errors": ["boom"]}, 8 * SECOND),
    "failed with a delay": (
        Failed("boom", delay=3 * SECOND),
        {"status": "ready", "last_error": "boom", "errors": ["boom"]},
        3 * SECOND,
    ),
    "gave up": (GaveUp("no"), {"status": "failed", "last_error": "no", "errors": ["no"]}, None),
    "snoozed": (Snoozed(5 * SECOND), {"status": "ready", "attempts": 0}, 5 * SECOND),
    "released": (Released(), {"status": "ready", "attempts": 0}, None),
    "vanished": (
        Vanished("gone"),
        {"status": "ready", "last_error": "gone", "errors": ["gone"], "lease_expirations": 1},
        8 * SECOND,
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_settle_changes_exactly_what_the_outcome_says(session: Session, name: str) -> None:
    """Each outcome changes its columns by the database's clock, ends the lease, and leaves all others as they were."""
    outcome, values, delay = OUTCOMES[name]
    lease = take_one(session)
    before = row(session, lease.id)
    clock.advance(session, MINUTE)

    assert end(session, lease, outcome)

    after = row(session, lease.id)
    expected = {"locked_until": None} | values
    if values["status"] == "ready":
        expected |= FREE
    if "errors" in values:
        expected["errors"] = [entry(lease, error) for error in values["errors"]]
    changed = changes(before, after)
    times = {"run_at", "finished_at", "last_lease_expired_at"} & changed.keys()
    assert {column: value for column, value in changed.items() if column not in times} == expected
    assert ("run_at" in times) == (delay is not None)
    assert ("finished_at" in times) == (values["status"] != "ready")
    assert ("last_lease_expired_at" in times) == ("lease_expirations" in values)
    for column in times:
        moved = after[column] - clock.read(session) - (delay if column == "run_at" else 0 * SECOND)
        assert abs(moved) < 5 * SECOND


def test_settle_of_the_last_attempt_ends_dead(session: Session) -> None:
    """With no attempt left a failure ends the job: it is dead, says when, and is never due again."""
    lease = take_one(session, max_attempts=1)

    assert end(session, lease, Failed("boom"))

    after = row(session, lease.id)
    assert (after["status"], after["attempts"], after["last_error"]) == ("dead", 1, "boom")
    assert after["finished_at"] is not None
    assert (after["locked_by"], after["locked_until"]) == ("w1", None)
    clock.advance(session, 1000 * HOUR)
    assert take(session) == []


def test_interrupted_is_refunded_and_due_soon(session: Session) -> None:
    """An error of the database gives the attempt back, counts the refund, and is tried again within moments."""
    lease = take_one(session, max_attempts=1)

    assert end(session, lease, Interrupted("connection lost"))

    after = row(session, lease.id)
    assert (after["status"], after["attempts"], after["refunds"]) == ("ready", 0, 1)
    assert (after["last_error"], after["errors"]) == ("connection lost", [])
    assert 0 * SECOND < after["run_at"] - clock.read(session) < SECOND


def test_released_job_keeps_its_place(session: Session) -> None:
    """A job given back at shutdown goes before those that became due after it."""
    lease = take_one(session)
    younger = add(session)

    assert end(session, lease, Released())

    assert [again.id for again in take(session)] == [lease.id, younger]


def test_job_runs_again_after_its_backoff(session: Session) -> None:
    """A failed attempt is due after its backoff, by the database's clock, with its history in the next lease."""
    lease = take_one(session)
    end(session, lease, Failed("boom"))

    early = take(session)
    clock.advance(session, 9 * SECOND)
    (again,) = take(session)

    assert early == []
    assert (again.id, again.attempt, again.claims) == (lease.id, 2, 2)
    assert again.errors == (entry(lease, "boom"),)


def test_errors_keep_the_newest_ten_of_at_most_two_kib(session: Session) -> None:
    """Fifteen failures leave the last ten, each cut to its end, and the row says the last one at length."""
    lease = take_one(session, max_attempts=50)
    for number in range(15):
        end(session, lease, Failed(f"{'é' * 6000} error {number}"))
        clock.advance(session, MINUTE)
        (lease,) = take(session)

    after = row(session, lease.id)
    assert [kept["attempt"] for kept in after["errors"]] == list(range(6, 16))
    assert [kept["error"].rpartition(" ")[2] for kept in after["errors"]] == [str(number) for number in range(5, 15)]
    assert all(len(kept["error"].encode()) <= 2048 for kept in after["errors"])
    assert len(after["last_error"].encode()) <= 8192
    assert after["last_error"].endswith("error 14")


def test_success_after_failures_keeps_their_history(session: Session) -> None:
    """A job that succeeds at last still says what went wrong before."""
    lease = take_one(session)
    end(session, lease, Failed("boom"))
    clock.advance(session, MINUTE)
    (again,) = take(session)

    end(session, again, Returned(5))

    after = row(session, lease.id)
    assert (after["status"], after["result"], after["last_error"]) == ("done", 5, "boom")
    assert after["errors"] == [entry(lease, "boom")]


def test_batch_settles_each_by_its_own_outcome(session: Session) -> None:
    """One statement ends many attempts in different ways; those whose fence is gone are missing in the answer."""
    held = [take_one(session) for _ in range(6)]
    session.execute(delete(Job).where(Job.id == held[5].id))
    outcomes: list[Outcome] = [Returned(1), Failed("boom"), GaveUp("no"), Snoozed(HOUR), Released(), Returned(2)]
    settlements = [
        decide(lease, outcome, backoff=BACKOFF, draw=0) for lease, outcome in zip(held, outcomes, strict=True)
    ]

    assert leases.settle(session, TABLE, settlements) == {lease.key for lease in held[:5]}
    assert leases.settle(session, TABLE, []) == frozenset()
    statuses = [row(session, lease.id)["status"] for lease in held[:5]]
    assert statuses == ["done", "ready", "failed", "ready", "ready"]


def test_thousand_jobs_are_settled_by_one_statement(session: Session) -> None:
    """A batch of any size is one parameter."""
    enqueue_many(session, [timed_send.job(order_id=number) for number in range(1000)])
    held = take(session, limit=1000)

    settled = leases.settle(
        session, TABLE, [decide(lease, Returned(lease.id), backoff=BACKOFF, draw=0) for lease in held]
    )

    assert settled == {lease.key for lease in held}
    assert session.scalars(select(func.count()).where(Job.status == "done")).one() == 1000


def test_settle_commits_together_with_the_writes_of_its_session(sessions: sessionmaker[Session]) -> None:
    """What a handler wrote and the completion stand or fall together."""
    with sessions() as session:
        lease = take_one(session)

    for finish in ("rollback", "commit"):
        with sessions() as session:
            session.add(Note(job_id=lease.id))
            assert end(session, lease, Returned())
            getattr(session, finish)()
        with sessions() as session:
            found = (row(session, lease.id)["status"], session.scalars(select(func.count()).select_from(Note)).one())
            assert found == (("running", 0) if finish == "rollback" else ("done", 1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(error=st.text(st.characters(codec=None)))
def test_error_text_can_always_be_stored(session: Session, error: str) -> None:
    """Whatever an error says, once made storable it comes back from the row as it went in."""
    with session.begin_nested() as savepoint:
        job_id = add(session)
        (lease,) = (lease for lease in take(session) if lease.id == job_id)

        assert end(session, lease, Failed(storable(error)))

        after = row(session, job_id)
        assert after["last_error"] == storable(error)
        assert after["errors"][-1]["error"] == storable(error)
        savepoint.rollback()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\"'\\é", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(result=json_values)
def test_result_comes_back_as_it_was_returned(session: Session, result: Any) -> None:
    """What a handler returned is stored as it is, down to the difference of `0`, `false`, `""` and nothing."""
    with session.begin_nested() as savepoint:
        job_id = add(session)
        (lease,) = (lease for lease in take(session) if lease.id == job_id)

        assert end(session, lease, Returned(result))

        stored = row(session, job_id)["result"]
        assert (stored, type(stored)) == (result, type(result))
        savepoint.rollback()


def test_settle_on_a_session_in_a_stricter_isolation(postgresql_engine: Engine) -> None:
    """A settle whose snapshot is older than another's write is a serialization error, and no silent miss."""
    from sqlalchemy.exc import OperationalError
    from sqlalchemy.orm import Session as PlainSession

    strict = postgresql_engine.execution_options(isolation_level="REPEATABLE READ")
    with PlainSession(postgresql_engine) as session:
        lease = take_one(session)

    with PlainSession(strict) as handler, PlainSession(postgresql_engine) as other:
        handler.execute(text("SELECT 1"))
        assert handler.get_one(Job, lease.id).status == "running"
        leases.renew(other, TABLE, [lease], lease=HOUR)
        other.commit()

        with pytest.raises(OperationalError) as caught:
            end(handler, lease, Returned())

    assert getattr(caught.value.orig, "sqlstate", "") == "40001"
