from __future__ import annotations

import random
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.crash.app import hold, hold_plain, speak, vanish, write, write_async

if TYPE_CHECKING:
    from tests.crash.scene import Scene

LEASE = 1.0

JOBS = 2_000

KILLS = 12


@pytest.mark.slow
def test_jobs_are_done_once_each_when_workers_are_killed_at_random(scene: Scene) -> None:
    """Over random SIGKILLs and restarts every job ends done, and what handlers wrote through sessions stands once."""
    chance = random.Random(20)
    kinds = (write.job(), write_async.job())
    ids = scene.enqueue(chance.choice(kinds) for _ in range(JOBS))
    workers = [scene.start(lease=LEASE, concurrency=4) for _ in range(4)]

    for _ in range(KILLS):
        since = len(scene.crew.heard())
        scene.crew.wait(lambda said: said.event == "started", times=chance.randint(20, 120), since=since)
        victim = chance.randrange(len(workers))
        workers[victim].kill()
        workers[victim] = scene.start(lease=LEASE, concurrency=4)
    scene.until_finished(ids)

    assert [worker.stopped() for worker in workers] == [0, 0, 0, 0]
    assert scene.statuses() == {"done": JOBS}
    assert Counter(effect.job_id for effect in scene.effects()) == Counter(ids)


@pytest.mark.parametrize(
    ("database_url", "max_attempts"),
    [("postgresql", 1), ("postgresql", 3), ("sqlite", 1)],
    indirect=["database_url"],
)
def test_job_that_kills_its_process_is_dead_after_its_attempts(any_scene: Scene, max_attempts: int) -> None:
    """It starts `max_attempts` times, its error says that the worker vanished, and the jobs beside it are done."""
    (killer,) = any_scene.enqueue([vanish.using(max_attempts=max_attempts).job()])
    others = any_scene.enqueue(write.job(number=n) for n in range(10))

    deaths = [any_scene.start(lease=LEASE).ended() for _ in range(max_attempts)]
    last = any_scene.start(lease=LEASE)
    last.expect("log", job=killer, end="dead")
    any_scene.until_finished([killer, *others])

    assert deaths == [-signal.SIGKILL] * max_attempts
    assert last.stopped() == 0
    starts = [said for said in any_scene.crew.heard() if said.is_about("started", job=killer)]
    assert [said.facts["attempt"] for said in starts] == list(range(1, max_attempts + 1))
    row = any_scene.job(killer)
    assert (row.status, row.attempts, row.lease_expirations) == ("dead", max_attempts, max_attempts)
    assert row.last_error is not None
    assert "vanished" in row.last_error
    assert [entry["attempt"] for entry in row.errors] == [said.facts["attempt"] for said in starts]
    assert [any_scene.job(job_id).status for job_id in others] == ["done"] * 10
    assert [effect.job_id for effect in any_scene.effects()] == others


def test_orphan_is_recovered_when_its_worker_is_restarted_under_its_name(any_scene: Scene) -> None:
    """A namesake that lives and beats keeps no job of the dead process alive."""
    (orphan,) = any_scene.enqueue([hold_plain.job()])
    first = any_scene.start(lease=LEASE, name="pod")
    first.expect("started", job=orphan)

    first.kill()
    second = any_scene.start(lease=LEASE, name="pod")

    second.expect("started", job=orphan, attempt=2)
    second.open_gate()
    second.expect("log", job=orphan, end="done")
    assert second.stopped() == 0
    assert (any_scene.job(orphan).status, any_scene.job(orphan).lease_expirations) == ("done", 1)


def test_jobs_that_waited_in_a_killed_worker_are_recovered(scene: Scene) -> None:
    """Whatever is claimed when its worker is killed has used an attempt, started or not; nothing else has."""
    before = scene.enqueue(speak.job() for _ in range(300))
    (held,) = scene.enqueue([hold.job()])
    behind = scene.enqueue(write.job(number=n) for n in range(100))
    killed = scene.start(lease=LEASE, concurrency=1)
    killed.expect("started", job=held)

    killed.kill()
    other = scene.start(lease=LEASE, concurrency=4)
    other.open_gate()
    scene.until_finished([*before, held, *behind])

    assert other.stopped() == 0
    assert scene.statuses() == {"done": len(before) + 1 + len(behind)}
    assert [effect.job_id for effect in scene.effects()] == [held, *behind]
    assert scene.job(held).attempts == 2
    assert [job.attempts for job in scene.jobs()] == [1 + job.lease_expirations for job in scene.jobs()]
