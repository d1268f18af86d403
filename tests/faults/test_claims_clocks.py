from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.crash.app import fail_once, hold_plain, speak

if TYPE_CHECKING:
    from tests.crash.scene import Scene

pytestmark = pytest.mark.slow

LEASE = 2.0

HOUR = 3600

BACKOFF = timedelta(seconds=1)

MINUTE = timedelta(minutes=1)
"""Far longer than any of it takes, and far less than the clocks are wrong by."""


def test_f16_workers_whose_clocks_are_wrong_keep_to_the_database_s_time(any_scene: Scene) -> None:
    """One is an hour fast and one slow: nothing runs early, nothing alive is reaped, and backoff is right."""
    scene = any_scene
    (held,) = scene.enqueue([hold_plain.using(queue="fast").job()])
    fast = scene.start(lease=LEASE, queues=["fast"], clock=HOUR)
    fast.expect("started", job=held)
    slow = scene.start(lease=LEASE, queues=["slow"], clock=-HOUR)
    slow.expect_log("serves")

    queues = ["fast", "slow"] * 2
    delayed = scene.enqueue(speak.using(queue=queue, delay=timedelta(seconds=1)).job() for queue in queues)
    failing = scene.enqueue(fail_once.using(queue=queue).job() for queue in queues)
    scene.until_finished([*delayed, *failing])
    fast.open_gate()
    scene.until_finished([held])

    assert fast.stopped() == 0
    assert slow.stopped() == 0
    assert [(scene.job(job_id).status, scene.job(job_id).attempts) for job_id in delayed] == [("done", 1)] * 4
    for job in scene.jobs():
        assert job.started_at is not None
        assert job.finished_at is not None
        assert job.run_at <= job.started_at <= job.finished_at < job.created_at + MINUTE
        assert (job.claims, job.lease_expirations) == (job.attempts, 0)
    for row in map(scene.job, failing):
        (first,) = row.errors
        assert (row.status, row.attempts) == ("done", 2)
        assert BACKOFF <= row.run_at - datetime.fromisoformat(first["started_at"]) < MINUTE
