from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.calls import Calls
from tests.engines import build_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(autouse=True)
def no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the machine that runs the tests may have set, and what a call adds to the path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("SQLA_JOBS_APP", "SQLA_JOBS_TRACEBACK", "FORCE_COLOR", "NO_COLOR", "COLUMNS", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Give what calls `sqla-jobs` with the office's app; the test's database is that of `engine` or a `…_office`."""
    monkeypatch.setenv("SQLA_JOBS_APP", "tests.cli.office:make_worker")
    return Calls(monkeypatch)


@pytest.fixture
def office_engine(engine: Engine, calls: Calls) -> Engine:
    """Give an engine on the office's tables, of each kind of database in turn."""
    return calls.opened(engine)


@pytest.fixture
def sqlite_office(sqlite_url: str, calls: Calls) -> Iterator[Engine]:
    """Give the same on SQLite alone."""
    engine = calls.opened(build_engine(sqlite_url))
    yield engine
    engine.dispose()


@pytest.fixture
def postgresql_office(postgresql_url: str, calls: Calls) -> Iterator[Engine]:
    """Give the same on PostgreSQL alone."""
    engine = calls.opened(build_engine(postgresql_url))
    yield engine
    engine.dispose()
