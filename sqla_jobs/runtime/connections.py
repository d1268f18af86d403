"""Connections of the machinery's own, made as the app's engine makes them, that no handler can take from it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import ArgumentError, CompileError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import Pool
from sqlalchemy.sql.base import Executable

from sqla_jobs.runtime import failpoints
from sqla_jobs.schema.dialects import Listen, capabilities, check_server
from sqla_jobs.schema.trouble import is_read_only, is_said_by_server

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

NOTE_SECONDS = 0.5
"""How long a listener waits at most before it looks whether it shall stop."""

QUIET_LOOKS = 60
"""Half a minute of silence: then a listener asks whether its connection still lives."""


def like(engine: Engine, pool: Pool | None = None) -> Engine:
    """Make an engine with a pool of its own and *engine*'s creator, connect arguments, events and execution options.

    :param pool: take this one
    """
    clone = _without_events(engine, pool)
    # Engine-level events live on the engine, not on its pool.
    clone.dispatch = clone.dispatch._join(engine.dispatch)  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue,reportUnknownMemberType]
    clone._has_events = engine._has_events or clone._has_events  # pyright: ignore[reportPrivateUsage]
    return clone


def _without_events(engine: Engine, pool: Pool | None = None) -> Engine:
    clone = Engine(engine.pool.recreate() if pool is None else pool, engine.dialect, engine.url)
    # Before events are joined: an isolation level adds one, and a joined set takes none.
    clone.update_execution_options(**engine.get_execution_options())
    return clone


class Opening:
    """The first connection of an engine and its likes: made alone, since it sets up the dialect that they share.

    :param engine: the app's
    """

    def __init__(self, engine: Engine) -> None:
        self._dialect = engine.dialect
        self._lock = threading.Lock()
        self.is_done = False

    def ensure(self, connector: Connector) -> None:
        """Have a connection made once, and refuse a server that is too old."""
        if self.is_done:
            return
        with self._lock:
            if not self.is_done:
                connector.set_up()
                check_server(self._dialect)
                self.is_done = True


class Connector:
    """One connection at a time, for one part of the machinery; made when first needed, dropped when it breaks.

    Works the same over an async engine, on a private event loop that runs only inside a call.

    :param engine: one of its own, from `like`
    :param part: what it is for, by which `failpoints` name its transactions
    :param isolation: of its connections; None leaves the engine's
    """

    def __init__(self, engine: Engine, opening: Opening, *, part: str = "other", isolation: str | None = None) -> None:
        self._part = part
        self._reading = f"{part}.read"
        self._engine = engine
        self._opening = opening
        self._isolation = isolation
        self._can = capabilities(engine.dialect)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def of_app(cls, engine: Engine, opening: Opening, *, part: str = "other") -> Connector:
        """Make one for our own short transactions, from the app's engine."""
        if capabilities(engine.dialect).begin_writing is None:
            return cls(like(engine), opening, part=part, isolation="READ COMMITTED")
        # Where we begin ourselves, the app's own `begin` listener (SQLAlchemy documents one for SQLite) would, too.
        own = _without_events(engine)
        event.listen(own, "connect", capabilities(engine.dialect).read_any_text)
        return cls(own, opening, part=part, isolation="AUTOCOMMIT")

    @property
    def bounded(self) -> Executable | None:
        """What bounds a transaction: for `run`."""
        return self._can.bounded

    def set_up(self) -> None:
        """Connect, and see that the dialect knows its server."""
        self._connected(_initialize)

    def run(self, operation: Callable[[Session], T], *, bounded: Executable | None = None) -> T:
        """Run *operation* in a short transaction and commit it. What it raises, or the commit, rolls it back.

        :param bounded: a statement that bounds waits for locks, said first
        """
        first = [statement for statement in (self._can.begin_writing, bounded) if statement is not None]
        self._opening.ensure(self)
        return self._connected(
            lambda connection: _transact(connection, self._part, [*self._ended(connection), *first], operation)
        )

    def _ended(self, connection: Connection) -> list[Executable]:
        """End the transaction that a driver has begun by itself, with nothing in it and without the write lock."""
        ends = self._can.end_empty
        has_begun = ends is not None and getattr(connection.connection.driver_connection, "in_transaction", False)
        return [ends] if has_begun and ends is not None else []

    def read(self, operation: Callable[[Session], T]) -> T:
        """Run *operation*, which only reads: where one writer at a time is let in, it waits for none."""
        self._opening.ensure(self)
        return self._connected(lambda connection: _transact(connection, self._reading, [], operation))

    def isolation_level(self) -> str:
        """Give the isolation level of this engine's connections."""
        self._opening.ensure(self)
        return self._connected(lambda connection: connection.get_isolation_level())

    def listen(self, channel: str, hear: Callable[[str | None], None], is_stopped: Callable[[], bool]) -> bool:
        """Call *hear* with the payload of each notification (None: now listening), until *is_stopped* or an error.

        Gives False if the driver can't listen.
        """

        def listen(connection: Connection) -> bool:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            driver: Any = connection.connection.driver_connection
            if not callable(getattr(driver, "notifies", None)):  # psycopg 2 has a list of that name
                return False
            connection.execute(Listen(channel))
            hear(None)
            quiet = 0
            while not is_stopped():
                payloads = self._heard(connection, driver)
                quiet = 0 if payloads else quiet + 1
                for payload in payloads:
                    hear(payload)
                if quiet == QUIET_LOOKS:
                    connection.execute(Listen(channel))
                    quiet = 0
            return True

        self._opening.ensure(self)
        return self._connected(listen)

    def _heard(self, connection: Connection, driver: Any) -> list[str]:
        """Wait for a notification, at most `NOTE_SECONDS`, on psycopg's connection."""
        dialect: Any = self._engine.dialect
        try:
            return _notes(driver, is_async=dialect.is_async)
        except dialect.loaded_dbapi.Error as error:
            # Straight from the driver: SQLAlchemy has not seen that this connection is broken.
            connection.invalidate()
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if not self._engine.dialect.is_async:
                self._engine.dispose()
            elif self._loop is not None:
                _run(self._loop, as_async(self._engine).dispose())
                self._loop.close()
                self._loop = None

    def _connected(self, use: Callable[[Connection], T]) -> T:
        with self._lock:
            if not self._engine.dialect.is_async:
                with self._engine.connect() as connection:
                    return self._used(connection, use)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            return _run(self._loop, self._use_async(use))

    async def _use_async(self, use: Callable[[Connection], T]) -> T:
        async with as_async(self._engine).connect() as connection:
            return await connection.run_sync(self._used, use)

    def _used(self, connection: Connection, use: Callable[[Connection], T]) -> T:
        if self._isolation is not None and self._opening.is_done:
            # On the connection, since the engine's own option is set by an event that comes after ours.
            connection.execution_options(isolation_level=self._isolation)
        try:
            return use(connection)
        except DBAPIError as error:
            if error.orig is not None and is_read_only(error.orig):
                # A demoted server keeps its connections alive: only a new one finds the writable server.
                connection.invalidate()
            raise


def _transact(connection: Connection, part: str, first: list[Executable], operation: Callable[[Session], T]) -> T:
    with connection.begin():
        for statement in first:
            connection.execute(statement)
        with Session(bind=connection) as session:
            failpoints.watch(part, session, connection)
            done = operation(session)
        failpoints.reach(part, "before_commit", connection)
    failpoints.reach(part, "after_commit", connection)
    return done


def _initialize(connection: Connection) -> None:
    # SQLAlchemy does it once, at the first connection of the app's pool or of a clone of it. The app may be just there.
    if not hasattr(connection.dialect, "default_isolation_level"):
        connection.dialect.initialize(connection)


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run *work* on *loop*: in another thread if a loop of the app's runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return loop.run_until_complete(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(loop.run_until_complete, work).result()


def as_async(engine: Engine) -> AsyncEngine:
    """Wrap an engine whose driver is async."""
    from sqlalchemy.ext.asyncio import AsyncEngine

    return AsyncEngine(engine)


def _notes(driver: Any, *, is_async: bool) -> list[str]:
    if not is_async:
        return [note.payload for note in driver.notifies(timeout=NOTE_SECONDS, stop_after=1)]
    from sqlalchemy.util import await_only

    async def collect() -> list[str]:
        return [note.payload async for note in driver.notifies(timeout=NOTE_SECONDS, stop_after=1)]

    return await_only(collect())


def is_database_trouble(error: BaseException) -> bool:
    """Tell whether our own statement failed for the database's sake: then wait and try again."""
    # One that SQLAlchemy can't even write will never succeed.
    is_miswritten = isinstance(error, CompileError | ArgumentError)
    return not is_miswritten and (isinstance(error, SQLAlchemyError | OSError) or is_said_by_server(error))
