"""What holds of all that people do with jobs, on each kind of session; and who hears of it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import event, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

from sqla_jobs.errors import UnknownJob
from sqla_jobs.operations.batches import requeue_batch
from sqla_jobs.operations.dead_letters import cancel_jobs, delete_jobs, requeue_jobs
from sqla_jobs.operations.listing import JobFilter, find_jobs, show_job
from sqla_jobs.operations.registry import Jobs
from tests.engines import build_async_engine, build_engine
from tests.operations.operating import (
    HOUR,
    LOOKS,
    MOVES,
    NOW,
    STATUSES,
    ArchivedJob,
    Base,
    Job,
    Note,
    Scene,
    add,
    clock,
    jobs,
)
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


def test_operation_ends_no_transaction(scene: Scene) -> None:
    """None commits, none rolls back."""
    ends: list[str] = []

    def end(_: Session, ended: SessionTransaction) -> None:
        if ended.parent is None:  # savepoints have one; they end
            ends.append("an end")

    with Session(scene.engine) as session:
        event.listen(session, "after_transaction_end", end)
        ids = [add(session, status) for status in STATUSES]
        for operation in (*LOOKS.values(), *MOVES.values()):
            for job_id in ids:
                operation(session, jobs, job_id)

        assert ends == []
        assert session.in_transaction()


def test_scoped_session_is_taken(scene: Scene) -> None:
    """A `scoped_session` is the thread's session: commit and rollback are its own."""
    job_id = scene.add("dead")
    registry = scoped_session(sessionmaker(scene.engine))

    with registry():
        requeue_jobs(registry, jobs, job_id)
        registry.rollback()
        assert show_job(registry, jobs, job_id).status == "dead"
        requeue_jobs(registry, jobs, job_id)
        registry.commit()
        for operation in LOOKS.values():
            operation(registry, jobs, job_id)

    assert scene.row(job_id)["status"] == "ready"


def test_async_session_is_taken(async_url: str) -> None:
    """The same names, awaited: each looks and moves in the transaction of an `AsyncSession`, on each async driver."""

    async def main() -> None:
        engine = build_async_engine(async_url)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            await use(async_sessionmaker(engine, expire_on_commit=False))
        finally:
            await engine.dispose()

    async def use(sessions: async_sessionmaker[AsyncSession]) -> None:
        async with sessions.begin() as session:
            await session.run_sync(set_clock)
            old, new = [await session.run_sync(partial(add, status="dead", ago=ago)) for ago in (2 * HOUR, HOUR)]

        async with sessions() as session:
            first = await find_jobs(session, jobs, JobFilter(error="BROKEN", older_than=HOUR / 2), limit=1)
            second = await find_jobs(session, jobs, JobFilter(status="dead"), limit=1, after=first.after)
            assert [job.id for job in (*first.jobs, *second.jobs)] == [new, old]
            for name in ("requeue", "cancel a batch", "requeue a batch", "cancel"):
                for operation in (MOVES[name], *LOOKS.values()):
                    await operation(session, jobs, old)
            await session.rollback()
            assert (await show_job(session, jobs, old)).status == "dead"
            for name in ("delete", "delete a batch"):
                await MOVES[name](session, jobs, old)
            with pytest.raises(UnknownJob):
                await show_job(session, jobs, new)
            await session.rollback()

        scoped = async_scoped_session(sessions, scopefunc=asyncio.current_task)
        async with scoped():
            assert [answer.is_changed for answer in await requeue_jobs(scoped, jobs, [old, new])] == [True, True]
            await scoped.commit()
            assert {job.status for job in (await find_jobs(scoped, jobs)).jobs} == {"ready"}

    asyncio.run(main())


def set_clock(session: Session) -> None:
    clock.advance(session, NOW - clock.read(session))


@pytest.fixture
def other_engine(tmp_path: Path) -> Iterator[Engine]:
    """Give an engine on a database of its own, for the app's other models."""
    engine = build_engine(f"sqlite:///{tmp_path / 'other.sqlite'}")
    yield engine
    engine.dispose()


def test_operation_goes_to_the_bind_of_its_models(scene: Scene, other_engine: Engine) -> None:
    """Each statement is sent where its model is bound, and a Session that routes by itself is told the model."""
    asked: list[object] = []

    class Routing(Session):
        def get_bind(self, mapper: Any = None, **arguments: Any) -> Any:
            asked.append(mapper)
            return super().get_bind(mapper=mapper, **arguments)

    binds: dict[Any, Any] = {Job: scene.engine, ArchivedJob: scene.engine, Note: scene.engine, Base: other_engine}
    with scene.transaction() as session:
        ids = [add(session, status) for status in STATUSES]
        ids.append(add(session, "done", id=999, is_archived=True))

    with Routing(binds=binds) as session:
        for operation in (*LOOKS.values(), *MOVES.values()):
            for job_id in ids:
                operation(session, jobs, job_id)
        session.commit()

    assert asked
    assert None not in asked


def test_requeue_is_heard_at_the_commit_and_only_then(postgresql_url: str) -> None:
    """NOTIFY rides in the transaction, once a queue; of moves that make nothing ready, nobody hears."""
    engine = build_engine(postgresql_url)
    scene = Scene(engine)
    with scene.transaction() as session:
        ids = [add(session, status, queue=queue) for status in ("dead", "done", "ready") for queue in ("a", "b")]
        more = [add(session, "dead", queue=queue) for queue in ("c", "c", "d")]
    silent = Jobs(Job, notify=False)
    channel = jobs.table.channel

    dsn = make_url(postgresql_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(dsn, autocommit=True)) as listener:
        listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        with Session(engine) as session:
            requeue_jobs(session, jobs, ids[0])
            session.rollback()
        with scene.transaction() as session:
            requeue_jobs(session, jobs, ids)
            listener.execute("SELECT pg_notify(%s, 'not committed')", [channel])
        with scene.transaction() as session:
            cancel_jobs(session, jobs, ids[0])
            delete_jobs(session, jobs, ids[0])
            requeue_jobs(session, silent, more[2])
        with scene.transaction() as session:
            requeue_batch(session, jobs, JobFilter())
        listener.execute("SELECT pg_notify(%s, 'the end')", [channel])
        heard: list[str] = []
        for notification in listener.notifies(timeout=20):
            heard.append(notification.payload)
            if heard[-1] == "the end":
                break
    engine.dispose()

    assert heard == ["not committed", "a", "b", "c", "the end"]
