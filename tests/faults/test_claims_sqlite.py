from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, insert, select

from tests.crash.app import Note, speak, write
from tests.crash.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(params=["WAL", "DELETE"])
def file_scene(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[tuple[Scene, dict[str, Any]]]:
    """Give the app on an SQLite file, and the options of the engines on it, for each journal mode in turn."""
    with Scene(sqlite_url, journal=request.param) as scene:
        yield scene, {"journal": request.param}


def test_f22_four_workers_on_one_file_do_every_job_once(file_scene: tuple[Scene, dict[str, Any]]) -> None:
    """Beside a process that writes to another table: each job runs once, and nobody is told that the file is locked."""
    scene, engine = file_scene
    workers = [scene.start(engine=engine, concurrency=4) for _ in range(4)]
    scribbler = scene.start(role="scribble", rows=100, engine=engine)
    scribbler.expect("scribbling")

    ids = scene.enqueue(write.job(number=n) for n in range(200))
    scene.until_finished(ids)

    assert scribbler.ended() == 0
    assert [worker.stopped() for worker in workers] == [0, 0, 0, 0]
    assert {(job.status, job.attempts) for job in scene.jobs()} == {("done", 1)}
    assert [effect.job_id for effect in scene.effects()] == ids
    assert [worker.warnings("locked") for worker in workers] == [[], [], [], []]
    with scene.engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Note)) == 100


def test_f22_workers_wait_out_a_transaction_that_holds_the_write_lock(file_scene: tuple[Scene, dict[str, Any]]) -> None:
    """A lock held beyond every busy timeout kills no worker, loses no job, and uses no attempt."""
    scene, engine = file_scene
    engine = engine | {"busy_timeout": 200}
    workers = [scene.start(engine=engine, concurrency=2) for _ in range(4)]
    ids = scene.enqueue((write.job() if n % 2 else speak.job()) for n in range(200))
    scene.crew.wait(lambda said: said.event == "started", times=20)

    with scene.engine.begin() as connection:
        connection.execute(insert(Note))
        for worker in workers:
            worker.expect_log("database is locked")
    scene.until_finished(ids)

    assert [worker.stopped() for worker in workers] == [0, 0, 0, 0]
    assert {(job.status, job.attempts) for job in scene.jobs()} == {("done", 1)}
    assert [effect.job_id for effect in scene.effects()] == [job.id for job in scene.jobs() if job.type == "write"]
    assert [len(worker.warnings("database does not serve")) > 0 for worker in workers] == [True] * 4
