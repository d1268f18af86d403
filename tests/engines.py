"""Engines as an app builds them, and databases to build them on.

For SQLite with the settings that SQLAlchemy documents for savepoints, and that `Worker` asks for: the driver leaves
transactions alone, and each begins with `BEGIN IMMEDIATE`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

if TYPE_CHECKING:
    from collections.abc import Generator

ASYNC_DRIVERS: Final = {
    "psycopg": "postgresql+psycopg",
    "asyncpg": "postgresql+asyncpg",
    "aiosqlite": "sqlite+aiosqlite",
}


def build_engine(url: str, **options: Any) -> Engine:
    """Create the engine that an app would create for *url*; *options* are those of `create_engine`."""
    engine = create_engine(url, **options)
    prepare_sqlite(engine)
    return engine


def build_async_engine(url: str, **options: Any) -> AsyncEngine:
    """Create the async engine for *url*, a sync or an async one; dispose of it in the loop that used it."""
    engine = create_async_engine(async_url_of(url), **options)
    prepare_sqlite(engine.sync_engine)
    return engine


def async_url_of(url: str, driver: str | None = None) -> str:
    """Return the URL of the same database for an async driver: *driver*, or psycopg and aiosqlite."""
    parsed = make_url(url)
    if driver is None and parsed.drivername in ASYNC_DRIVERS.values():
        return url
    driver = driver or ("aiosqlite" if parsed.get_backend_name() == "sqlite" else "psycopg")
    return parsed.set(drivername=ASYNC_DRIVERS[driver]).render_as_string(hide_password=False)


def prepare_sqlite(engine: Engine) -> None:
    """Set up an engine for SQLite as the docs say; leave any other as it is."""
    if engine.dialect.name != "sqlite":
        return

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("busy_timeout = 30000", "journal_mode = WAL", "foreign_keys = ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def fresh_database(server_url: str) -> Generator[str]:
    """Create an empty database on a PostgreSQL server, give its URL, and drop it with whatever is still connected."""
    server = make_url(server_url).set(drivername="postgresql+psycopg")
    name = f"sqla_jobs_{uuid4().hex}"
    engine = create_engine(server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        # Four times as fast, where there is no fsync; the servers before 15 know no other way.
        version = connection.dialect.server_version_info or ()
        strategy = "STRATEGY file_copy" if version >= (15,) else ""
        connection.exec_driver_sql(f"CREATE DATABASE {name} {strategy}")
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
