"""What SQLite stores in a schedule's row though the column's type says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import Session

from sqla_jobs.operations.schedules import list_schedules
from sqla_jobs.operations.stats import stats
from tests.operations.scheduling import Scene, at, engine_of, jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(scope="module")
def sqlite_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on an SQLite file with the tables."""
    with engine_of(request, "sqlite") as engine:
        yield engine


@pytest.fixture
def scene(sqlite_engine: Engine) -> Scene:
    """Give the app's database, empty, at `START`."""
    return Scene(sqlite_engine)


def write(scene: Scene, column: str, value: Any) -> None:
    scene.sql(f"UPDATE schedule SET {column} = :value WHERE name = 'minutely'", value=value)


def fired(scene: Scene, moment: str) -> list[str]:
    return [each.name for each in scene.tick(moment=at(moment))]


def enabled(scene: Scene) -> dict[str, bool]:
    with Session(scene.engine) as session:
        return {found.name: found.enabled for found in list_schedules(session, jobs)}


@pytest.mark.parametrize(
    ("text", "fires"), [("true", True), ("t", True), ("TRUE", True), ("false", False), ("f", False), ("False", False)]
)
def test_enabled_when_it_is_written_as_text(scene: Scene, text: str, *, fires: bool) -> None:
    """A schedule that somebody switches in a console, in the words of other databases, does what they say."""
    scene.planned()
    write(scene, "enabled", text)

    assert fired(scene, "12:02:05") == []  # an edit: it counts from now on
    assert fired(scene, "12:03:05") == (["minutely"] if fires else [])
    assert enabled(scene) == {"minutely": fires}


@pytest.mark.parametrize("value", ["", "yes", 2, 0.5])
def test_enabled_when_it_is_neither_true_nor_false(scene: Scene, value: Any) -> None:
    """What can't be told is told in the row; the others fire, and so does this one once it is mended."""
    schedule_id = scene.planned()
    scene.planned("other")
    write(scene, "enabled", value)

    assert fired(scene, "12:02:05") == ["other"]
    assert "neither true nor false: write the one or the other" in str(scene.error(schedule_id))
    assert enabled(scene) == {"minutely": True, "other": True}

    write(scene, "enabled", 1)
    assert fired(scene, "12:04:05") == ["other"]
    assert fired(scene, "12:05:05") == ["minutely", "other"]
    assert scene.error(schedule_id) is None


@pytest.mark.parametrize(
    ("column", "right", "wrong"), [("cron", b"* * * * *", b"never"), ("timezone", b"UTC", b"Nowhere/At_All")]
)
def test_text_when_it_is_stored_as_bytes(scene: Scene, column: str, right: bytes, wrong: bytes) -> None:
    """Bytes are taken for the text that they are: a schedule fires by it, or its row says what is wrong."""
    schedule_id = scene.planned()
    write(scene, column, right)
    assert fired(scene, "12:02:05") == []
    assert fired(scene, "12:03:05") == ["minutely"]

    write(scene, column, wrong)
    assert fired(scene, "12:05:05") == []
    assert wrong.decode() in str(scene.error(schedule_id))


@pytest.mark.parametrize(("value", "is_on"), [("true", True), ("F", False), (2, True), (0, False), (1, True)])
def test_figures_count_as_the_scheduler_reads(scene: Scene, value: Any, *, is_on: bool) -> None:
    """What is neither true nor false is no pause: the schedule is in error."""
    scene.planned()
    write(scene, "enabled", value)

    with Session(scene.engine) as session:
        found = stats(session, jobs).schedules

    assert found is not None
    assert (found.enabled, found.paused) == (int(is_on), int(not is_on))
