"""Engines for the tests that are of one database."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.engines import build_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine


@pytest.fixture
def engine_of() -> Iterator[Callable[[str], Engine]]:
    """Give a function that builds an engine, disposed of after the test."""
    with ExitStack() as engines:

        def build(url: str) -> Engine:
            engine = build_engine(url)
            engines.callback(engine.dispose)
            return engine

        yield build


@pytest.fixture
def postgresql_engine(postgresql_url: str, engine_of: Callable[[str], Engine]) -> Engine:
    """Give an engine on an empty PostgreSQL database."""
    return engine_of(postgresql_url)


@pytest.fixture
def sqlite_engine(sqlite_url: str, engine_of: Callable[[str], Engine]) -> Engine:
    """Give an engine on an SQLite file."""
    return engine_of(sqlite_url)
