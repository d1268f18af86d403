from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tests.crash.app import speak, write, write_async
from tests.runtime.app import App, MakeEngine, Note

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
def test_f13_handler_of_three_leases_runs_once_above_read_committed(
    postgresql_url: str, level: str, make_engine: MakeEngine
) -> None:
    """No heartbeat comes after its snapshot, which holds the only connection of the pool: its settle goes through."""
    engine = make_engine(postgresql_url, isolation_level=level, pool_size=1, max_overflow=0)
    app, reaping = App(engine).create(), App(make_engine(postgresql_url))
    lease, three_leases = timedelta(seconds=1), 3.4
    runs: list[str] = []

    @app.jobs.handler(timeout=timedelta(minutes=1))
    def slow(session: Session) -> None:
        runs.append(session.connection().get_isolation_level())
        session.add(Note(text=f"run {len(runs)}"))
        session.execute(select(func.pg_sleep(three_leases)))

    job = app.add(slow)

    with reaping.worker(app.registry(), queues=["none"], lease=lease):
        app.run(concurrency=2, lease=lease)

    row = app.row(job)
    assert runs == [level]
    assert app.notes() == ["run 1"]
    assert (row.status, row.attempts, row.refunds, row.claims, row.lease_expirations) == ("done", 1, 0, 1, 0)
