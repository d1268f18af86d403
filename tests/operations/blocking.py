"""Two transactions of which one waits for the other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import text

if TYPE_CHECKING:
    from concurrent.futures import Future

    from sqlalchemy import Engine

PATIENCE: Final = 60
"""Seconds until a test that waits for another thread fails."""

_BLOCKED = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")


def until_blocked(engine: Engine, answer: Future[Any]) -> None:
    """Return once a session of the database waits for a lock: PostgreSQL tells it to who asks, and to nobody else.

    Fails if *answer* comes without a wait, or if there is none for `PATIENCE`.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if connection.execute(_BLOCKED).scalar_one():
                return
            assert not answer.done(), "it did not wait for the other transaction"
    pytest.fail("nobody waited for a lock")
