from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import Connection, bindparam, event, make_url, text, update
from sqlalchemy.exc import ArgumentError, CompileError, InterfaceError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from sqla_jobs.runtime.connections import is_database_trouble
from tests.engines import build_async_engine
from tests.runtime.app import App, Connections, MakeEngine, Note, ended, sync_url_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable


NAMES = text("SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()")


def busy(app: App, look: Callable[[], None]) -> None:
    """Run a worker with all its parts, call *look* while a handler runs, and see the job done."""
    started, is_over = threading.Event(), threading.Event()

    @app.jobs.handler
    def work(session: Session) -> None:
        session.add(Note(text="written"))
        session.flush()
        started.set()
        wait_for(is_over)

    job = app.add(work)
    with app.worker(listen=None):
        wait_for(started)
        look()
        is_over.set()
        app.hear("done")
    assert (app.row(job).status, app.notes()) == ("done", ["written"])


def test_creator_when_the_engine_has_one(postgresql_url: str, make_engine: MakeEngine) -> None:
    """All of a worker's connections are made by the engine's own creator: its URL may say nothing."""
    parsed = make_url(postgresql_url).set(drivername="postgresql").render_as_string(hide_password=False)
    engine = make_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(parsed, application_name="created"))
    app, seen = App(engine).create(), list[str]()

    def look() -> None:
        with engine.connect() as connection:
            seen.extend(connection.scalars(NAMES))

    busy(app, look)

    assert seen == ["created"]


def test_connect_args_and_events_when_the_engine_has_them(postgresql_url: str, make_engine: MakeEngine) -> None:
    """Connect arguments and `do_connect` and `connect` events hold for the worker's own connections, too."""
    engine = make_engine(postgresql_url, connect_args={"application_name": "argued"})
    app, seen, tokens, connected = App(engine), list[str](), list[str](), list[object]()
    enough = threading.Event()  # for the app's own two, and those that each part makes as its thread comes to it

    @event.listens_for(engine, "do_connect")
    def log_in(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        tokens.append(parameters["application_name"])
        parameters["application_name"] = "told"

    @event.listens_for(engine, "connect")
    def settings(connection: Any, _record: object) -> None:
        connected.append(connection)
        if len(connected) > 5:
            enough.set()

    def look() -> None:
        with engine.connect() as connection:
            wait_for(enough)
            seen.extend(connection.scalars(NAMES))

    app.create()
    busy(app, look)

    assert seen == ["told"]
    assert len(tokens) == len(connected) > 5
    assert tokens[0] == "argued"


def test_schema_translate_map_when_the_engine_has_one(postgresql_url: str, make_engine: MakeEngine) -> None:
    """A worker finds its table by the engine's `schema_translate_map`, as the app does."""
    plain = make_engine(postgresql_url)
    with plain.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA tenant")
    engine = make_engine(postgresql_url, execution_options={"schema_translate_map": {None: "tenant"}})
    app = App(engine).create()

    busy(app, lambda: None)

    with plain.connect() as connection:
        assert connection.exec_driver_sql("SELECT status FROM tenant.job").scalars().all() == ["done"]
        assert connection.exec_driver_sql("SELECT to_regclass('public.job')").scalar() is None


def test_schema_translate_map_when_the_async_engine_has_one(postgresql_url: str, make_engine: MakeEngine) -> None:
    """Execution options hold for async sessions, too, whose connections belong to the worker's loop."""
    options = {"schema_translate_map": {None: "tenant"}}
    engine = make_engine(postgresql_url, execution_options=options)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA tenant")
    app = App(engine, async_engine=build_async_engine(postgresql_url, execution_options=options)).create()

    @app.jobs.handler
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="written"))

    app.add(write)
    app.run()

    assert (app.notes(), app.statuses()) == (["written"], ["done"])


@pytest.mark.parametrize("by", ["create_engine", "execution_options"])
def test_isolation_when_the_engine_is_strict(postgresql_url: str, by: str, make_engine: MakeEngine) -> None:
    """The worker's own transactions are READ COMMITTED whatever the engine's level is, and however it was set."""
    level = "SERIALIZABLE"
    base = make_engine(postgresql_url, **({"isolation_level": level} if by == "create_engine" else {}))
    engine = base.execution_options(isolation_level=level) if by == "execution_options" else base
    app, levels = App(engine).create(), dict[str, set[str]]()

    @event.listens_for(engine, "before_cursor_execute")
    def listen(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        levels.setdefault(kind_of(statement), set()).add(str(connection.get_isolation_level()))

    busy(app, lambda: None)

    assert levels["claim"] == {"READ COMMITTED"}
    assert levels["note"] == {level}


def kind_of(statement: str) -> str:
    if "SKIP LOCKED" in statement and "attempts=" in statement:
        return "claim"
    return "note" if "INTO note" in statement else "other"


def test_engine_events_when_the_engine_has_them(app: App) -> None:
    """What handlers' sessions say goes through the app's engine events."""
    heard: list[str] = []

    @event.listens_for(app.engine, "before_cursor_execute")
    def listen(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        heard.append(statement)

    @app.jobs.handler
    def write(session: Session) -> None:
        session.add(Note(text="written"))

    app.add(write)
    heard.clear()

    app.run()

    assert any("INTO note" in statement for statement in heard)


def test_engine_events_when_the_async_engine_has_them(async_app: App) -> None:
    """What async sessions say goes through the app's engine events, although the worker's loop has its own engine."""
    assert async_app.async_sessions is not None
    heard: list[str] = []

    @event.listens_for(async_app.async_sessions.kw["bind"].sync_engine, "before_cursor_execute")
    def listen(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        heard.append(statement)

    @async_app.jobs.handler
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="written"))

    async_app.add(write)

    async_app.run()

    assert any("INTO note" in statement for statement in heard)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_connections_when_the_worker_has_stopped(database_url: str, kind: str, make_engine: MakeEngine) -> None:
    """A worker that has stopped has closed every connection that it made."""
    engine = make_engine(database_url)
    async_engine = build_async_engine(database_url) if kind == "async" else None
    own = Connections(engine if async_engine is None else async_engine.sync_engine)
    app = App(engine, async_engine=async_engine).create()

    @app.jobs.handler
    def plain() -> None: ...

    @app.jobs.handler
    async def awaited() -> None: ...

    for handler in (plain, awaited):
        app.add(handler)

    app.run(listen=None)
    engine.dispose()

    assert app.heard() == ["done", "done"]
    assert own.made > 0
    assert own.open == set()


def test_connections_when_handlers_used_async_sessions(async_app: App) -> None:
    """The connections of async sessions, too, are closed with the worker, those of a failed job included."""
    assert async_app.async_sessions is not None
    own = Connections(async_app.async_sessions.kw["bind"].sync_engine)

    @async_app.jobs.handler(max_attempts=1)
    async def write(session: AsyncSession, fails: bool) -> None:
        session.add(Note(text=f"{fails}"))
        await session.flush()
        if fails:
            raise RuntimeError("no")

    for fails in (True, False, True):
        async_app.add(write, fails)

    async_app.run()

    assert async_app.notes() == ["False"]
    assert own.made > 0
    assert own.open == set()


def test_trouble_when_a_statement_can_not_be_written() -> None:
    """What SQLAlchemy refuses to write is our own fault, and no outage that a worker waits for the end of."""
    by_id = Note.__table__.c.id == bindparam("id")

    with pytest.raises(CompileError) as refused:
        update(Note).where(by_id).values(id=1).compile()

    assert not is_database_trouble(refused.value)
    assert not is_database_trouble(ArgumentError())
    assert is_database_trouble(InterfaceError("SELECT 1", {}, Exception()))


def test_pool_when_connections_are_not_pooled(database_url: str, make_engine: MakeEngine) -> None:
    """A worker runs on an engine without a pool, a connection for each transaction."""
    engine = make_engine(database_url, poolclass=NullPool)
    app = App(engine).create()

    busy(app, lambda: None)

    assert set(app.statuses()) == {"done"}


def test_dialect_when_the_app_is_just_setting_it_up(async_url: str, make_engine: MakeEngine) -> None:
    """A worker may start while the app makes the first connection of its async engine, on a loop of its own."""
    async_engine = build_async_engine(async_url)
    dialect = async_engine.dialect
    initialize, begun, may_end = dialect.initialize, threading.Event(), threading.Event()

    def slowly(connection: Connection) -> None:
        dialect.initialize = initialize  # type: ignore[method-assign]  # only this first time
        begun.set()
        wait_for(may_end)
        initialize(connection)

    async def connect() -> None:
        async with async_engine.connect():
            pass
        await async_engine.dispose()

    app = App(make_engine(sync_url_of(async_url)), async_engine=async_engine).create()

    @app.jobs.handler
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="written"))

    app.add(write)
    dialect.initialize = slowly  # type: ignore[method-assign]  # what SQLAlchemy calls at an engine's first connection

    with ended(threading.Thread(target=lambda: asyncio.run(connect()))):
        try:
            wait_for(begun)
            app.run()
        finally:
            may_end.set()

    assert app.notes() == ["written"]
