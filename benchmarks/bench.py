"""What a benchmark is given: a durable PostgreSQL, empty tables, and how much to do."""

from __future__ import annotations

import platform
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import Engine, create_engine, text

from benchmarks.tables import Base
from tests.servers import PostgresServer

DURABLE: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",  # no checkpoint within a round
    "checkpoint_timeout": "30min",
    "max_prepared_transactions": "0",
    "timezone": "UTC",
}
"""Stock where nothing is said, but for `max_connections`, of which the test servers have more."""

TOLD: Final = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "server_version")


@dataclass(frozen=True)
class Bench:
    """
    :ivar url: of the database, for SQLAlchemy with psycopg
    :ivar scale: how much of the full work to do, for trials
    :ivar repeat: rounds
    :ivar peers: other libraries by name, each with the Python of an environment that has it
    """

    url: str
    scale: float = 1.0
    repeat: int = 3
    peers: dict[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def engine(self) -> Engine:
        """An app's, with SQLAlchemy's defaults."""
        return create_engine(self.url)

    @property
    def dsn(self) -> str:
        """The same database for psycopg alone."""
        return dsn_of(self.url)

    def rows(self, full: int) -> int:
        """Give the scaled number, at least 10."""
        return max(10, round(full * self.scale))

    def fresh(self) -> None:
        """Drop all tables and make them anew."""
        Base.metadata.drop_all(self.engine)
        Base.metadata.create_all(self.engine)

    def tidy(self) -> None:
        """Do what autovacuum and the checkpointer would have done by now, so that they don't do it within a round."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
            connection.execute(text("CHECKPOINT"))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What all figures of this run have in common."""
        with self.engine.connect() as connection:
            server = {name: connection.scalar(text("SELECT current_setting(:name)"), {"name": name}) for name in TOLD}
        libraries = {name: version(name) for name in ("sqlalchemy", "psycopg")}
        return {"scale": self.scale, "repeat": self.repeat, "python": platform.python_version()} | libraries | server


def dsn_of(url: str) -> str:
    """Give SQLAlchemy's URL as psycopg wants it."""
    return url.replace("+psycopg", "", 1)


@contextmanager
def durable_server() -> Generator[str]:
    """Run a PostgreSQL that loses nothing when the machine dies, and give its URL."""
    with PostgresServer() as server:
        with psycopg.connect(dsn_of(server.url), autocommit=True) as connection:
            for name, value in DURABLE.items():
                connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
        server.stop()
        server.start()
        yield server.url
