"""Scenes: the app under test on a database, with processes that a test starts, freezes and kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crash.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def scene(postgresql_url: str) -> Iterator[Scene]:
    """Give the app on an empty PostgreSQL database."""
    with Scene(postgresql_url) as scene:
        yield scene


@pytest.fixture
def any_scene(database_url: str) -> Iterator[Scene]:
    """Give the app on an empty database, of each kind in turn."""
    with Scene(database_url) as scene:
        yield scene
