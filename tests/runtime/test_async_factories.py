from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg  # type: ignore[import-untyped]
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool

from tests.engines import async_url_of, build_async_engine
from tests.runtime.app import SOON, App, Base, Job, MakeEngine, Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.ext.asyncio import AsyncEngine


def routing(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    """Make sessions of a class that knows its engine by itself."""

    class Routing(Session):
        def get_bind(self, mapper: Any = None, **options: Any) -> Engine:
            return engine.sync_engine

    return async_sessionmaker(sync_session_class=Routing)


def defined(engine: AsyncEngine) -> Callable[[], AsyncSession]:
    """Make sessions by a function that has a factory inside."""
    sessions = async_sessionmaker(engine)

    def make() -> AsyncSession:
        return sessions()

    return make


WAYS: dict[str, Callable[[AsyncEngine], Callable[[], AsyncSession]]] = {
    "sessionmaker": async_sessionmaker,
    "lambda": lambda engine: lambda: AsyncSession(engine),
    "partial": lambda engine: partial(AsyncSession, engine),
    "function": defined,
    "base": lambda engine: async_sessionmaker(binds={Base: engine}),
    "models": lambda engine: async_sessionmaker(binds={Job: engine, Note: engine}),
    "get_bind": routing,
}
"""Ways in which an app makes its async sessions."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("driver", ["asyncpg", "aiosqlite"])
def test_async_factory_of_any_kind(
    request: pytest.FixtureRequest, driver: str, way: str, make_engine: MakeEngine
) -> None:
    """However async sessions are made, no handler takes a connection from the app's pool, which is on another loop."""
    url = request.getfixturevalue("postgresql_url" if driver == "asyncpg" else "sqlite_url")
    app, pools, of_the_app = App(make_engine(url)).create(), list[Pool](), list[Pool]()

    @app.jobs.handler(max_attempts=1)
    async def write(session: AsyncSession, number: int) -> None:
        for entity in (Job, Note):
            pools.append(session.get_bind(entity).engine.pool)
        assert of_the_app[0] not in pools  # else no connection: on another loop, asyncpg brings the process down
        session.add(Note(text=f"note {number}"))

    for number in range(3):
        app.add(write, number)

    async def main() -> None:
        engine = build_async_engine(async_url_of(url, driver))
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        of_the_app.append(engine.pool)
        # In the pool there is a connection of this loop's now, for anybody to take.
        await asyncio.to_thread(app.run, sessions=None, async_sessions=WAYS[way](engine))
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        assert engine.pool is of_the_app[0]
        await engine.dispose()

    asyncio.run(main())

    assert app.notes() == ["note 0", "note 1", "note 2"]
    assert app.statuses() == ["done"] * 3
    assert len({*map(id, pools)}) == 1


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_async_handler_when_nobody_answers(postgresql_url: str, driver: str, make_engine: MakeEngine) -> None:
    """That a handler's session can't connect costs no attempt, whatever the driver raises."""
    async_engine, refused = build_async_engine(async_url_of(postgresql_url, driver)), list[str]()
    dialect = async_engine.dialect
    connect = dialect.connect

    def go_astray(*arguments: Any, **parameters: Any) -> DBAPIConnection:
        if threading.current_thread().name == "sqla_jobs loop" and not refused:
            refused.append(str(parameters["host"]))
            parameters["host"] = "/nonexistent"
        return connect(*arguments, **parameters)

    dialect.connect = go_astray  # type: ignore[method-assign]  # what SQLAlchemy calls for each connection
    app = App(make_engine(postgresql_url), async_engine=async_engine).create()

    @app.jobs.handler(max_attempts=1)
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="written"))

    job = app.add(write)

    app.run(within=SOON)

    row = app.row(job)
    assert len(refused) == 1
    assert (row.status, row.attempts, row.refunds) == ("done", 1, 1)
    assert (app.notes(), app.heard()) == (["written"], ["interrupted", "done"])


def test_async_sessions_when_each_has_an_engine_of_its_own(async_url: str, async_app: App) -> None:
    """An app that makes an `engine.execution_options(…)` for each session has one pool in the worker, and not many."""
    engine, pools = build_async_engine(async_url), list[Pool]()

    @async_app.jobs.handler(max_attempts=1)
    async def write(session: AsyncSession, number: int) -> None:
        pools.append(session.get_bind().engine.pool)
        session.add(Note(text=f"note {number}"))

    for number in range(3):
        async_app.add(write, number)

    async_app.run(async_sessions=lambda: AsyncSession(engine.execution_options(tenant=len(pools))))

    assert async_app.notes() == ["note 0", "note 1", "note 2"]
    assert len({*map(id, pools)}) == 1
    assert engine.pool not in pools


@pytest.mark.parametrize("part", ["loop", "dispatcher"])
def test_asyncpg_when_the_server_lets_nobody_in(postgresql_url: str, part: str, make_engine: MakeEngine) -> None:
    """That the server is starting, or full, costs no attempt and ends no worker, though asyncpg's error is bare."""
    async_engine, refused = build_async_engine(async_url_of(postgresql_url, "asyncpg")), list[str]()
    dialect = async_engine.dialect
    connect = dialect.connect

    def refuse(*arguments: Any, **parameters: Any) -> DBAPIConnection:
        if threading.current_thread().name == f"sqla_jobs {part}" and not refused:
            refused.append(part)
            raise asyncpg.CannotConnectNowError("the database system is starting up")
        return connect(*arguments, **parameters)

    dialect.connect = refuse  # type: ignore[method-assign]  # SQLAlchemy 2.0 lets the driver's own error through
    app = App(make_engine(postgresql_url), async_engine=async_engine).create()

    @app.jobs.handler(max_attempts=1)
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="written"))

    job = app.add(write)

    app.run(within=SOON)

    row = app.row(job)
    assert refused == [part]
    assert (row.status, row.attempts, row.refunds) == ("done", 1, 1 if part == "loop" else 0)
    assert app.notes() == ["written"]
