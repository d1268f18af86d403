from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, select, update

from sqla_jobs.rules.settlement import (
    Failed,
    GaveUp,
    Interrupted,
    Outcome,
    Released,
    Returned,
    Snoozed,
    Vanished,
)
from tests.operations.blocking import PATIENCE, until_blocked
from tests.operations.leasing import (
    HOUR,
    end,
    reap,
    row,
    take,
    take_one,
)
from tests.operations.shop import Job, clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, sessionmaker

    from sqla_jobs.rules.lease import Lease

OUTCOMES: list[Outcome] = [
    Returned(1),
    Failed("boom"),
    Vanished("gone"),
    GaveUp("no"),
    Snoozed(HOUR),
    Interrupted("connection lost"),
    Released(),
]


def reap_it(session: Session, lease: Lease) -> None:
    clock.advance(session, HOUR)
    assert [settlement.lease for settlement in reap(session)] == [lease]


def claim_it_again(session: Session, lease: Lease) -> None:
    reap_it(session, lease)
    clock.advance(session, HOUR)
    assert [again.id for again in take(session, by="w2")] == [lease.id]


def claim_it_again_by_the_same_name(session: Session, lease: Lease) -> None:
    reap_it(session, lease)
    clock.advance(session, HOUR)
    assert [again.id for again in take(session, by="w1")] == [lease.id]


def claim_it_again_and_finish(session: Session, lease: Lease) -> None:
    reap_it(session, lease)
    clock.advance(session, HOUR)
    (again,) = take(session, by="w1")
    assert end(session, again, Returned("second"))


def delete_it(session: Session, lease: Lease) -> None:
    session.execute(delete(Job).where(Job.id == lease.id))


def cancel_it(session: Session, lease: Lease) -> None:
    session.execute(update(Job).where(Job.id == lease.id).values(status="failed", last_error="cancelled"))


def mark_it_dead(session: Session, lease: Lease) -> None:
    session.execute(update(Job).where(Job.id == lease.id).values(status="dead"))


def requeue_and_claim_it(session: Session, lease: Lease) -> None:
    mark_it_dead(session, lease)
    session.execute(update(Job).where(Job.id == lease.id).values(status="ready", attempts=0, refunds=0))
    assert len(take(session, by="w1")) == 1


def settle_it(session: Session, lease: Lease) -> None:
    assert end(session, lease, Returned("first"))


FENCED = [
    reap_it,
    claim_it_again,
    claim_it_again_by_the_same_name,
    claim_it_again_and_finish,
    delete_it,
    cancel_it,
    mark_it_dead,
    requeue_and_claim_it,
    settle_it,
]


@pytest.mark.parametrize("loss", FENCED)
def test_late_settle_changes_nothing(session: Session, loss: Callable[[Any, Any], None]) -> None:
    """Whoever comes back to a job that is no longer his claim matches no row, however his attempt ended."""
    lease = take_one(session)
    loss(session, lease)
    rows = select(Job.__table__).where(Job.id == lease.id)
    before = session.execute(rows).all()

    for outcome in OUTCOMES:
        assert not end(session, lease, outcome)

    assert session.execute(rows).all() == before


@pytest.mark.parametrize("part", [{"claims": 2}, {"claims": 0}, {"locked_by": "w2"}, {"id": 999}])
def test_every_part_of_the_fence_counts(session: Session, part: dict[str, Any]) -> None:
    """A settle with a wrong claim, worker or job matches no row."""
    lease = take_one(session)
    before = row(session, lease.id)

    assert not end(session, lease._replace(**part), Returned())

    assert row(session, lease.id) == before


def test_settle_waits_for_a_lock_and_then_sees_what_was_written(
    postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session]
) -> None:
    """A settle that meets one in flight waits for its end, so that its answer is final: of two, one matches."""
    with postgresql_sessions() as session:
        lease = take_one(session)

    def late() -> bool:
        with postgresql_sessions.begin() as session:
            return end(session, lease, Failed("no answer"))

    with ThreadPoolExecutor(1) as thread, postgresql_sessions() as session:
        assert end(session, lease, Returned("written"))
        answer = thread.submit(late)
        until_blocked(postgresql_engine, answer)
        session.commit()

        assert answer.result(PATIENCE) is False
        assert row(session, lease.id)["result"] == "written"


def test_settle_that_waits_matches_when_the_other_rolls_back(
    postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session]
) -> None:
    """When the settle in flight fails, the one that waited for it is written."""
    with postgresql_sessions() as session:
        lease = take_one(session)

    def late() -> bool:
        with postgresql_sessions.begin() as session:
            return end(session, lease, Failed("the commit failed"))

    with ThreadPoolExecutor(1) as thread, postgresql_sessions() as session:
        assert end(session, lease, Returned("never"))
        answer = thread.submit(late)
        until_blocked(postgresql_engine, answer)
        session.rollback()

        assert answer.result(PATIENCE) is True
        after = row(session, lease.id)
        assert (after["status"], after["result"], after["last_error"]) == ("ready", None, "the commit failed")
