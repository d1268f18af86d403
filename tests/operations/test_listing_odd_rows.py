from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from sqla_jobs.operations.listing import JobFilter, find_jobs, show_job
from tests.operations.operating import Scene, add, found, jobs
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


@pytest.mark.parametrize("app_engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize("own", ["not json", "{", "NaN", "[" * 100_000, ""])
def test_json_that_is_none_is_shown_as_none(scene: Scene, own: str) -> None:
    """On SQLite anybody may write any text: the rest of the row is shown."""
    job_id = scene.add("dead")
    scene.sql("UPDATE job SET payload = :own, errors = :own, result = :own, trace = :own", own=own)

    with scene.transaction() as session:
        shown = show_job(session, jobs, job_id)

    assert (shown.payload, shown.errors, shown.result, shown.trace) == (None, None, None, None)
    assert (shown.status, shown.error) == ("dead", "ValueError: broken")
    assert found(scene) == [job_id]


@pytest.mark.parametrize("app_engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("styles", [("ISO, MDY", "German"), ("SQL, DMY", "SQL, MDY")], ids=["german", "sql"])
def test_pages_are_the_same_in_every_session(scene: Scene, styles: tuple[str, str]) -> None:
    """Behind a pooler two pages may be of two sessions with other styles: no row is lost or given again."""
    with scene.transaction() as session:
        dead = [add(session, "dead", number * timedelta(days=1)) for number in range(1, 9)]

    ids: list[int] = []
    after: str | None = None
    for number in range(len(dead)):
        with scene.transaction() as session:
            zone = ("America/St_Johns", "Asia/Kolkata")[number % 2]
            session.execute(text(f"SET LOCAL DateStyle = '{styles[number % 2]}'"))
            session.execute(text(f"SET LOCAL TimeZone = '{zone}'"))
            page = find_jobs(session, jobs, JobFilter(status="dead"), limit=1, after=after)
            ids += [job.id for job in page.jobs]
            after = page.after

    assert ids == dead
