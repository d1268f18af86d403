from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sqla_jobs import enqueue, enqueue_many
from tests.engines import build_async_engine
from tests.runtime.app import LONG, App, MakeEngine
from tests.runtime.statements import LISTEN, Statements


def settle_down(app: App, handler: Any) -> None:
    """Have a few jobs run, so that whatever a start looks for has been looked for: then only a wake-up is left."""
    for _ in range(3):
        app.add(handler)
        app.hear("done")


def test_commit_when_a_worker_is_in_the_process(app: App) -> None:
    """A commit wakes the workers of its process: the job runs at once, whatever the poll interval."""

    @app.jobs.handler
    def work() -> None: ...

    with app.worker(poll_interval=LONG):
        settle_down(app, work)
        job = app.add(work)
        assert app.hear("done").job_id == job


def test_commit_when_it_holds_many_jobs(app: App) -> None:
    """`enqueue_many` wakes a worker as `enqueue` does, and all of its jobs run."""

    @app.jobs.handler
    def work() -> None: ...

    with app.worker(poll_interval=LONG, concurrency=2):
        settle_down(app, work)
        with app.sessions.begin() as session:
            enqueue_many(session, [work.job() for _ in range(30)])
        for _ in range(30):
            app.hear("done")

    assert app.statuses() == ["done"] * 33


def test_rollback_when_a_worker_is_in_the_process(app: App) -> None:
    """A job of a transaction that was rolled back never runs; the one of the next commit does."""
    ran: list[str] = []

    @app.jobs.handler
    def work(name: str = "first") -> None:
        ran.append(name)

    with app.worker(poll_interval=LONG):
        settle_down(app, work)
        with app.sessions() as session:
            enqueue(session, work, name="rolled back")
            session.rollback()
            enqueue(session, work, name="committed")
            session.commit()
        app.hear("done")

    assert ran[3:] == ["committed"]
    assert app.statuses() == ["done"] * 4


def test_savepoint_when_it_is_rolled_back(app: App) -> None:
    """Of a transaction with savepoints exactly those jobs run whose savepoint was kept."""
    ran: list[str] = []

    @app.jobs.handler
    def work(name: str = "first") -> None:
        ran.append(name)

    with app.worker(poll_interval=LONG):
        settle_down(app, work)
        with app.sessions.begin() as session:
            enqueue(session, work, name="outer")
            with session.begin_nested():
                enqueue(session, work, name="kept")
            with session.begin_nested() as savepoint:
                enqueue(session, work, name="dropped")
                savepoint.rollback()
        app.hear("done")
        app.hear("done")

    assert sorted(ran[3:]) == ["kept", "outer"]
    assert app.statuses() == ["done"] * 5


def test_job_when_a_handler_enqueues_it(app: App) -> None:
    """The commit of a handler's session wakes its own worker for the jobs that it enqueued."""

    @app.jobs.handler
    def chain(session: Session, left: int = 0) -> None:
        if left:
            enqueue(session, chain, left=left - 1)

    with app.worker(poll_interval=LONG):
        settle_down(app, chain)
        app.add(chain, 5)
        for _ in range(6):
            app.hear("done")

    assert app.statuses() == ["done"] * 9


def test_retry_when_its_backoff_is_over(app: App) -> None:
    """A retry starts when its backoff is over, and not at the next poll."""
    attempts: list[None] = []

    @app.jobs.handler(backoff=lambda _: timedelta(milliseconds=200))
    def fail_once() -> None:
        attempts.append(None)
        if len(attempts) == 1:
            raise RuntimeError("once")

    with app.worker(poll_interval=LONG):
        job = app.add(fail_once)
        app.hear("retried")
        app.hear("done")

    assert app.row(job).attempts == 2


def test_notify_when_another_process_commits(pg_app: App) -> None:
    """A commit elsewhere is heard of by NOTIFY: the job runs at once, whatever the poll interval."""
    listens = Statements(pg_app.engine, LISTEN)
    elsewhere = pg_app.registry()

    @pg_app.jobs.handler
    def work() -> None: ...

    @elsewhere.handler(name="work")
    def far_away() -> None: ...

    with pg_app.worker(poll_interval=LONG, listen=None):
        listens.wait_for(1)
        settle_down(pg_app, far_away)
        job = pg_app.add(far_away)
        assert pg_app.hear("done").job_id == job


def test_notify_when_many_jobs_or_later_ones_are_enqueued_elsewhere(pg_app: App) -> None:
    """NOTIFY tells of `enqueue_many` and of jobs that are due later, too: they start when they are due."""
    listens = Statements(pg_app.engine, LISTEN)
    elsewhere = pg_app.registry()

    @pg_app.jobs.handler
    def work() -> None: ...

    @elsewhere.handler(name="work")
    def far_away() -> None: ...

    with pg_app.worker(poll_interval=LONG, listen=None):
        listens.wait_for(1)
        settle_down(pg_app, far_away)
        with pg_app.sessions.begin() as session:
            enqueue_many(session, [far_away.job(), far_away.job()])
        pg_app.hear("done")
        pg_app.hear("done")
        later = pg_app.add(far_away.using(delay=timedelta(milliseconds=300)))
        assert pg_app.hear("done").job_id == later


def test_listen_when_its_connection_is_killed(pg_app: App) -> None:
    """A listener whose connection dies listens again by itself, and hears what comes then."""
    listens = Statements(pg_app.engine, LISTEN)
    elsewhere = pg_app.registry()

    @pg_app.jobs.handler
    def work() -> None: ...

    @elsewhere.handler(name="work")
    def far_away() -> None: ...

    with pg_app.worker(poll_interval=LONG, listen=None):
        listens.wait_for(1)
        settle_down(pg_app, far_away)
        with pg_app.engine.connect() as connection:
            victim = listens.connections[0].info.backend_pid
            assert connection.scalar(select(func.pg_terminate_backend(victim, 10_000)))
        missed = pg_app.add(far_away)
        assert pg_app.hear("done").job_id == missed
        listens.wait_for(2)
        settle_down(pg_app, far_away)


def test_polling_when_nothing_notifies(app: App) -> None:
    """Without a wake-up a job runs at the next poll: polling alone is enough."""
    elsewhere = app.registry(notify=False)

    @app.jobs.handler
    def work() -> None: ...

    @elsewhere.handler(name="work")
    def far_away() -> None: ...

    with app.worker(poll_interval=timedelta(milliseconds=20), listen=None):
        for _ in range(3):
            job = app.add(far_away)
            assert app.hear("done").job_id == job


def test_notify_when_the_registry_turns_it_off(postgresql_url: str, make_engine: MakeEngine) -> None:
    """With `notify=False` nothing is told and nobody listens."""
    engine = make_engine(postgresql_url)
    app = App(engine, notify=False).create()
    listens, tells = Statements(engine, LISTEN), Statements(engine, "pg_notify")

    @app.jobs.handler
    def work() -> None: ...

    with app.worker(listen=None):
        app.add(work)
        with app.sessions.begin() as session:
            enqueue_many(session, [work.job()])
        app.hear("done")
        app.hear("done")

    assert (listens.answered, tells.answered) == (0, 0)


def test_listen_when_it_has_a_url_of_its_own(pg_app: App, postgresql_url: str) -> None:
    """With `listen=URL` the listener connects there, past a pooler, and not as the app's engine does."""
    listens = Statements(pg_app.engine, LISTEN)
    elsewhere = pg_app.registry()

    @pg_app.jobs.handler
    def work() -> None: ...

    @elsewhere.handler(name="work")
    def far_away() -> None: ...

    own = postgresql_url + ("&" if "?" in postgresql_url else "?") + "application_name=past-the-pooler"
    with pg_app.worker(poll_interval=LONG, listen=own):
        # The first look may be before the listener's first word; that word makes the worker look again.
        settle_down(pg_app, work)
        with pg_app.engine.connect() as connection:
            names = connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'past-the-pooler'"
            )
            assert names.scalar_one() <= 1
        for _ in range(3):
            job = pg_app.add(far_away)
            assert pg_app.hear("done").job_id == job

    assert listens.answered == 0


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_notify_when_the_engine_is_async(postgresql_url: str, driver: str, make_engine: MakeEngine) -> None:
    """An async psycopg engine hears NOTIFY like a sync one; a driver that can't listen polls."""
    engine = make_engine(postgresql_url)
    url = postgresql_url.replace("+psycopg", f"+{driver}")
    app = App(engine, async_engine=build_async_engine(url)).create()
    elsewhere = app.registry()
    assert app.async_sessions is not None
    listens = Statements(app.async_sessions.kw["bind"].sync_engine, LISTEN)

    @app.jobs.handler
    async def work() -> None: ...

    @elsewhere.handler(name="work")
    def far_away() -> None: ...

    interval = LONG if driver == "psycopg" else timedelta(milliseconds=20)
    with app.worker(poll_interval=interval, listen=None):
        if driver == "psycopg":
            listens.wait_for(1)
        settle_down(app, far_away)

    assert listens.answered == (1 if driver == "psycopg" else 0)


def test_queue_when_a_worker_does_not_serve_it(app: App) -> None:
    """Wake-ups for other queues neither run their jobs nor keep the worker from its own."""

    @app.jobs.handler
    def work() -> None: ...

    with app.worker(poll_interval=LONG, queues=["default"]):
        settle_down(app, work)
        left = app.add(work.using(queue="other"))
        settle_down(app, work)

    assert app.row(left).status == "ready"


def test_wakers_when_the_worker_has_stopped(app: App) -> None:
    """A worker that has stopped is woken no more, and enqueuing goes on without it."""

    @app.jobs.handler
    def work() -> None: ...

    with app.worker():
        settle_down(app, work)
    job = app.add(work)

    assert not app.jobs.has_wakers
    assert app.row(job).status == "ready"


def test_workers_when_two_of_a_process_are_woken(app: App) -> None:
    """A commit wakes every worker of its process, and the job runs once."""
    ran: list[str] = []

    @app.jobs.handler
    def work() -> None:
        ran.append(threading.current_thread().name)

    with app.worker(poll_interval=LONG), app.worker(poll_interval=LONG, queues=["other"]):
        settle_down(app, work)
        app.add(work.using(queue="other"))
        app.hear("done")

    assert len(ran) == 4
