"""People and workers at one row: in two orders each where rows are locked, and all at one moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from sqla_jobs import (
    JobFilter,
    cancel_batch,
    cancel_jobs,
    delete_batch,
    delete_jobs,
    find_jobs,
    requeue_batch,
    requeue_jobs,
    show_job,
    why,
)
from sqla_jobs.rules.settlement import Failed, GaveUp, Returned
from tests.operations.blocking import until_blocked
from tests.races.scene import LONGEST, Job, Scene, claim, jobs, reap, renew, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqla_jobs import Answer, Batch

ROUNDS = 10


def told(answers: list[Answer]) -> list[tuple[bool, str | None]]:
    return [(answer.is_changed, answer.status) for answer in answers]


def doing(verb: Callable[..., list[Answer]], ids: int | list[int]) -> Callable[[Session], list[Answer]]:
    """Give what does that in a session that it is given."""
    return lambda session: verb(session, jobs, ids)


def moved(scene: Scene, verb: Callable[..., list[Answer]], ids: int | list[int]) -> list[Answer]:
    """Move jobs in a transaction of their own."""
    with scene.transaction() as session:
        return verb(session, jobs, ids)


def dead(scene: Scene, number: int = 1) -> list[int]:
    """Give jobs that have failed for good."""
    leases = scene.claimed(number)
    with scene.transaction() as session:
        assert all(settle(session, lease, GaveUp("no")) for lease in leases)
    return [lease.id for lease in leases]


# --- cancel and a worker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_kept", "answered"), [(True, (False, "done")), (False, (True, "failed"))])
def test_cancel_waits_for_an_end_in_flight(scene: Scene, is_kept: bool, answered: tuple[bool, str]) -> None:
    """An end that is written and not committed yet decides: the answer is `done`, or it is cancelled after all."""
    (lease,) = scene.claimed()

    with Session(scene.engine) as settling, ThreadPoolExecutor(1) as threads:
        assert settle(settling, lease, Returned(7))
        answer = threads.submit(moved, scene, cancel_jobs, lease.id)
        until_blocked(scene.engine, answer)
        settling.commit() if is_kept else settling.rollback()
        answers = answer.result(LONGEST)

    assert told(answers) == [answered]
    row = scene.job(lease.id)
    assert (row.status, row.result) == (("done", 7) if is_kept else ("failed", None))


@pytest.mark.parametrize("outcome", [Returned(1), Failed("late"), GaveUp("late")], ids=["returns", "fails", "gives up"])
@pytest.mark.parametrize("steps", [["cancel"], ["cancel", "requeue"], ["cancel", "requeue", "claim"]], ids="-".join)
def test_late_end_of_a_cancelled_job_changes_nothing(any_scene: Scene, steps: list[str], outcome: Any) -> None:
    """Also when the job is ready again, or the same worker has claimed it again: each claim has a number of its own."""
    (lease,) = any_scene.claimed(by="one")
    for step in steps:
        if step == "claim":
            with any_scene.transaction() as session:
                (again,) = claim(session, by="one")
                assert (again.id, again.attempt, again.claims) == (lease.id, 1, lease.claims + 1)
        else:
            assert told(moved(any_scene, cancel_jobs if step == "cancel" else requeue_jobs, lease.id))[0][0]
    before = any_scene.columns(lease.id)

    with any_scene.transaction() as session:
        is_lost = lease.key in renew(session, [lease]).lost
        has_settled = settle(session, lease, outcome)

    assert is_lost
    assert not has_settled
    assert any_scene.columns(lease.id) == before
    assert before["status"] == {"cancel": "failed", "requeue": "ready", "claim": "running"}[steps[-1]]


def test_cancel_and_an_end_at_one_moment_agree(any_scene: Scene) -> None:
    """Exactly one of the two ends the job, the answer is true, and the row is the winner's."""
    for _ in range(ROUNDS):
        (lease,) = any_scene.claimed()

        answers, has_settled = any_scene.race(
            doing(cancel_jobs, lease.id),
            partial(settle, lease=lease),
        )

        assert told(answers) == [(False, "done") if has_settled else (True, "failed")]
        assert any_scene.job(lease.id).status == ("done" if has_settled else "failed")


def test_cancel_of_an_expired_job_and_its_reaper_agree(any_scene: Scene) -> None:
    """A job whose worker vanished is cancelled, before or after it is given back, and never runs again."""
    for _ in range(ROUNDS):
        (lease,) = any_scene.expired()

        answers, _ = any_scene.race(doing(cancel_jobs, lease.id), reap)

        assert told(answers) == [(True, "failed")]
        assert any_scene.job(lease.id).status == "failed"


# --- people among themselves ----------------------------------------------------------------------------------------


def test_requeues_at_one_moment_move_it_once(any_scene: Scene) -> None:
    """Of two who requeue one job, and one who deletes it, one does, and each hears what became of it."""
    for _ in range(ROUNDS):
        (job_id,) = dead(any_scene)

        first, second, third = any_scene.race(
            doing(requeue_jobs, job_id),
            doing(requeue_jobs, [job_id]),
            doing(delete_jobs, job_id),
        )

        changed = [answers[0].is_changed for answers in (first, second, third)]
        assert sum(changed) == 1
        status = None if changed[2] else "ready"
        assert [answers[0].status for answers in (first, second, third)] == [status] * 3
        with any_scene.transaction() as session:
            session.execute(delete(Job))


def test_moves_of_the_same_jobs_in_other_orders_end_in_no_deadlock(scene: Scene) -> None:
    """Rows are locked by id, in whatever order they were given, and whoever comes second finds them moved."""
    for _ in range(ROUNDS):
        ids = dead(scene, 12)

        answers = scene.race(
            doing(requeue_jobs, ids),
            doing(requeue_jobs, ids[::-1]),
            doing(requeue_jobs, [*ids[6:], *ids[:6]]),
        )

        assert sum(answer.is_changed for each in answers for answer in each) == len(ids)
        with scene.transaction() as session:
            session.execute(delete(Job))


BATCHES: dict[str, tuple[Callable[..., Any], str, str | None]] = {
    "requeue": (requeue_batch, "dead", "ready"),
    "cancel": (cancel_batch, "ready", "failed"),
    "delete": (delete_batch, "done", None),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batch_passes_over_locked_rows_and_says_how_many(scene: Scene, name: str) -> None:
    """It waits for nobody, moves the others, and leaves what is locked to a later call."""
    form, status, becomes = BATCHES[name]
    ids = scene.enqueue(5)
    with scene.transaction() as session:
        session.execute(update(Job).values(status=status, finished_at=Job.created_at if status != "ready" else None))

    with scene.transaction() as locking:
        locking.execute(update(Job).where(Job.id.in_(ids[1:3])).values(max_attempts=9))
        with scene.transaction() as session:
            session.connection().exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            first = form(session, jobs, JobFilter())
    with scene.transaction() as session:
        second = form(session, jobs, JobFilter())
        left = [job.status for job in find_jobs(session, jobs).jobs]

    assert (first.changed, first.skipped, first.after) == (3, 2, None)
    assert (second.changed, second.skipped) == (2, 0)
    assert left == ([] if becomes is None else [becomes] * 5)


def test_looks_wait_for_no_lock(scene: Scene) -> None:
    """Who looks sees the rows as they were committed, whoever holds them."""
    (lease,) = scene.claimed()

    with scene.transaction() as session:
        assert settle(session, lease)
        with scene.transaction() as looking:
            looking.connection().exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
            listed = [job.status for job in find_jobs(looking, jobs).jobs]
            seen = (show_job(looking, jobs, lease.id).status, why(looking, jobs, lease.id).reason)

    assert (listed, seen) == (["running"], ("running", "running"))


def requeue_all(session: Session) -> Batch:
    return requeue_batch(session, jobs, JobFilter())


def test_batches_at_one_moment_move_each_job_once(any_scene: Scene) -> None:
    """Of two batches over the same jobs, what one has locked the other passes over, and together they move them all."""
    for _ in range(ROUNDS):
        ids = dead(any_scene, 8)

        done = any_scene.race(requeue_all, requeue_all)
        with any_scene.transaction() as session:
            last = requeue_batch(session, jobs, JobFilter())
            session.execute(delete(Job))

        assert sum(batch.changed for batch in (*done, last)) == len(ids)
