"""What the tests of metrics ask for.

=============  =========================================================================================================
`shop`         an app whose figures are scraped, once on each database
`sqlite_shop`  the same on SQLite alone, for what asks no database, or any
`heard`        the lines that the module logs
=============  =========================================================================================================
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.engines import build_engine
from tests.prometheus.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture
def shop(engine: Engine) -> Shop:
    return Shop(engine)


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Iterator[Shop]:
    engine = build_engine(sqlite_url)
    yield Shop(engine)
    engine.dispose()


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Give the lines that the module logs, from INFO on."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("sqla_jobs.prometheus")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)
