"""The app's session factories: what they are bound to, and a session for each job."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool, StaticPool

from sqla_jobs.errors import InvalidSessions
from sqla_jobs.runtime import snapshots
from sqla_jobs.runtime.connections import as_async, like
from sqla_jobs.schema import statements
from sqla_jobs.schema.dialects import capabilities, is_in_memory
from sqla_jobs.schema.tables import JobTable
from sqla_jobs.schema.trouble import is_outage

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

_OUTAGE_MARK = "_sqla_jobs_outage"

_IMPORTED_IN = os.getpid()
_used_in: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()
"""The process that an engine's connections belong to; the one that imported us, as far as we know."""


class Sessions:
    """Makes a session for each job, from the app's factories.

    :ivar engine: the one that serves the job model, and that the machinery's connections are made like
    :raises InvalidSessions: a factory can't serve a worker; the message says why
    """

    def __init__(
        self,
        jobs: JobTable,
        sessions: Callable[[], Session] | None,
        async_sessions: Callable[[], AsyncSession] | None,
    ) -> None:
        if sessions is None and async_sessions is None:
            raise InvalidSessions("a worker needs sessions=… (a sessionmaker) or async_sessions=…, or both")
        self._sync = _factory(sessions, "sessions")
        self._async = _factory(async_sessions, "async_sessions")
        self._loop_pools: dict[Pool, Pool] = {}
        self._loop_engines: WeakKeyDictionary[Engine, AsyncEngine] = WeakKeyDictionary()
        made = [(make, name) for make, name in ((self._sync, "sessions"), (self._async, "async_sessions")) if make]
        engines = [_engine(make, name, jobs) for make, name in made]
        self._engines = tuple(dict.fromkeys(engines))
        # Its own object: two workers in one process each add and remove theirs.
        self._mark, self._connect = partial(_mark), partial(_connect)
        self.engine = engines[0]

    @property
    def has_sync(self) -> bool:
        """Whether handlers can have a `Session`."""
        return self._sync is not None

    @property
    def has_async(self) -> bool:
        """Whether handlers can have an `AsyncSession`."""
        return self._async is not None

    def new(self) -> Session:
        """Make a session."""
        session = cast("Session", self._sync())  # there is one: handlers were checked at the start
        session.autobegin = True  # whatever the factory says: the completion needs a transaction
        return session

    def new_async(self) -> AsyncSession:
        """Make an async session, bound to an engine of the worker's own: connections belong to one event loop."""
        options: dict[str, Any] = getattr(self._async, "kw", {})
        own: dict[str, Any] = {}
        if options.get("bind") is not None:
            own["bind"] = self._on_our_loop(options["bind"])
        if options.get("binds"):
            own["binds"] = {entity: self._on_our_loop(bind) for entity, bind in options["binds"].items()}
        session = cast("AsyncSession", self._async(**own))
        # What a function makes, or a Session class of the app's with a `get_bind`, knows only the app's engines.
        session.sync_session.autobegin = True
        session.sync_session.get_bind = partial(self._bind_on_our_loop, session.sync_session.get_bind)  # type: ignore[method-assign]
        return session

    def _bind_on_our_loop(self, get_bind: Callable[..., Any], *args: Any, **options: Any) -> Any:
        bind = get_bind(*args, **options)
        if not isinstance(bind, Engine) or bind.pool in self._loop_pools.values():
            return bind
        return self._on_our_loop(as_async(bind)).sync_engine

    async def dispose(self) -> None:
        """Close the connections of the worker's event loop."""
        from sqlalchemy.util import greenlet_spawn

        for pool in self._loop_pools.values():
            await greenlet_spawn(pool.dispose)
        self._loop_pools.clear()
        self._loop_engines.clear()

    def watch(self) -> None:
        """Mark errors of these engines that are the database's fault, for `is_infrastructure`; look at transactions."""
        snapshots.watch()
        for engine in self._engines:
            event.listen(engine, "handle_error", self._mark)
            if engine.dialect.is_async:
                event.listen(engine, "do_connect", self._connect)

    def unwatch(self) -> None:
        """Undo `watch`."""
        for engine in self._engines:
            event.remove(engine, "handle_error", self._mark)
            if engine.dialect.is_async:
                event.remove(engine, "do_connect", self._connect)

    def drop_inherited(self) -> None:
        """In a child of a fork, leave the connections that its parent made to the parent."""
        for engine in self._engines:
            if _used_in.get(engine, _IMPORTED_IN) != os.getpid():
                engine.dispose(close=False)
            _used_in[engine] = os.getpid()

    def _on_our_loop(self, bind: Any) -> Any:
        engine: Engine = bind.sync_engine
        if engine not in self._loop_engines:
            # One pool for all engines that share one: an app may make an `engine.execution_options(…)` per session.
            if engine.pool not in self._loop_pools:
                self._loop_pools[engine.pool] = engine.pool.recreate()
            self._loop_engines[engine] = as_async(like(engine, self._loop_pools[engine.pool]))
        return self._loop_engines[engine]


def is_infrastructure(error: BaseException, *, has_session: bool) -> bool:
    """Tell whether a handler's error is the job database's fault: then the attempt is refunded.

    :param has_session: whether the handler had the job's session: a pool that is exhausted may be the app's own else
    """
    if isinstance(error, BaseExceptionGroup):
        held: tuple[BaseException, ...] = cast("Any", error).exceptions
        return all(is_infrastructure(each, has_session=has_session) for each in held)
    return (has_session and isinstance(error, PoolTimeoutError)) or vars(error).get(_OUTAGE_MARK, False)


SKIPS_ROLLBACKS = (
    "skip_autocommit_rollback=True takes a SQLite driver that leaves transactions alone for one that has none: take "
    "the option off create_engine(…)"
)


def skips_rollbacks(engine: Engine) -> bool:
    """Tell whether rollbacks are left out because transactions are begun by hand, as the savepoints of SQLite need it.

    :raises UnsupportedDatabase: it is of a kind that is not served
    """
    begins_by_hand = capabilities(engine.dialect).begin_writing is not None
    return begins_by_hand and getattr(engine.dialect, "skip_autocommit_rollback", False)  # since SQLAlchemy 2.0.43


def _commits_by_itself(engine: Engine) -> bool:
    dialect: Any = engine.dialect
    level = engine.get_execution_options().get("isolation_level")
    return (level or getattr(dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def _mark(context: ExceptionContext) -> None:
    # No connection: it could not be made.
    is_away = context.is_disconnect or context.connection is None or is_outage(context.original_exception)
    if is_away and context.sqlalchemy_exception is not None:
        setattr(context.sqlalchemy_exception, _OUTAGE_MARK, True)


def _connect(dialect: Any, _record: Any, args: Any, options: Any) -> Any:
    """Connect. What asyncpg raises there is an OSError, or its own, and SQLAlchemy shows neither to `handle_error`."""
    try:
        return dialect.connect(*args, **options)
    except Exception as error:
        if isinstance(error, OSError) or is_outage(error):
            setattr(error, _OUTAGE_MARK, True)
        raise


def _factory(sessions: Any, name: str) -> Any:
    """Give what makes a session."""
    if sessions is None:
        return None
    if isinstance(sessions, Session | Engine | Connection) or not callable(sessions):
        raise InvalidSessions(
            f"{name} is a factory, such as sessionmaker(engine), and is a {type(sessions).__name__}: each job has a "
            "session of its own"
        )
    # A scoped session, sync or async: its sessions belong to a thread or a request.
    return getattr(sessions, "session_factory", sessions)


def _engine(make: Callable[[], Any], name: str, jobs: JobTable) -> Engine:
    session: Any = make()
    if not hasattr(session, "get_bind"):
        raise InvalidSessions(
            f"{name} gives a {type(session).__name__} and no session when it is called: pass a sessionmaker, or a "
            "function that returns a session"
        )
    sync = getattr(session, "sync_session", session)
    if (sync is session) is (name == "async_sessions"):
        raise InvalidSessions(
            f"{name} makes a {type(session).__name__}: sessions=… is for Session, async_sessions=… for AsyncSession"
        )
    try:
        # Of a statement that writes: the app may send reads to a replica.
        bind = sync.get_bind(mapper=jobs.mapper, clause=statements.complete_one(jobs))
    except UnboundExecutionError as error:
        raise InvalidSessions(
            f"the session factory has no engine for {jobs.mapper.class_.__name__}: sessionmaker(engine)"
        ) from error
    if isinstance(bind, Connection):
        raise InvalidSessions(
            "the session factory is bound to a Connection, and a worker needs connections of its own: bind it to the "
            "Engine. To run jobs inside a test's transaction, use sqla_jobs.testing.drain"
        )
    if skips_rollbacks(bind):
        raise InvalidSessions(f"{name} has an engine whose rollbacks undo nothing: {SKIPS_ROLLBACKS}")
    if is_in_memory(bind.dialect, bind.url):
        raise InvalidSessions(
            "an in-memory SQLite database lives in one connection, and a worker needs several: use a file. To run "
            "jobs inside a test's transaction, use sqla_jobs.testing.drain"
        )
    if isinstance(bind.pool, StaticPool):
        raise InvalidSessions(
            f"{name} has an engine with StaticPool, whose one connection all handlers would share, so that one commits "
            "what another has only begun: take poolclass=StaticPool off, and give a worker an engine with a pool"
        )
    if _commits_by_itself(bind):
        raise InvalidSessions(
            f"{name} has an engine with AUTOCOMMIT, so what a handler writes would stay when it fails, and be written "
            "again: take isolation_level='AUTOCOMMIT' off, or give the worker an engine without it"
        )
    return cast("Engine", bind)
