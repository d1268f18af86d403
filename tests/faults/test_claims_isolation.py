from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from tests.crash.app import speak, write, write_async
from tests.runtime.app import App, Job, MakeEngine, Note, have_tick, wait_for

if TYPE_CHECKING:
    from tests.crash.scene import Scene

pytestmark = pytest.mark.slow

LEVELS = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])


@LEVELS
def test_f13_workers_above_read_committed_do_every_job_once(scene: Scene, level: str) -> None:
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
def test_f13_handler_of_several_beats_runs_once_above_read_committed(
    postgresql_url: str, level: str, make_engine: MakeEngine
) -> None:
    """No heartbeat comes after its snapshot, which holds the only connection of the pool: its settle goes through."""
    engine = make_engine(postgresql_url, isolation_level=level, pool_size=1, max_overflow=0)
    app, started, is_over = App(engine).create(), threading.Event(), threading.Event()
    runs: list[str] = []

    @app.jobs.handler(timeout=timedelta(minutes=1))
    def slow(session: Session) -> None:
        runs.append(session.connection().get_isolation_level())
        session.add(Note(text=f"run {len(runs)}"))
        session.flush()
        started.set()
        wait_for(is_over)

    job = app.add(slow)

    with app.worker(concurrency=2, lease=timedelta(seconds=10)) as worker:
        wait_for(started)
        for _ in range(3):
            have_tick(worker, "heartbeat")
        with App(make_engine(postgresql_url)).sessions() as session:
            leased_until = session.get_one(Job, job).locked_until
        is_over.set()
        assert app.hear("done").job_id == job

    row = app.row(job)
    assert leased_until is not None
    assert leased_until - row.run_at > timedelta(minutes=1)  # its timeout, and a lease: nobody reaps it before
    assert runs == [level]
    assert app.notes() == ["run 1"]
    assert (row.status, row.attempts, row.refunds, row.claims, row.lease_expirations) == ("done", 1, 0, 1, 0)
