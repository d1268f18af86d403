from __future__ import annotations

import sqlite3
import threading
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from sqla_jobs import (
    InvalidOption,
    InvalidSessions,
    JobMixin,
    Jobs,
    UnsupportedDatabase,
    Worker,
    enqueue,
)
from tests.engines import build_async_engine, build_engine, prepare_sqlite
from tests.runtime.app import App, Base, Job, MakeEngine, Note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class OwnSession(Session):
    """What an app may make sessions of."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Engine]:
    """Give an engine on a second database."""
    engine = build_engine(f"sqlite:///{tmp_path / 'elsewhere.sqlite'}")
    yield engine
    engine.dispose()


def test_factory_when_there_is_none() -> None:
    """A worker without any session factory is refused, and told which to give."""
    with pytest.raises(InvalidSessions, match=r"sessions=… \(a sessionmaker\) or async_sessions=…, or both"):
        Worker(Jobs(Job))


@pytest.mark.parametrize("what", ["session", "engine", "connection", "text"])
def test_factory_when_it_is_none(app: App, what: str) -> None:
    """What makes no sessions is refused by name: a Session, an Engine, a Connection."""
    with app.engine.connect() as connection, Session(app.engine) as session:
        wrong: dict[str, Any] = {
            "session": session,
            "engine": app.engine,
            "connection": connection,
            "text": "sqlite://",
        }

        with pytest.raises(InvalidSessions, match=r"sessions is a factory, such as sessionmaker\(engine\), and is a"):
            Worker(app.jobs, wrong[what])


def test_factory_when_it_is_bound_to_a_connection(app: App) -> None:
    """A factory on one Connection, as tests have it, is refused, and pointed to `drain`."""
    with (
        app.engine.connect() as connection,
        pytest.raises(InvalidSessions, match=r"bound to a Connection.*sqla_jobs\.testing\.drain"),
    ):
        Worker(app.jobs, sessionmaker(connection))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_factory_when_the_database_is_in_memory(url: str, make_engine: MakeEngine) -> None:
    """An SQLite database in memory is one connection's, and a worker needs several: refused, with the remedy."""
    engine = make_engine(url, poolclass=NullPool)

    with pytest.raises(InvalidSessions, match=r"in-memory SQLite.*use a file"):
        Worker(Jobs(Job), sessionmaker(engine))


@pytest.mark.skipif(
    "skip_autocommit_rollback" not in signature(DefaultDialect).parameters, reason="of a later SQLAlchemy"
)
def test_factory_when_rollbacks_are_left_out(database_url: str, make_engine: MakeEngine) -> None:
    """On SQLite `skip_autocommit_rollback` leaves out every rollback: refused. On PostgreSQL it does what it says."""
    engine = make_engine(database_url, skip_autocommit_rollback=True)
    app = App(engine)

    if engine.dialect.name == "sqlite":
        with pytest.raises(InvalidSessions, match=r"skip_autocommit_rollback=True.*take the option off"):
            app.worker()
        return

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.add(Note(text="written"))
        session.flush()
        raise ValueError("boom")

    app.create().add(write)

    app.run()

    assert (app.statuses(), app.notes()) == (["dead"], [])


def test_factory_when_it_is_bound_to_nothing() -> None:
    """A factory without an engine is refused, and told how to get one."""
    with pytest.raises(InvalidSessions, match=r"no engine for Job: sessionmaker\(engine\)"):
        Worker(Jobs(Job), sessionmaker())


def test_factory_when_the_database_is_not_served() -> None:
    """A database of a kind that is not served is refused at once."""
    engine = create_engine("mysql://", module=sqlite3)

    with pytest.raises(UnsupportedDatabase, match="'mysql' databases are not served; postgresql and sqlite are"):
        Worker(Jobs(Job), sessionmaker(engine))


def test_session_handler_when_a_factory_is_missing(app: App) -> None:
    """Handlers that want a session that nobody makes are refused at the start, and nothing is left running."""

    @app.jobs.handler
    async def write(session: AsyncSession) -> None: ...

    before = set(threading.enumerate())
    worker = app.worker()

    with pytest.raises(InvalidSessions, match=r"'write' takes an AsyncSession: give the worker async_sessions=…"):
        worker.start()
    assert set(threading.enumerate()) <= before  # one that the test before has left may end just now


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queues": "mail"}, r"queues is a list of names, and is the str 'mail': queues=\['mail'\]"),
        ({"queues": []}, "queues is empty: leave it out to serve every queue"),
        ({"queues": ["a", ""]}, "queue is empty"),
        ({"concurrency": 0}, "concurrency is from 1 to"),
        ({"concurrency": True}, "concurrency is an int, and is a bool"),
        ({"lease": 60}, r"lease is a timedelta, and is a int: timedelta\(seconds=…\)"),
        ({"name": "n\x00"}, "name has a NUL"),
    ],
)
def test_option_when_it_is_wrong(app: App, options: dict[str, Any], says: str) -> None:
    """A setting out of range is refused where the worker is made, with what it may be."""
    with pytest.raises(InvalidOption, match=says):
        Worker(app.jobs, app.sessions, **options)


def test_scoped_session_when_it_is_the_factory(app: App) -> None:
    """A scoped_session is looked through: each job has a session of its own, and the thread's own is left alone."""
    scoped = scoped_session(app.sessions)
    sessions: list[Session] = []

    @app.jobs.handler
    def write(session: Session) -> None:
        sessions.append(session)
        session.add(Note(text=f"note {len(sessions)}"))
        assert not scoped.registry.has()

    for _ in range(2):
        enqueue(scoped, write)
    scoped.commit()
    mine = scoped()

    app.run(sessions=scoped, concurrency=1)

    assert app.notes() == ["note 1", "note 2"]
    assert len({*map(id, sessions), id(mine)}) == 3
    scoped.remove()


def test_factory_when_it_is_a_function(app: App) -> None:
    """Any function that makes sessions will do, also one that makes them of a class of the app's own."""
    kinds: list[type[Session]] = []

    @app.jobs.handler
    def write(session: OwnSession) -> None:
        kinds.append(type(session))
        session.add(Note(text="written"))

    app.add(write)

    app.run(sessions=lambda: OwnSession(app.engine, autoflush=False))

    assert (kinds, app.notes()) == ([OwnSession], ["written"])


def test_factory_when_it_has_several_binds(app: App, elsewhere: Engine) -> None:
    """The worker connects where the job model is bound; handlers write to every bind."""

    class Elsewhere(DeclarativeBase):
        pass

    class Entry(Elsewhere):
        __tablename__ = "entry"
        id: Mapped[int] = mapped_column(primary_key=True)

    Elsewhere.metadata.create_all(elsewhere)
    sessions = sessionmaker(binds={Base: app.engine, Entry: elsewhere})

    @app.jobs.handler
    def write(session: Session) -> None:
        session.add_all([Note(text="here"), Entry(id=7)])

    job = app.add(write)

    app.run(sessions=sessions)

    with sessions() as session:
        assert session.get(Entry, 7) is not None
    assert (app.notes(), app.row(job).status) == (["here"], "done")


def test_error_when_another_database_fails(app: App, make_engine: MakeEngine) -> None:
    """An outage of a database that is not the jobs' is the handler's own failure: it costs an attempt."""
    other = make_engine("postgresql+psycopg://nobody@/nothing?host=/nonexistent")

    @app.jobs.handler(max_attempts=1)
    def call(session: Session) -> None:
        session.add(Note(text="written"))
        session.flush()
        with other.connect():
            pass

    job = app.add(call)

    app.run()

    row = app.row(job)
    assert (row.status, row.attempts, row.refunds) == ("dead", 1, 0)
    assert app.notes() == []


def test_flask_session_when_it_is_the_factory(database_url: str) -> None:
    """Flask-SQLAlchemy's `db.session` is a factory, inside an app context, which the handlers share."""
    db: Any = SQLAlchemy()
    flask = Flask("shop")
    flask.config["SQLALCHEMY_DATABASE_URI"] = database_url
    db.init_app(flask)
    seen: list[str] = []

    class FlaskJob(JobMixin, db.Model):  # type: ignore[misc]
        __tablename__ = "job"

    jobs = Jobs(FlaskJob)

    @jobs.handler
    def write(session: Session) -> None:
        from flask import current_app

        seen.append(current_app.name)

    with flask.app_context():
        prepare_sqlite(db.engine)
        db.create_all()
        session: scoped_session[Session] = db.session
        enqueue(session, write)
        db.session.commit()
        Worker(jobs, db.session, listen=False).run_until_idle()
        status = db.session.scalars(db.select(FlaskJob.status)).one()
        db.session.remove()
        db.engine.dispose()

    assert (seen, status) == (["shop"], "done")


def test_async_factory_when_it_is_wrong(sqlite_url: str) -> None:
    """Async factories are checked like sync ones."""
    memory = build_async_engine("sqlite+aiosqlite:///:memory:")
    engine = build_async_engine(sqlite_url)

    with pytest.raises(InvalidSessions, match="in-memory SQLite"):
        Worker(Jobs(Job), async_sessions=async_sessionmaker(memory))
    with pytest.raises(InvalidSessions, match="async_sessions is a factory"):
        Worker(Jobs(Job), async_sessions=cast("Any", async_sessionmaker(engine)()))
