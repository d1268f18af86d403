from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.crash.app import hold, hold_plain, speak, write, write_async
from tests.crash.scene import Scene
from tests.runtime.app import App, Base, MakeEngine, Note

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from tests.crash.processes import Process
    from tests.runtime.app import Ear
    from tests.servers import PostgresServer

pytestmark = pytest.mark.slow

LEASE = 1.0

OUTAGE: Final = "the database does not serve"

OTHERS: Final = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def terminate(scene: Scene) -> None:
    """End every connection to the database but our own, which is made and closed."""
    with scene.engine.connect() as connection:
        connection.execute(text(f"SELECT pg_terminate_backend(pid) {OTHERS}"))
    scene.engine.dispose()
    scene.look_again()


def enqueue_load(scene: Scene, size: int) -> tuple[list[int], list[int]]:
    """Enqueue jobs of each kind that would run through, and two that are held; give both."""
    kinds = (write.job(), speak.job(), write_async.job())
    held = scene.enqueue([hold.job(), hold_plain.job()])
    return scene.enqueue(kinds[number % 3] for number in range(size)), held


def check_nothing_lost(scene: Scene, workers: Sequence[Process], ids: Sequence[int]) -> None:
    """All are done in their first attempt, by workers that live on; what sessions wrote stands once."""
    assert all(worker.is_alive for worker in workers)
    unlike = [(job.type, job.status, job.attempts, job.errors) for job in scene.jobs() if job.attempts != 1]
    assert unlike == []
    assert scene.statuses() == {"done": len(ids)}
    writers = {job.id: 1 for job in scene.jobs() if job.type in {"write", "write_async", "hold"}}
    assert Counter(effect.job_id for effect in scene.effects()) == Counter(writers)


def check_warned_once(workers: Sequence[Process]) -> None:
    """Each said once that the database was away."""
    warnings = [worker.warnings(OUTAGE) for worker in workers]
    assert [len(said) for said in warnings] == [1] * len(workers), warnings


def test_f19_workers_go_on_after_the_server_was_away_for_longer_than_their_leases(
    private_server: PostgresServer,
) -> None:
    """Under load: no process is restarted, nothing is lost, no attempt is used, and each worker warns once."""
    with Scene(private_server.url) as scene:
        ids, held = enqueue_load(scene, 800)
        workers = [scene.start(lease=LEASE, concurrency=4) for _ in range(2)]
        for worker in workers:
            worker.expect("started")
        scene.crew.wait(lambda said: said.event == "started", times=300)

        private_server.stop("immediate")
        for worker in workers:
            worker.expect_log(OUTAGE)
            worker.open_gate()
        threading.Event().wait(5)  # a real wait: an outage that outlasts leases and backoffs
        private_server.start()

        scene.engine.dispose()
        scene.look_again()
        later = scene.enqueue(write.job() for _ in range(20))
        scene.until_finished([*ids, *held, *later])
        check_nothing_lost(scene, workers, [*ids, *held, *later])
        check_warned_once(workers)
        assert [worker.stopped() for worker in workers] == [0, 0]


def test_f19_workers_go_on_after_all_their_connections_were_terminated(scene: Scene) -> None:
    """Each part of a worker connects afresh; no attempt is used, and each worker warns once."""
    ids, held = enqueue_load(scene, 300)
    workers = [scene.start(lease=LEASE, concurrency=4) for _ in range(2)]
    for worker in workers:
        worker.expect("started")

    terminate(scene)

    scene.until_finished(ids)
    (plain,) = (job_id for job_id in held if scene.job(job_id).type == "hold_plain")
    scene.until(lambda change: change.id == plain and change.renewed, times=4)
    for worker in workers:
        worker.open_gate()
    scene.until_finished(held)
    check_nothing_lost(scene, workers, [*ids, *held])
    check_warned_once(workers)
    assert [worker.stopped() for worker in workers] == [0, 0]


def test_f19_workers_leave_a_server_that_was_read_only(scene: Scene) -> None:
    """Connections that were read-only when they were made are not used again when writing is allowed."""
    ids, held = enqueue_load(scene, 30)
    workers = [scene.start(lease=LEASE, concurrency=4) for _ in range(2)]
    scene.crew.wait(lambda said: said.event == "started" and said.facts["job"] in held, times=2)

    with read_only(scene):
        terminate(scene)
        for worker in workers:
            worker.expect_log("read-only")
            worker.open_gate()

    scene.until_finished([*ids, *held])
    later = scene.enqueue(write.job() for _ in range(20))
    scene.until_finished(later)
    check_nothing_lost(scene, workers, [*ids, *held, *later])
    check_warned_once(workers)
    assert [worker.stopped() for worker in workers] == [0, 0]


@contextmanager
def read_only(scene: Scene) -> Generator[None]:
    """Make new connections read-only, until the end of the block."""
    name = scene.engine.url.database
    with scene.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    yield
    with scene.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET default_transaction_read_only = off")
        connection.exec_driver_sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    scene.engine.dispose()


def test_f19_worker_that_was_started_before_the_server_works_when_it_is_there(
    private_server: PostgresServer, ear: Ear, make_engine: MakeEngine
) -> None:
    """A worker that finds no database says so once and goes on trying; it works soon after the database is there."""
    private_server.stop()
    engine = make_engine(private_server.url)
    app = App(engine)

    @app.jobs.handler
    def note(session: Session) -> None:
        session.add(Note(text="written"))

    with app.worker(listen=None):
        ear.wait_for("the database does not serve the")
        private_server.start()
        Base.metadata.create_all(engine)
        app.add(note)
        app.hear("done")

    assert app.notes() == ["written"]
    assert len(ear.lines("the database does not serve", level=30)) == 1
