from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import create_engine, event, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker

from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.mixins import JobMixin
from tests.engines import build_async_engine, build_engine, prepare_sqlite
from tests.operations.shop import Base, Customer, Job, Note, send

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sqlalchemy import Engine


def order_ids(session: Session) -> list[int]:
    return [job.payload["order_id"] for job in session.scalars(select(Job).order_by(Job.id)).unique()]


def test_scoped_session_is_taken(sessions: sessionmaker[Session]) -> None:
    """A `scoped_session` enqueues in the thread's session: commit, rollback and savepoints are its own."""
    registry = scoped_session(sessions)

    job = enqueue(registry, send, order_id=1)
    enqueue_many(registry, [send.job(order_id=2)])
    with registry.begin_nested() as savepoint:
        enqueue(registry, send, order_id=3)
        savepoint.rollback()
    is_of_the_session = job in registry()
    registry.commit()
    enqueue(registry, send, order_id=4)
    registry.rollback()

    assert is_of_the_session
    assert order_ids(registry()) == [1, 2]
    registry.remove()


def run_async(url: str, use: Callable[[async_sessionmaker[AsyncSession]], Awaitable[None]]) -> None:
    """Run *use* with an async session factory on a database that has the tables."""

    async def main() -> None:
        engine = build_async_engine(url)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            await use(async_sessionmaker(engine, expire_on_commit=False))
        finally:
            await engine.dispose()

    asyncio.run(main())


def test_async_session_is_taken(async_url: str) -> None:
    """The same name, awaited: commit, rollback and savepoints of an `AsyncSession`, on each async driver."""

    async def use(sessions: async_sessionmaker[AsyncSession]) -> None:
        async with sessions() as session:
            session.add(Customer(name="ann"))
            job = await enqueue(session, send.using(key="k"), order_id=1)
            again = await enqueue(session, send.using(key="k"), order_id=2)
            many = await enqueue_many(session, [send.job(order_id=3), send.using(key="k").job(order_id=4)])
            async with session.begin_nested() as savepoint:
                await enqueue(session, send, order_id=5)
                await savepoint.rollback()
            await session.commit()

            assert again is job
            assert (job.status, job.payload, job.is_duplicate) == ("ready", {"order_id": 1}, True)
            assert [each.is_duplicate for each in many] == [False, True]
            assert many[1].id == job.id
            await enqueue(session, send, order_id=6)
            await session.rollback()
            assert await session.run_sync(order_ids) == [1, 3]
            assert (await session.scalars(select(Customer.name))).all() == ["ann"]

    run_async(async_url, use)


def test_async_scoped_session_is_taken(async_url: str) -> None:
    """An `async_scoped_session` enqueues in the task's session."""

    async def use(sessions: async_sessionmaker[AsyncSession]) -> None:
        registry = async_scoped_session(sessions, scopefunc=asyncio.current_task)

        job = await enqueue(registry, send, order_id=1)
        await enqueue_many(registry, [send.job(order_id=2)])
        is_of_the_session = job in registry()
        await registry.commit()
        await enqueue(registry, send, order_id=3)
        await registry.rollback()

        assert is_of_the_session
        assert await registry().run_sync(order_ids) == [1, 2]
        await registry.remove()

    run_async(async_url, use)


def test_session_of_flask_sqlalchemy_is_taken(database_url: str) -> None:
    """`db.session` of Flask-SQLAlchemy enqueues, commits and rolls back as in any view."""

    class FlaskBase(DeclarativeBase): ...

    db: Any = SQLAlchemy(model_class=FlaskBase)

    class FlaskJob(JobMixin, db.Model):  # type: ignore[misc]  # a base made at run time
        __tablename__ = "job"

    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = database_url
    db.init_app(app)
    handler = Jobs(FlaskJob).handler(deliver)

    with app.app_context():
        prepare_sqlite(db.engine)
        db.create_all()
        session: scoped_session[Session] = db.session
        job = enqueue(session, handler, order_id=1)
        enqueue_many(session, [handler.job(order_id=2)])
        with session.begin_nested() as savepoint:
            enqueue(session, handler, order_id=3)
            savepoint.rollback()
        session.commit()
        enqueue(session, handler, order_id=4)
        session.rollback()

        assert type(job) is FlaskJob
        found = session.scalars(select(FlaskJob).order_by(FlaskJob.id))
        assert [each.payload["order_id"] for each in found] == [1, 2]
        session.remove()
        db.engine.dispose()


def deliver(order_id: int) -> None: ...


def test_own_session_class_is_taken(engine: Engine) -> None:
    """A subclass of Session that routes by itself is asked for the bind of the job model, as by any ORM statement."""
    asked: list[object] = []

    class Routing(Session):
        def get_bind(self, mapper: Any = None, **arguments: Any) -> Any:
            asked.append(mapper)
            return engine

    Base.metadata.create_all(engine)
    with Routing() as session:
        enqueue(session, send, order_id=1)
        enqueue_many(session, [send.job(order_id=2), send.using(key="k").job(order_id=3)])
        session.commit()

        assert order_ids(session) == [1, 2, 3]
    assert None not in asked


@pytest.fixture
def other_engine(tmp_path: Path) -> Any:
    """Give an engine on a database of its own, for the app's other models."""
    engine = build_engine(f"sqlite:///{tmp_path / 'customers.sqlite'}")
    Customer.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("others", [(Customer, Note), (Base,)], ids=["models", "base"])
def test_job_goes_to_the_bind_of_its_model(engine: Engine, other_engine: Engine, others: tuple[Any, ...]) -> None:
    """With several binds a job is stored where its model is bound, and the app's rows where theirs are."""
    Base.metadata.create_all(engine)

    with Session(binds={Job: engine, **dict.fromkeys(others, other_engine)}) as session:
        session.add(Customer(name="ann"))
        enqueue(session, send.using(key="a"), order_id=1)
        assert enqueue(session, send.using(key="a"), order_id=2).is_duplicate
        enqueue_many(session, [send.job(order_id=3), *(send.using(key=key).job(order_id=4) for key in "ab")])
        session.commit()

    counts = {}
    for name, bind in (("jobs", engine), ("customers", other_engine)):
        with Session(bind) as session:
            counts[name] = [session.scalars(select(func.count()).select_from(each)).one() for each in (Job, Customer)]
    assert counts == {"jobs": [3, 0], "customers": [0, 1]}


def test_session_bound_to_a_connection_is_taken(engine: Engine) -> None:
    """A test's session that joins an outer transaction enqueues in it, and its rollback undoes the job."""
    Base.metadata.create_all(engine)
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            enqueue(session, send, order_id=1)
            session.commit()
        outer.rollback()

    with Session(engine) as session:
        assert order_ids(session) == []


def test_enqueue_ends_no_transaction(sessions: sessionmaker[Session]) -> None:
    """Enqueue never commits and never rolls back, whatever happens."""
    ends: list[str] = []

    def note(name: str, *_: object) -> None:
        ends.append(name)

    with sessions() as session:
        for name in ("after_commit", "after_rollback", "after_soft_rollback"):
            event.listen(session, name, functools.partial(note, name))

        enqueue(session, send.using(key="k"), order_id=1)
        enqueue(session, send.using(key="k"), order_id=2)
        enqueue_many(session, [send.using(key=key).job(order_id=3) for key in "kkl"])
        mistake: Any = "x"
        with pytest.raises(TypeError):
            enqueue(session, send, order_id=mistake)

        assert ends == []
        assert session.in_transaction()


def test_transaction_begins_with_the_enqueue(sessions: sessionmaker[Session]) -> None:
    """A session that has not begun begins as with any statement, and its work is lost without a commit."""
    with sessions() as session:
        assert not session.in_transaction()
        enqueue(session, send, order_id=1)
        assert session.in_transaction()

    with sessions() as session:
        assert order_ids(session) == []


def test_enqueue_works_on_the_apps_plain_engine(database_url: str) -> None:
    """The settings that savepoints need on SQLite are not needed to enqueue."""
    engine = create_engine(database_url)
    Base.metadata.create_all(engine)

    with Session(engine) as session:
        enqueue(session, send.using(key="k"), order_id=1)
        session.commit()
        assert order_ids(session) == [1]

    engine.dispose()
