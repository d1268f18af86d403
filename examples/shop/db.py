"""The shop's database: that of DATABASE_URL, or the file shop.sqlite.

python -m examples.shop.db     creates the tables
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event

from examples.shop.models import Base


def make_engine() -> Engine:
    """Create the engine of this process."""
    engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.sqlite"))
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: savepoints need that
    connection.execute("PRAGMA busy_timeout = 10000")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    # IMMEDIATE waits for other writers at the start; a transaction that reads first and then writes could only fail.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


if __name__ == "__main__":
    Base.metadata.create_all(make_engine())
