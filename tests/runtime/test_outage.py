from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from sqla_jobs import current_job
from tests.runtime.app import App, Base, MakeEngine, Note, wait_for

if TYPE_CHECKING:
    from tests.runtime.app import Ear
    from tests.servers import PostgresServer

ROOT = Path(__file__).parents[2]

NO_TIME = timedelta(0)


def our_threads() -> list[threading.Thread]:
    """Return the threads that workers have started and that live."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("sqla_jobs")]


@pytest.mark.slow
def test_worker_when_it_was_started_before_the_database(
    private_server: PostgresServer, ear: Ear, make_engine: MakeEngine
) -> None:
    """A worker that finds no database says so once and goes on trying; it works soon after the database is there."""
    private_server.stop()
    engine = make_engine(private_server.url)
    app = App(engine)

    @app.jobs.handler
    def write(session: Session) -> None:
        session.add(Note(text="written"))

    with app.worker(listen=None):
        ear.wait_for("the database does not serve the")
        private_server.start()
        Base.metadata.create_all(engine)
        app.add(write)
        app.hear("done")

    assert app.notes() == ["written"]
    assert len(ear.lines("the database does not serve", level=30)) == 1


@pytest.mark.slow
def test_worker_when_the_database_goes_and_comes_back(
    private_server: PostgresServer, ear: Ear, make_engine: MakeEngine
) -> None:
    """Over a stop of the database nothing is lost, no attempt is used, and the same worker goes on."""
    engine = make_engine(private_server.url)
    app, started, is_over = App(engine).create(), threading.Event(), threading.Event()

    @app.jobs.handler(max_attempts=1)
    def slow() -> str:
        started.set()
        wait_for(is_over)
        return "through it all"

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.execute(select(Note.id))
        started.set()
        wait_for(is_over)
        session.add(Note(text=f"attempt {current_job().attempt}"))

    with app.worker(listen=None):
        jobs: list[int] = []
        for handler in (slow, write):
            started.clear()
            jobs.append(app.add(handler))
            wait_for(started)
        private_server.stop("immediate")
        is_over.set()
        ear.wait_for("the database does not serve the")
        private_server.start()
        names = [app.hear_any() for _ in range(3)]

    rows = [app.row(job) for job in jobs]
    assert sorted(names) == ["done", "done", "interrupted"]
    assert [(row.status, row.attempts) for row in rows] == [("done", 1)] * 2
    assert (rows[0].result, app.notes()) == ("through it all", ["attempt 1"])


def test_server_when_it_stops_answering_for_a_while(pg_app: App) -> None:
    """When all of a worker's connections are cut at once it goes on with new ones: nothing lost, no attempt used."""
    started, is_over = threading.Event(), threading.Event()

    @pg_app.jobs.handler(max_attempts=1)
    def slow() -> None:
        started.set()
        wait_for(is_over)

    @pg_app.jobs.handler(max_attempts=1)
    def write(session: Session, text: str) -> None:
        session.add(Note(text=text))

    job = pg_app.add(slow)

    with pg_app.worker(listen=None):
        wait_for(started)
        pg_app.engine.dispose()
        with pg_app.engine.connect() as connection:
            others = text("pid <> pg_backend_pid() AND datname = current_database()")
            everybody = select(func.pg_terminate_backend(text("pid"))).select_from(text("pg_stat_activity"))
            connection.execute(everybody.where(others))
        waiting = pg_app.add(write, "after")
        assert pg_app.hear("done").job_id == waiting
        is_over.set()
        assert pg_app.hear("done").job_id == job

    assert (pg_app.row(job).attempts, pg_app.row(job).claims) == (1, 1)
    assert pg_app.notes() == ["after"]


def test_tables_when_they_are_created_after_the_start(engine: Engine, ear: Ear) -> None:
    """A worker that was started before its table exists says so once, waits, and works when it is there."""
    app = App(engine)

    @app.jobs.handler
    def work() -> None: ...

    with app.worker():
        ear.wait_for("the database does not serve the")
        Base.metadata.create_all(engine)
        app.add(work)
        app.hear("done")
        ear.wait_for("the database is back")

    assert len(ear.lines("the database does not serve", level=30)) == 1
