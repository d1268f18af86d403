from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crash.app import hold, hold_plain, speak, write, write_async

if TYPE_CHECKING:
    from tests.crash.scene import Scene


LEVELS = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])


@LEVELS
def test_workers_above_read_committed_do_every_job_once(scene: Scene, level: str) -> None:
    """Four processes whose engine has a stricter isolation level contend for 400 jobs; none is idle or dies."""
    kinds = (write.job(), speak.job(), write_async.job())
    workers = [scene.start(engine={"isolation_level": level}, concurrency=4) for _ in range(4)]
    for worker in workers:
        worker.expect_log("serves")

    ids = scene.enqueue(kinds[number % 3] for number in range(400))
    scene.until_finished(ids)

    assert [worker.stopped() for worker in workers] == [0, 0, 0, 0]
    assert {(job.status, job.attempts) for job in scene.jobs()} == {("done", 1)}
    assert [effect.job_id for effect in scene.effects()] == [job.id for job in scene.jobs() if job.type != "speak"]
    assert all(worker.said("started") for worker in workers)
    assert [worker.warnings("does not serve") for worker in workers] == [[], [], [], []]


@LEVELS
def test_handler_of_three_leases_runs_once_above_read_committed(scene: Scene, level: str) -> None:
    """Its snapshot holds the only connection of the pool over ten beats, and its settle still goes through."""
    options = {"isolation_level": level, "pool_size": 1, "max_overflow": 0}
    held, beaten = scene.enqueue([hold.job(), hold_plain.job()])
    runs = scene.start(engine=options, lease=1)
    for job_id in (held, beaten):
        runs.expect("started", job=job_id)
    idle = scene.start(engine=options, lease=1)

    scene.until(lambda change: change.id == beaten and change.renewed, times=10)
    runs.open_gate()
    scene.until_finished([held, beaten])

    assert [runs.stopped(), idle.stopped()] == [0, 0]
    assert {(job.status, job.attempts, job.claims, job.refunds) for job in scene.jobs()} == {("done", 1, 1, 0)}
    assert [effect.job_id for effect in scene.effects()] == [held]
