"""Sessions on a database that has the tables of `tests.operations.shop`.

Those are made once for a run, and each test finds them empty: on PostgreSQL by TRUNCATE, on SQLite as a copy of a file.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session, sessionmaker

from tests.engines import build_engine, fresh_database
from tests.operations.shop import Base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine


@pytest.fixture(scope="session")
def shop_url(postgresql_server: str) -> Iterator[str]:
    """Give the URL of the PostgreSQL database that has the tables."""
    with fresh_database(postgresql_server) as url:
        engine = build_engine(url)
        Base.metadata.create_all(engine)
        engine.dispose()
        yield url


@pytest.fixture(scope="session")
def shop_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the SQLite file that has the tables, to be copied."""
    path = tmp_path_factory.mktemp("shop") / "shop.sqlite"
    engine = build_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return path


@pytest.fixture
def postgresql_engine(shop_url: str) -> Iterator[Engine]:
    """Give an engine on PostgreSQL with empty tables; nobody waits longer than ten seconds for a lock."""
    engine = build_engine(shop_url, connect_args={"options": "-c lock_timeout=10s"})
    with engine.begin() as connection:
        tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
        connection.exec_driver_sql(f"TRUNCATE {tables} RESTART IDENTITY")
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine(shop_file: Path, tmp_path: Path) -> Iterator[Engine]:
    """Give an engine on an SQLite file with empty tables."""
    engine = build_engine(f"sqlite:///{shutil.copy(shop_file, tmp_path)}")
    yield engine
    engine.dispose()


@pytest.fixture(params=["postgresql", "sqlite"])
def sessions(request: pytest.FixtureRequest) -> sessionmaker[Session]:
    """Give a session factory, on each kind of database in turn."""
    return sessionmaker(request.getfixturevalue(f"{request.param}_engine"))


@pytest.fixture
def session(sessions: sessionmaker[Session]) -> Iterator[Session]:
    """Give a session, on each kind of database in turn."""
    with sessions() as session:
        yield session


@pytest.fixture
def postgresql_sessions(postgresql_engine: Engine) -> sessionmaker[Session]:
    """Give a session factory on PostgreSQL alone, for what only row locks and isolation levels can show."""
    return sessionmaker(postgresql_engine)


@pytest.fixture
def sqlite_sessions(sqlite_engine: Engine) -> sessionmaker[Session]:
    """Give a session factory on SQLite alone, for what only a file of one writer and of no types can show."""
    return sessionmaker(sqlite_engine)
