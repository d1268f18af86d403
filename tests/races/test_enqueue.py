from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from sqla_jobs import enqueue, enqueue_many
from tests.races.scene import Job, Scene, work

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

ROUNDS = 10


def put(session: Session, key: str) -> tuple[int, bool]:
    """Enqueue a job with a key, and give its id and whether it was there."""
    job = enqueue(session, work.using(key=key))
    return job.id, job.is_duplicate


def put_all(session: Session, keys: list[str]) -> dict[str, tuple[int, bool]]:
    """Enqueue a job for each key, in this order; give the same by key."""
    enqueued = enqueue_many(session, [work.using(key=key).job() for key in keys])
    return {key: (one.id, one.is_duplicate) for key, one in zip(keys, enqueued, strict=True)}


def test_enqueue_of_one_key_at_one_moment_makes_one_job(any_scene: Scene) -> None:
    """Eight threads enqueue a key: one makes the job, and the others are given it, marked as a duplicate."""
    for number in range(ROUNDS):
        key = f"key {number}"

        told = any_scene.race(*[partial(put, key=key)] * 8)

        assert sorted(is_duplicate for _, is_duplicate in told) == [False] + [True] * 7
        with any_scene.transaction() as session:
            stored = session.scalars(select(Job.id).where(Job.idempotency_key == key)).all()
        assert {job_id for job_id, _ in told} == set(stored)
        assert len(stored) == 1


def test_enqueue_many_of_the_same_keys_in_any_order_makes_each_job_once(any_scene: Scene) -> None:
    """Eight threads enqueue the same keys in different orders: nobody waits in a circle, and each key has one job."""
    keys = [f"key {number}" for number in range(10)]

    told = any_scene.race(*(partial(put_all, keys=keys[turn:] + keys[:turn]) for turn in range(8)))

    with any_scene.transaction() as session:
        stored = {job.idempotency_key: job.id for job in session.scalars(select(Job))}
        assert session.scalar(select(func.count()).select_from(Job)) == len(keys)
    assert stored.keys() == set(keys)
    for key in keys:
        assert {one[key][0] for one in told} == {stored[key]}
        assert sorted(one[key][1] for one in told) == [False] + [True] * 7
