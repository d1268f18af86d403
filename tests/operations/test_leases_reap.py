from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select

from sqla_jobs.operations import leases
from sqla_jobs.rules.settlement import Returned
from tests.operations.leasing import (
    HOUR,
    MINUTE,
    SECOND,
    TABLE,
    changes,
    end,
    reap,
    row,
    start_of,
    take,
    take_one,
    vanish,
)
from tests.operations.shop import Job, Note, clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session, sessionmaker

    from sqla_jobs.rules.settlement import Settlement


def reaped(settlements: Sequence[Settlement]) -> list[int]:
    return sorted(settlement.lease.id for settlement in settlements)


def running(session: Session, count: int, **values: Any) -> list[int]:
    """Insert jobs whose lease ran out a minute ago, and commit."""
    now = clock.read(session)
    expired = {
        "type": "send",
        "status": "running",
        "attempts": 1,
        "claims": 1,
        "locked_by": "gone",
        "locked_until": now - MINUTE,
        "started_at": now - HOUR,
        "run_at": now - HOUR,
    }
    rows = [expired | values] * count
    ids = list(session.scalars(insert(Job).returning(Job.id), rows))
    session.commit()
    return ids


def test_reap_backs_off_and_counts_the_expiry(session: Session) -> None:
    """A job whose worker vanished is ready again after its backoff, keeps the attempt, and says what happened."""
    lease = take_one(session)
    before = row(session, lease.id)
    clock.advance(session, 2 * MINUTE)

    assert reap(session) == [vanish(lease)]

    changed = changes(before, row(session, lease.id))
    run_at, expired_at = changed.pop("run_at"), changed.pop("last_lease_expired_at")
    error = {"attempt": 1, "started_at": start_of(lease).isoformat(), "worker": "w1", "error": "the worker vanished"}
    assert changed == {
        "status": "ready",
        "locked_by": None,
        "locked_until": None,
        "last_error": "the worker vanished",
        "errors": [error],
        "lease_expirations": 1,
    }
    assert run_at - expired_at == 8 * SECOND
    assert abs(expired_at - clock.read(session)) < 5 * SECOND


def test_reap_ends_dead_when_attempts_are_used_up(session: Session) -> None:
    """A job that kills its process runs no more often than it may: at the end it is dead, and says why."""
    lease = take_one(session, max_attempts=2)
    starts = 1
    for _ in range(5):
        clock.advance(session, HOUR)
        reap(session)
        clock.advance(session, HOUR)
        starts += len(take(session))

    after = row(session, lease.id)
    assert starts == 2
    assert (after["status"], after["attempts"], after["lease_expirations"]) == ("dead", 2, 2)
    assert (after["last_error"], len(after["errors"])) == ("the worker vanished", 2)
    assert after["finished_at"] is not None


def test_lease_that_holds_is_not_reaped(session: Session) -> None:
    """A lease is over at its time by the database's clock, and not a moment before."""
    lease = take_one(session)
    clock.advance(session, MINUTE - 10 * SECOND)

    early = reap(session)
    clock.advance(session, 20 * SECOND)

    assert early == []
    assert reaped(reap(session)) == [lease.id]
    assert reap(session) == []


def test_renewed_lease_is_not_reaped(session: Session) -> None:
    """A heartbeat just before the reaper keeps the job."""
    lease = take_one(session)
    clock.advance(session, 2 * MINUTE)
    leases.renew(session, TABLE, [lease], lease=MINUTE)

    assert reap(session) == []
    assert end(session, lease, Returned())


@pytest.mark.parametrize("status", ["ready", "done", "failed", "dead"])
def test_only_running_jobs_are_reaped(session: Session, status: str) -> None:
    """A lease that was left on a job that isn't running means nothing."""
    running(session, 1, status=status)

    assert reap(session) == []


def test_unknown_types_are_reaped_like_any_other(session: Session) -> None:
    """The reaper needs no handler: a job of a type that this process doesn't know is given back, not thrown away."""
    (job_id,) = running(session, 1, type="unknown", queue="elsewhere")

    assert reaped(reap(session)) == [job_id]
    assert row(session, job_id)["status"] == "ready"


def test_worker_of_the_same_name_keeps_no_orphan_alive(session: Session) -> None:
    """A restarted worker that bears the dead one's name and renews its own leases renews nothing else."""
    orphan = take_one(session)
    clock.advance(session, 2 * MINUTE)
    own = take_one(session)

    renewal = leases.renew(session, TABLE, [own], lease=HOUR)

    assert orphan.locked_by == own.locked_by
    assert renewal.renewed == {own.key}
    assert reaped(reap(session)) == [orphan.id]


def test_reap_takes_no_more_than_its_limit(session: Session) -> None:
    """A batch is limited, and the next one takes up where it ended."""
    ids = running(session, 25)

    batches = [reaped(reap(session, limit=10)) for _ in range(4)]

    assert [len(batch) for batch in batches] == [10, 10, 5, 0]
    assert sorted(job_id for batch in batches for job_id in batch) == ids


def test_locked_rows_are_passed_over(postgresql_sessions: sessionmaker[Session]) -> None:
    """A row that somebody holds, a settle in flight perhaps, is not waited for: the others are reaped."""
    with postgresql_sessions() as session:
        ids = running(session, 3)

    with postgresql_sessions() as holder, postgresql_sessions() as session:
        holder.execute(select(Job.id).where(Job.id == ids[1]).with_for_update())
        during = reaped(reap(session))
        session.commit()
        holder.rollback()

        assert during == [ids[0], ids[2]]
        assert reaped(reap(session)) == [ids[1]]


def test_two_reapers_share_the_jobs(postgresql_sessions: sessionmaker[Session]) -> None:
    """Each job is reaped once, whoever comes first."""
    with postgresql_sessions() as session:
        ids = running(session, 10)

    with postgresql_sessions() as first, postgresql_sessions() as second:
        shares = [reaped(reap(first, limit=6)), reaped(reap(second, limit=6))]
        second.commit()
        first.commit()
        assert sorted(shares[0] + shares[1]) == ids
        assert {row(first, job_id)["lease_expirations"] for job_id in ids} == {1}


def test_heartbeat_that_comes_between_keeps_the_job(postgresql_sessions: sessionmaker[Session]) -> None:
    """A renewal in flight has the row: the reaper passes over it, and finds it renewed afterwards."""
    with postgresql_sessions() as session:
        lease = take_one(session)
        clock.advance(session, 2 * MINUTE)
        session.commit()

    with postgresql_sessions() as worker, postgresql_sessions() as reaper:
        leases.renew(worker, TABLE, [lease], lease=HOUR)
        during = reap(reaper)
        worker.commit()

        assert (during, reap(reaper)) == ([], [])
        assert end(worker, lease, Returned())


def test_child_row_in_an_open_transaction_stops_no_reap(postgresql_sessions: sessionmaker[Session]) -> None:
    """A row that refers to the job by a foreign key, uncommitted, hides it from no reaper."""
    with postgresql_sessions() as session:
        (job_id,) = running(session, 1)

    with postgresql_sessions() as app, postgresql_sessions() as session:
        app.add(Note(job_id=job_id))
        app.flush()

        assert reaped(reap(session)) == [job_id]


@pytest.mark.parametrize("errors", [{}, "text", [1, None]])
def test_errors_of_any_shape_break_no_reap(session: Session, errors: Any) -> None:
    """What somebody wrote into the errors doesn't keep the row from being reaped."""
    (job_id,) = running(session, 1, errors=errors)

    assert reaped(reap(session)) == [job_id]
    kept = row(session, job_id)["errors"]
    assert kept[-1]["error"] == "the worker vanished"
    assert len(kept) == (3 if isinstance(errors, list) else 1)


def test_expired_rows_stay_locked_until_the_transaction_ends(postgresql_sessions: sessionmaker[Session]) -> None:
    """Between the reaper's look and its update no heartbeat comes: it is told that the row is locked."""
    with postgresql_sessions() as session:
        lease = take_one(session)
        clock.advance(session, 2 * MINUTE)
        session.commit()

    with postgresql_sessions() as reaper, postgresql_sessions() as worker:
        assert [found.key for found in leases.expired(reaper, TABLE, limit=5)] == [lease.key]

        assert leases.renew(worker, TABLE, [lease], lease=HOUR).unknown == {lease.key}
