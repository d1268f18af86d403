from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.races.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def scene(postgresql_url: str) -> Iterator[Scene]:
    """Give a job table where rows are locked."""
    scene = Scene(postgresql_url)
    yield scene
    scene.engine.dispose()


@pytest.fixture
def any_scene(database_url: str) -> Iterator[Scene]:
    """Give a job table on each kind of database in turn."""
    scene = Scene(database_url)
    yield scene
    scene.engine.dispose()
