from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, event, select, update

from sqla_jobs.operations import leases
from sqla_jobs.operations.leases import Renewal
from sqla_jobs.rules.settlement import Failed, Released, Returned
from tests.operations.leasing import HOUR, SECOND, TABLE, add, changes, end, reap, row, take, take_one
from tests.operations.shop import Job, Note, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session, sessionmaker

    from sqla_jobs.rules.lease import Lease


def renew(session: Session, held: Sequence[Lease]) -> Renewal:
    return leases.renew(session, TABLE, held, lease=HOUR)


def found(renewed: Sequence[Lease] = (), unknown: Sequence[Lease] = (), lost: Sequence[Lease] = ()) -> Renewal:
    return Renewal(*(frozenset(lease.key for lease in each) for each in (renewed, unknown, lost)))


def test_renew_extends_the_lease_and_nothing_else(session: Session) -> None:
    """A heartbeat moves `locked_until` to one lease from now, by the database's clock, and no other column."""
    lease = take_one(session)
    before = row(session, lease.id)
    clock.advance(session, 30 * SECOND)

    renewal = renew(session, [lease])

    changed = changes(before, row(session, lease.id))
    assert renewal == found(renewed=[lease])
    assert list(changed) == ["locked_until"]
    assert abs(changed["locked_until"] - clock.read(session) - HOUR) < 5 * SECOND


def test_expired_lease_that_nobody_reaped_is_renewed(session: Session) -> None:
    """Expired is not lost: as long as the row bears the fence the lease is held."""
    lease = take_one(session)
    clock.advance(session, 3 * HOUR)

    renewal = renew(session, [lease])

    assert renewal == found(renewed=[lease])
    assert reap(session) == []


def delete_it(session: Session, lease: Lease) -> None:
    session.execute(delete(Job).where(Job.id == lease.id))


def mark_it_dead(session: Session, lease: Lease) -> None:
    session.execute(update(Job).where(Job.id == lease.id).values(status="dead"))


def reap_it(session: Session, lease: Lease) -> None:
    clock.advance(session, HOUR)
    assert lease.id in [settlement.lease.id for settlement in reap(session)]


def reap_and_claim_it_again(session: Session, lease: Lease) -> None:
    reap_it(session, lease)
    clock.advance(session, HOUR)
    assert lease.id in [again.id for again in take(session, by="w1")]


def settle_it(session: Session, lease: Lease) -> None:
    assert end(session, lease, Returned())


def release_it(session: Session, lease: Lease) -> None:
    assert end(session, lease, Released())


def keep_it(session: Session, lease: Lease) -> None: ...


LOSSES = [delete_it, mark_it_dead, reap_it, reap_and_claim_it_again, settle_it, release_it]


@pytest.mark.parametrize("loss", LOSSES)
def test_lease_whose_fence_is_gone_is_lost(session: Session, loss: Callable[[Any, Any], None]) -> None:
    """A row that bears the fence no more is lost, and the heartbeat that says so changes nothing in it."""
    lease, other = take_one(session), take_one(session)
    loss(session, lease)
    renewed = [other] if loss not in {reap_it, reap_and_claim_it_again} else []
    rows = select(Job.__table__).where(Job.id == lease.id)
    before = session.execute(rows).all()

    renewal = renew(session, [lease])

    assert renewal == found(lost=[lease])
    assert session.execute(rows).all() == before
    assert renew(session, renewed) == found(renewed=renewed)


@pytest.mark.parametrize("part", [{"claims": 2}, {"locked_by": "w2"}, {"id": 999}])
def test_fence_of_another_is_not_mine(session: Session, part: dict[str, Any]) -> None:
    """Each part of the fence counts: the claim, the worker and the job."""
    lease = take_one(session)

    assert renew(session, [lease._replace(**part)]).lost == {lease._replace(**part).key}


def test_many_leases_are_renewed_by_one_statement(session: Session) -> None:
    """A worker's heartbeat is one statement for all that it holds, and one more where something is missing."""
    held = [take_one(session) for _ in range(10)]
    delete_it(session, held[3])
    said: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *args: said.append(args[2]))

    renewal = renew(session, held)

    assert renewal == found(renewed=held[:3] + held[4:], lost=[held[3]])
    assert len(said) == 2


def test_no_leases_say_nothing(session: Session) -> None:
    """A worker that holds nothing asks nothing."""
    said: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *args: said.append(args[2]))

    assert renew(session, []) == found()
    assert said == []


def test_locked_row_is_unknown_and_not_waited_for(postgresql_sessions: sessionmaker[Session]) -> None:
    """A row that a transaction has locked, as a handler's own may, is passed over at once: it is still held."""
    with postgresql_sessions() as session:
        locked, free = take_one(session), take_one(session)

    with postgresql_sessions() as holder, postgresql_sessions() as session:
        holder.execute(select(Job.id).where(Job.id == locked.id).with_for_update())

        assert renew(session, [locked, free]) == found(renewed=[free], unknown=[locked])


def test_row_that_a_settle_in_flight_has_locked_is_unknown(postgresql_sessions: sessionmaker[Session]) -> None:
    """A settle that has not committed has not happened: the heartbeat neither waits for it nor takes it for a loss."""
    with postgresql_sessions() as session:
        lease = take_one(session)

    with postgresql_sessions() as settling, postgresql_sessions() as session:
        assert end(settling, lease, Returned())
        during = renew(session, [lease])
        settling.commit()

        assert during == found(unknown=[lease])
        assert renew(session, [lease]) == found(lost=[lease])


def test_child_row_in_an_open_transaction_stops_no_heartbeat(postgresql_sessions: sessionmaker[Session]) -> None:
    """A handler that writes rows which refer to its job doesn't hold up its own lease."""
    with postgresql_sessions() as session:
        lease = take_one(session)

    with postgresql_sessions() as app, postgresql_sessions() as session:
        app.add(Note(job_id=lease.id))
        app.flush()

        assert renew(session, [lease]) == found(renewed=[lease])


def test_two_heartbeats_at_once_deadlock_with_nobody(postgresql_sessions: sessionmaker[Session]) -> None:
    """Batches of the same rows in any order pass over each other."""
    with postgresql_sessions() as session:
        held = [take_one(session) for _ in range(20)]

    def beat(batch: list[Lease]) -> Renewal:
        with postgresql_sessions.begin() as session:
            return renew(session, batch)

    with ThreadPoolExecutor(2) as threads:
        beats = [threads.submit(beat, batch) for batch in (held, held[::-1]) * 10]
        renewals = [each.result(20) for each in beats]

    assert all(not renewal.lost for renewal in renewals)
    assert all(len(renewal.renewed | renewal.unknown) == 20 for renewal in renewals)


def test_strays_are_the_running_jobs_that_a_worker_does_not_hold(session: Session) -> None:
    """A claim whose answer was lost is found by the worker's name; what it holds, and what others have, is not."""
    held, stray, ended = (take_one(session) for _ in range(3))
    end(session, ended, Failed("boom"))
    add(session)
    others = take(session, by="w2")

    found_strays = leases.strays(session, TABLE, locked_by="w1", held=frozenset({held.key}))

    assert [lease.key for lease in found_strays] == [stray.key]
    assert found_strays == [stray]
    assert others


def test_stray_of_an_earlier_claim_is_told_from_the_one_that_is_held(session: Session) -> None:
    """The same job under another claim is not the one in hand."""
    lease = take_one(session)

    assert leases.strays(session, TABLE, locked_by="w1", held=frozenset({(lease.id, 0)})) == [lease]


@pytest.mark.parametrize(
    ("loss", "status"),
    [
        (settle_it, "done"),
        (release_it, "ready"),
        (mark_it_dead, "dead"),
        (reap_it, "ready"),
        (keep_it, "running"),
    ],
    ids=["done", "released", "dead", "reaped", "running"],
)
def test_endings_tell_how_an_attempt_ended(session: Session, loss: Callable[[Any, Any], None], status: str) -> None:
    """A worker whose commit had no answer reads how its attempt ended, as long as nobody has claimed the job since."""
    lease = take_one(session)
    loss(session, lease)

    assert leases.endings(session, TABLE, [lease]) == {lease.key: status}


@pytest.mark.parametrize("loss", [delete_it, reap_and_claim_it_again])
def test_endings_are_silent_when_the_claim_is_gone(session: Session, loss: Callable[[Any, Any], None]) -> None:
    """A job that is gone, or somebody else's by now, tells nothing of the earlier attempt."""
    lease = take_one(session)
    loss(session, lease)

    assert leases.endings(session, TABLE, [lease]) == {}
    assert leases.endings(session, TABLE, []) == {}
