from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import NullPool, event, func, select
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import Backoff, GiveUp, Jobs, Retry, Snooze, Worker, current_job, enqueue
from tests.crash.app import Base, Broken, Effect, Job
from tests.crash.processes import LONGEST
from tests.engines import build_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from sqla_jobs import JobEvent

NOW = timedelta(0)

ENDS = {
    "return": ("done", 1),
    "raise": ("done", 2),
    "retry": ("done", 2),
    "snooze": ("done", 1),
    "give up": ("failed", 1),
}
"""How the first attempt ends, and what the row says at last."""

POLL = timedelta(milliseconds=50)


def build_jobs(*, notify: bool) -> tuple[Jobs[Job], Any]:
    """Make a registry and its one handler, which leaves as it is told to in its first claim."""
    jobs = Jobs(Job, notify=notify)

    @jobs.handler(backoff=Backoff(base=NOW))
    def end(session: Session, how: str) -> str:
        job = current_job().load(session)
        session.add(Effect(job_id=job.id, attempt=job.attempts, pid=0))
        if how == "give up":
            raise GiveUp("no use")
        if job.claims == 1 and how != "return":
            raise {"raise": Broken(), "retry": Retry(delay=NOW), "snooze": Snooze(delay=NOW)}[how]
        return how

    return jobs, end


@pytest.fixture
def pooled(postgresql_url: str) -> Iterator[Engine]:
    """Give an engine as behind a transaction-mode pooler: a new connection for each use, and no state is left on it."""
    engine = build_engine(postgresql_url, poolclass=NullPool, connect_args={"prepare_threshold": None})

    @event.listens_for(engine, "checkin")
    def discard(connection: Any, _record: object) -> None:
        connection.autocommit = True
        connection.execute("DISCARD ALL")
        connection.autocommit = False

    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("listens", [False, True], ids=["polling", "listening in vain"])
def test_f20_life_of_jobs_behind_a_pooler_needs_no_session_state(pooled: Engine, listens: bool) -> None:
    """Claim, settle, retry, snooze and give up work by polling alone, over connections that remember nothing."""
    worker_s, _ = build_jobs(notify=listens)
    # Nobody hears of what this one enqueues: a pooler in transaction mode lets no LISTEN through.
    _, end = build_jobs(notify=False)
    left = threading.Semaphore(0)

    @worker_s.on("done", "failed")
    def count(_event: JobEvent) -> None:
        left.release()

    with Worker(worker_s, sessionmaker(pooled), poll_interval=POLL):
        with Session(pooled) as session, session.begin():
            ids = [enqueue(session, end, how=how).id for how in ENDS]
        assert all(left.acquire(timeout=LONGEST) for _ in ENDS)

    with Session(pooled) as session:
        rows = session.execute(select(Job.status, Job.attempts).order_by(Job.id)).all()
        effects = session.scalars(select(Effect.job_id).order_by(Effect.job_id)).all()
    assert [tuple(row) for row in rows] == list(ENDS.values())
    assert effects == ids[:-1]


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_f20_notify_is_sent_once_for_each_of_many_transactions_at_once(postgresql_url: str, is_on: bool) -> None:
    """32 sessions enqueue at one moment, each some jobs: nothing fails, and a listener hears one word of each."""
    sessions_at_once = 32
    engine = build_engine(postgresql_url, pool_size=sessions_at_once)
    Base.metadata.create_all(engine)
    jobs, end = build_jobs(notify=is_on)
    barrier = threading.Barrier(sessions_at_once)

    def put(_number: int) -> None:
        with Session(engine) as session:
            session.connection()
            barrier.wait(LONGEST)
            for _ in range(3):
                enqueue(session, end, how="return")
            session.commit()

    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    channel = sql.Identifier(jobs.table.channel)
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute(sql.SQL("LISTEN {}").format(channel))
        with ThreadPoolExecutor(sessions_at_once) as threads:
            list(threads.map(put, range(sessions_at_once)))
        listener.execute(sql.SQL("NOTIFY {}, 'that was all'").format(channel))
        heard = list(iter(lambda: next(listener.notifies(timeout=LONGEST)).payload, "that was all"))

    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 3 * sessions_at_once
    assert heard == ["default"] * (sessions_at_once if is_on else 0)
    engine.dispose()
