"""Jobs whose worker is gone: they are found, they come back, and those that took it along come to an end."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, update

from sqla_jobs import enqueue_many
from sqla_jobs.runtime import warden
from tests.crash.app import hold, hold_plain, speak, vanish, write
from tests.operations.leasing import HOUR, reap, row, take_one
from tests.operations.shop import Job, clock
from tests.runtime import app as runtime
from tests.runtime.app import LONG, PATIENCE, App, wait_for

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from tests.crash.scene import Scene

LEASE = 1.0


def test_f03_orphan_is_recovered_when_its_worker_is_restarted_under_its_name(any_scene: Scene) -> None:
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


@pytest.mark.parametrize(
    "missing",
    [
        ["locked_until"],
        ["started_at"],
        ["locked_by"],
        ["locked_until", "locked_by", "started_at"],
    ],
    ids=" ".join,
)
def test_f03_orphan_of_a_worker_that_nobody_knows_is_recovered(session: Session, missing: list[str]) -> None:
    """There is no list of workers to miss: a running row without a lease that holds is reaped, and those beside it."""
    orphans = [take_one(session).id for _ in range(3)]
    clock.advance(session, HOUR)
    session.execute(update(Job).where(Job.id == orphans[1]).values(dict.fromkeys(missing)))
    session.commit()

    reap(session)

    assert {row(session, job_id)["status"] for job_id in orphans} == {"ready"}


def test_f03_orphan_behind_a_full_batch_of_locked_rows_is_recovered(postgresql_sessions: sessionmaker[Session]) -> None:
    """One more expired job than a batch holds, and the first batch is locked: the one behind it is reaped."""
    with postgresql_sessions() as session:
        orphans = [take_one(session).id for _ in range(11)]
        clock.advance(session, HOUR)
        session.commit()

    with postgresql_sessions() as holder, postgresql_sessions() as session:
        holder.execute(select(Job.id).where(Job.id.in_(orphans[:10])).with_for_update())

        assert [settlement.lease.id for settlement in reap(session, limit=10)] == orphans[10:]


@pytest.mark.parametrize(
    ("database_url", "max_attempts"),
    [("postgresql", 1), ("postgresql", 3), ("sqlite", 1)],
    indirect=["database_url"],
)
def test_f04_job_that_kills_its_process_is_dead_after_its_attempts(any_scene: Scene, max_attempts: int) -> None:
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


def test_f08_jobs_behind_a_slow_one_are_not_claimed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker claims nothing that it can't start: what waits for its slot is ready for others, unclaimed."""
    monkeypatch.setattr(warden, "LONGEST_LOCAL_WAIT", LONG)  # on a busy machine it would give back the last ones
    started, is_over = threading.Event(), threading.Event()

    @app.jobs.handler
    def slow() -> None:
        started.set()
        wait_for(is_over)

    first = app.add(slow)
    others = [app.add(slow) for _ in range(5)]

    with app.worker(concurrency=1):
        wait_for(started)
        claims = [app.row(job).claims for job in (first, *others)]
        is_over.set()
        for _ in range(6):
            app.hear("done")

    assert claims == [1, 0, 0, 0, 0, 0]


def test_f08_jobs_that_wait_behind_a_slow_one_run_elsewhere(pg_app: App) -> None:
    """What a fast worker had claimed ahead when a slow job came is given back: each runs once, none uses an attempt."""
    started, is_over, done = threading.Event(), threading.Event(), threading.Semaphore(0)
    ran: list[int] = []

    @pg_app.jobs.handler
    def quick(number: int) -> None:
        ran.append(number)
        done.release()

    @pg_app.jobs.handler
    def slow() -> None:
        started.set()
        wait_for(is_over)

    jobs = [*(quick.job(number) for number in range(300)), slow.job(), *(quick.job(n) for n in range(300, 400))]
    with pg_app.sessions.begin() as session:
        enqueue_many(session, jobs)

    with pg_app.worker(concurrency=1):
        wait_for(started)
        with pg_app.worker(concurrency=1):
            assert all(done.acquire(timeout=PATIENCE) for _ in range(400))
        is_over.set()

    assert sorted(ran) == list(range(400))
    with pg_app.sessions() as session:
        assert {*session.execute(select(runtime.Job.status, runtime.Job.attempts))} == {("done", 1)}


def test_f08_jobs_that_waited_in_a_killed_worker_are_recovered(scene: Scene) -> None:
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
