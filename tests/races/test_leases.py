"""Where rows are locked, in two orders each: one transaction is open while the other looks; and all at one moment."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import delete, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sqla_jobs.operations.leases import Renewal
from tests.races.scene import Job, Scene, claim, reap, renew, settle

ROUNDS = 25


def remove(session: Session, job_id: int) -> None:
    """Delete a job, as an app may at any time."""
    session.execute(delete(Job).where(Job.id == job_id))


# --- heartbeat and reaper -------------------------------------------------------------------------------------------


def test_heartbeat_while_the_reaper_holds_the_row_is_unknown_then_lost(scene: Scene) -> None:
    """A row that another transaction has locked is still ours as far as we know; once it is committed, it is lost."""
    (lease,) = scene.expired()

    with scene.transaction() as reaping:
        assert reap(reaping) == [lease.id]
        with scene.transaction() as beating:
            during = renew(beating, [lease])
    with scene.transaction() as beating:
        after = renew(beating, [lease])

    mine, nothing = frozenset({lease.key}), frozenset[tuple[int, int]]()
    assert during == Renewal(renewed=nothing, unknown=mine, lost=nothing)
    assert after == Renewal(renewed=nothing, unknown=nothing, lost=mine)
    assert (scene.job(lease.id).status, scene.job(lease.id).locked_until) == ("ready", None)


def test_reaper_passes_over_what_a_heartbeat_renews(scene: Scene) -> None:
    """An expired lease that is renewed first is not reaped, neither while the beat is open nor after it."""
    (lease,) = scene.expired()

    with scene.transaction() as beating:
        assert renew(beating, [lease]).renewed == {lease.key}
        with scene.transaction() as reaping:
            during = reap(reaping)
    with scene.transaction() as reaping:
        after = reap(reaping)

    assert (during, after) == ([], [])
    assert scene.job(lease.id).status == "running"


def test_heartbeat_and_reaper_at_one_moment_agree(any_scene: Scene) -> None:
    """Of each expired lease either the holder keeps it, or the reaper takes it and the holder hears so."""
    for _ in range(ROUNDS):
        (lease,) = any_scene.expired()

        renewal, reaped = any_scene.race(partial(renew, held=[lease]), reap)

        with any_scene.transaction() as session:
            later = renew(session, [lease])
        assert later.lost == ({lease.key} if reaped else frozenset())
        assert not (reaped and renewal.renewed)
        with any_scene.transaction() as session:
            session.execute(delete(Job))


# --- settle and reaper ----------------------------------------------------------------------------------------------


def test_reaper_passes_over_what_is_being_settled(scene: Scene) -> None:
    """An end that is written and not committed yet is left to its writer, expired or not."""
    (lease,) = scene.expired()

    with scene.transaction() as settling:
        assert settle(settling, lease)
        with scene.transaction() as reaping:
            during = reap(reaping)
    with scene.transaction() as reaping:
        after = reap(reaping)

    assert (during, after) == ([], [])
    row = scene.job(lease.id)
    assert (row.status, row.attempts, row.lease_expirations) == ("done", 1, 0)


def test_settle_waits_for_the_reaper_and_then_changes_nothing(scene: Scene) -> None:
    """While the reaper's transaction is open the answer is not known, so settle gives none; then the fence is gone."""
    (lease,) = scene.expired()

    with scene.transaction() as reaping:
        assert reap(reaping) == [lease.id]
        with pytest.raises(OperationalError, match="lock timeout"), scene.transaction() as settling:
            settling.execute(text("SET LOCAL lock_timeout = '100ms'"))
            settle(settling, lease)
    before = scene.columns(lease.id)
    with scene.transaction() as settling:
        has_settled = settle(settling, lease)

    assert not has_settled
    assert before["status"] == "ready"
    assert scene.columns(lease.id) == before


def test_settle_that_waited_for_a_reaper_that_rolled_back_is_written(scene: Scene) -> None:
    """A reaper that dies in its transaction takes nothing from the worker that still lives."""
    (lease,) = scene.expired()

    with Session(scene.engine) as reaping:
        assert reap(reaping) == [lease.id]
        reaping.rollback()
    with scene.transaction() as settling:
        has_settled = settle(settling, lease)

    assert has_settled
    assert (scene.job(lease.id).status, scene.job(lease.id).lease_expirations) == ("done", 0)


def test_settle_and_reaper_at_one_moment_agree(any_scene: Scene) -> None:
    """Exactly one of the two ends each claim, and the row says what the winner wrote."""
    for _ in range(ROUNDS):
        (lease,) = any_scene.expired()

        has_settled, reaped = any_scene.race(partial(settle, lease=lease), reap)

        assert has_settled is not bool(reaped)
        assert any_scene.job(lease.id).status == ("done" if has_settled else "ready")
        with any_scene.transaction() as session:
            session.execute(delete(Job))


# --- claims ---------------------------------------------------------------------------------------------------------


def test_second_claimer_passes_over_what_the_first_has_locked(scene: Scene) -> None:
    """It waits for nobody: it takes the next job, or none."""
    ids = scene.enqueue(3)

    with scene.transaction() as first, scene.transaction() as second, scene.transaction() as third:
        taken = [[lease.id for lease in claim(session, limit=2)] for session in (first, second, third)]

    assert taken == [ids[:2], ids[2:], []]


def test_claimers_at_one_moment_share_no_job(any_scene: Scene) -> None:
    """Eight claimers of one job: one has it."""
    for _ in range(ROUNDS):
        (job_id,) = any_scene.enqueue()

        taken = any_scene.race(*(partial(claim, by=f"worker {n}") for n in range(8)))

        claims = [lease for leases in taken for lease in leases]
        assert [lease.id for lease in claims] == [job_id]
        row = any_scene.job(job_id)
        assert (row.locked_by, row.claims, row.attempts) == (claims[0].locked_by, 1, 1)


def test_claimers_of_many_jobs_take_each_once(any_scene: Scene) -> None:
    """Eight claimers of four jobs each, of twenty: nobody has more than asked for, and no job has two owners."""
    ids = any_scene.enqueue(20)

    taken = any_scene.race(*(partial(claim, limit=4, by=f"worker {n}") for n in range(8)))
    with any_scene.transaction() as session:
        left = claim(session, limit=20)

    assert max(len(leases) for leases in taken) <= 4
    claimed = [lease.id for leases in (*taken, left) for lease in leases]
    assert sorted(claimed) == ids


def test_claim_by_the_same_worker_again_fences_its_first_claim(any_scene: Scene) -> None:
    """The token belongs to the claim: what was reaped and claimed again is lost to the run before."""
    (old,) = any_scene.expired(by="one")
    with any_scene.transaction() as session:
        assert reap(session) == [old.id]
    with any_scene.transaction() as session:
        (new,) = claim(session, by="one")

    with any_scene.transaction() as session:
        renewal = renew(session, [old, new])
        has_settled = settle(session, old)

    assert (old.locked_by, old.id) == (new.locked_by, new.id)
    assert renewal.lost == {old.key}
    assert renewal.renewed == {new.key}
    assert not has_settled
    assert any_scene.job(old.id).status == "running"


# --- claims and deletes ---------------------------------------------------------------------------------------------


def test_claim_passes_over_a_row_that_is_being_deleted(scene: Scene) -> None:
    """It waits for no delete, and takes what lies behind."""
    first, second = scene.enqueue(2)

    with scene.transaction() as deleting:
        deleting.execute(delete(Job).where(Job.id == first))
        with scene.transaction() as claiming:
            taken = [lease.id for lease in claim(claiming, limit=2)]

    assert taken == [second]


def test_settle_of_a_deleted_job_writes_nothing(any_scene: Scene) -> None:
    """A row that was deleted while its job ran is not made again."""
    (lease,) = any_scene.claimed()
    with any_scene.transaction() as deleting:
        deleting.execute(delete(Job).where(Job.id == lease.id))

    with any_scene.transaction() as settling:
        has_settled = settle(settling, lease)

    assert not has_settled
    with any_scene.transaction() as session:
        assert session.scalars(select(Job.id)).all() == []
        assert renew(session, [lease]).lost == {lease.key}


def test_claim_and_delete_at_one_moment_leave_no_row(any_scene: Scene) -> None:
    """Whoever comes first, the row is gone, neither has failed, and what was claimed can't be settled."""
    for _ in range(ROUNDS):
        (job_id,) = any_scene.enqueue()

        taken, _ = any_scene.race(claim, partial(remove, job_id=job_id))

        with any_scene.transaction() as session:
            assert session.scalars(select(Job.id)).all() == []
            assert not any(settle(session, lease) for lease in taken)
