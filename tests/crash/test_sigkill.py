from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.crash.app import write, write_async

if TYPE_CHECKING:
    from tests.crash.scene import Scene

LEASE = 1.0

KILLS = 12

JOBS = 150
"""For each of them, so that there are always enough to be started."""


@pytest.mark.slow
def test_jobs_are_done_once_each_when_workers_are_killed_at_random(scene: Scene) -> None:
    """Over random SIGKILLs and restarts every job ends done, and what handlers wrote through sessions stands once."""
    chance = random.Random(20)
    kinds = (write.job(), write_async.job())
    ids: list[int] = []
    workers = [scene.start(lease=LEASE, concurrency=4) for _ in range(4)]

    for _ in range(KILLS):
        since = len(scene.crew.heard())
        ids += scene.enqueue(chance.choice(kinds) for _ in range(JOBS))
        scene.crew.wait(lambda said: said.event == "started", times=chance.randint(20, 120), since=since)
        victim = chance.randrange(len(workers))
        workers[victim].kill()
        workers[victim] = scene.start(lease=LEASE, concurrency=4)
    scene.until_finished(ids)

    assert [worker.stopped() for worker in workers] == [0, 0, 0, 0]
    assert scene.statuses() == {"done": KILLS * JOBS}
    assert Counter(effect.job_id for effect in scene.effects()) == Counter(ids)
