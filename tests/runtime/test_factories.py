from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool
from sqlalchemy.sql.dml import UpdateBase

from sqla_jobs import InvalidSessions, Jobs, Worker
from tests.engines import async_url_of, build_async_engine, build_engine
from tests.runtime.app import App, Job, MakeEngine, Note

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine


@pytest.mark.parametrize("how", ["generator", "context", "begin", "connect", "nothing"])
def test_factory_when_it_gives_no_session(app: App, how: str) -> None:
    """A function that gives anything but a session when it is called is refused, by what it gives."""

    def get_db() -> Generator[Session]:
        with app.sessions() as session:
            yield session

    given: dict[str, Any] = {
        "generator": (get_db, "generator"),
        "context": (contextmanager(get_db), "_GeneratorContextManager"),
        "begin": (app.sessions.begin, "_GeneratorContextManager"),
        "connect": (app.engine.connect, "Connection"),
        "nothing": (lambda: None, "NoneType"),
    }
    factory, what = given[how]

    with pytest.raises(InvalidSessions, match=f"sessions gives a {what} and no session.*pass a sessionmaker"):
        Worker(app.jobs, factory)
    with pytest.raises(InvalidSessions, match=f"async_sessions gives a {what} and no session.*pass a sessionmaker"):
        Worker(app.jobs, async_sessions=factory)


def test_engine_when_it_commits_by_itself(database_url: str, make_engine: MakeEngine) -> None:
    """An AUTOCOMMIT engine, under which a failed handler's writes would stay, is refused, however it became one."""
    level = "AUTOCOMMIT"
    engines = [
        make_engine(database_url, isolation_level=level),
        make_engine(database_url).execution_options(isolation_level=level),
        make_engine(database_url, execution_options={"isolation_level": level}),
    ]
    async_engine = build_async_engine(database_url).execution_options(isolation_level=level)

    for engine in engines:
        with pytest.raises(InvalidSessions, match="sessions has an engine with AUTOCOMMIT.*take isolation_level="):
            Worker(Jobs(Job), sessionmaker(engine))
    with pytest.raises(InvalidSessions, match="async_sessions has an engine with AUTOCOMMIT"):
        Worker(Jobs(Job), async_sessions=async_sessionmaker(async_engine))


def test_engine_when_all_share_one_connection(database_url: str, make_engine: MakeEngine) -> None:
    """A StaticPool, under which one handler commits what another has begun, is refused, with the remedy."""
    engine = make_engine(database_url, poolclass=StaticPool)
    async_engine = build_async_engine(database_url, poolclass=StaticPool)

    with pytest.raises(InvalidSessions, match="sessions has an engine with StaticPool.*take poolclass=StaticPool off"):
        Worker(Jobs(Job), sessionmaker(engine))
    with pytest.raises(InvalidSessions, match="async_sessions has an engine with StaticPool"):
        Worker(Jobs(Job), async_sessions=async_sessionmaker(async_engine))


@pytest.fixture
def replica(database_url: str) -> Iterator[Engine]:
    """Give an engine on the same database that can only read."""
    if database_url.startswith("postgresql"):
        options: Any = {"connect_args": {"options": "-c default_transaction_read_only=on"}}
        engine = build_engine(database_url, **options)
    else:
        path = database_url.removeprefix("sqlite+pysqlite:///")
        engine = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    yield engine
    engine.dispose()


def test_engine_when_reads_go_to_a_replica(app: App, replica: Engine) -> None:
    """Where a session reads from a replica, the worker works on the one that is written to."""
    leader = app.engine

    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Engine:
            return leader if self._flushing or isinstance(clause, UpdateBase) else replica

    sessions = sessionmaker(class_=Routing)

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.scalars(select(Note.id)).all()
        session.add(Note(text="written"))

    app.add(write)

    assert app.worker(sessions=sessions).engine is leader

    app.run(sessions=sessions)

    assert (app.notes(), app.statuses()) == (["written"], ["done"])


HOW = ["idle", "writing", "by hand"]


def test_sessions_when_they_begin_nothing_by_themselves(app: App) -> None:
    """With `autobegin=False` handlers may do nothing, write, or say `session.begin()`: all are done, once."""

    @app.jobs.handler(max_attempts=1)
    def work(session: Session, how: str) -> None:
        if how == "writing":
            session.add(Note(text=how))
        elif how == "by hand":
            with session.begin():
                session.add(Note(text=how))

    for how in HOW:
        app.add(work, how)

    app.run(sessions=sessionmaker(app.engine, autobegin=False))

    assert (app.notes(), app.statuses()) == (["by hand", "writing"], ["done"] * 3)


def test_async_sessions_when_they_begin_nothing_by_themselves(async_url: str, async_app: App) -> None:
    """The same of async sessions."""

    @async_app.jobs.handler(max_attempts=1)
    async def work(session: AsyncSession, how: str) -> None:
        if how == "writing":
            session.add(Note(text=how))
        elif how == "by hand":
            async with session.begin():
                session.add(Note(text=how))

    for how in HOW:
        async_app.add(work, how)

    async_app.run(async_sessions=async_sessionmaker(build_async_engine(async_url), autobegin=False))

    assert (async_app.notes(), async_app.statuses()) == (["by hand", "writing"], ["done"] * 3)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 takes autocommit=… since Python 3.12")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_driver_when_it_keeps_a_transaction_open(tmp_path: Path, kind: str) -> None:
    """With `autocommit=False` the driver begins before the worker does, and jobs are done all the same."""
    url, options = f"sqlite:///{tmp_path / 'jobs.sqlite'}", {"connect_args": {"autocommit": False}}
    engine = create_engine(url, **options)
    async_engine: AsyncEngine | None = None
    if kind == "async":
        async_engine = create_async_engine(async_url_of(url), **options)
    app = App(engine, async_engine=async_engine).create()

    @app.jobs.handler
    def plain() -> str:
        return "ran"

    if async_engine is None:

        @app.jobs.handler
        def write(session: Session) -> None:
            session.add(Note(text="written"))

        app.add(write)
    else:

        @app.jobs.handler
        async def write_async(session: AsyncSession) -> None:
            session.add(Note(text="written"))

        app.add(write_async)
    app.add(plain)

    app.run()

    assert (app.notes(), app.statuses(), app.row(2).result) == (["written"], ["done", "done"], "ran")
    engine.dispose()


def test_engine_when_its_options_overrule_autocommit(database_url: str, make_engine: MakeEngine) -> None:
    """An engine with transactions is one, though it was made from an AUTOCOMMIT one."""
    level = "READ COMMITTED" if database_url.startswith("postgresql") else "SERIALIZABLE"
    engine = make_engine(database_url, isolation_level="AUTOCOMMIT").execution_options(isolation_level=level)
    app = App(engine)

    assert isinstance(app.worker(), Worker)
