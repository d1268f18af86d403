"""The app that the tests of a worker run.

============  ==========================================================================================================
`app`         on an engine, once for PostgreSQL and once for SQLite
`pg_app`      on PostgreSQL
`async_app`   its worker has async sessions only, once per async driver
`ear`         hears what the library logs
`make_engine` a function that builds an engine, like `build_engine`, and disposes of it after the test
============  ==========================================================================================================
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sqla_jobs.runtime import warden
from tests.engines import build_async_engine, build_engine
from tests.runtime.app import LONG, App, Ear, sync_url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let claimed jobs wait for their slot: a busy machine takes seconds, and no test here is about giving back."""
    assert timedelta(seconds=1) == warden.LONGEST_LOCAL_WAIT
    monkeypatch.setattr(warden, "LONGEST_LOCAL_WAIT", LONG)


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    with ExitStack() as ends:

        def make(url: str, **options: Any) -> Engine:
            engine = build_engine(url, **options)
            ends.callback(engine.dispose)
            return engine

        yield make


@pytest.fixture
def app(engine: Engine) -> App:
    return App(engine).create()


@pytest.fixture
def pg_app(postgresql_url: str) -> Iterator[App]:
    engine = build_engine(postgresql_url)
    yield App(engine).create()
    engine.dispose()


@pytest.fixture
def async_app(async_url: str) -> Iterator[App]:
    engine = build_engine(sync_url_of(async_url))
    # The worker makes engines like it, and never connects with this one: there is nothing to dispose of.
    yield App(engine, async_engine=build_async_engine(async_url)).create()
    engine.dispose()


@pytest.fixture
def ear() -> Iterator[Ear]:
    logger, ear = logging.getLogger("sqla_jobs"), Ear()
    logger.addHandler(ear)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    yield ear
    logger.setLevel(level)
    logger.removeHandler(ear)
