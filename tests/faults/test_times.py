"""Times that are given: in any zone, without one, and out of any range."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session

from sqla_jobs import InvalidOption, Jobs, enqueue
from sqla_jobs.operations.archive import archive_batch
from sqla_jobs.testing import drain
from tests.operations.leasing import HOUR, MINUTE, add, take
from tests.operations.operating import ArchivedJob, Job, Scene, clock
from tests.operations.scheduling import engine_of
from tests.operations.shop import clock as shop_clock
from tests.operations.shop import send, timed_send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

TOKYO = ZoneInfo("Asia/Tokyo")
NEW_YORK = ZoneInfo("America/New_York")

GIVEN = [
    datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK),
    datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
    datetime(2027, 3, 14, 2, 30, tzinfo=NEW_YORK),
    datetime(2027, 5, 1, 12, 0, 0, 5, tzinfo=UTC),
    datetime(2027, 5, 1, 12, tzinfo=timezone(timedelta(hours=-8))),
    datetime(2027, 5, 2, 12, tzinfo=ZoneInfo("Asia/Kathmandu")),
]
"""A time that comes twice, both; one that there is not; and others, by when they are: all past on the scene's clock."""


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


def test_f57_run_at_of_any_zone_is_its_instant_through_the_life_of_a_job(scene: Scene) -> None:
    """It reads back aware, in UTC and the same, archived too; jobs run in its order, and filters compare it."""
    instants = [run_at.astimezone(UTC) for run_at in GIVEN]
    registry, ran = Jobs(Job, archive=ArchivedJob, now=clock.now), list[int]()

    @registry.handler
    def note(number: int) -> None:
        ran.append(number)

    with scene.transaction() as session:
        if scene.is_postgresql:
            session.execute(text("SET TIME ZONE 'Asia/Tokyo'"))
        for number, run_at in reversed([*enumerate(GIVEN)]):
            enqueue(session, note.using(run_at=run_at), number)

        session.expire_all()
        stored = session.scalars(select(Job.run_at).order_by(Job.run_at)).all()
        low, high = instants[1].astimezone(TOKYO), instants[4].astimezone(NEW_YORK)
        between = session.scalars(select(Job.run_at).where(Job.run_at.between(low, high)).order_by(Job.run_at)).all()
        drain(session, registry)
        archive_batch(session, registry, "done", timedelta(0))
        archived = session.scalars(select(ArchivedJob.run_at).order_by(ArchivedJob.run_at)).all()

    assert stored == archived == instants
    assert {time.tzinfo for time in (*stored, *archived)} == {UTC}
    assert between == instants[1:5]
    assert ran == [*range(len(GIVEN))]


@pytest.mark.parametrize(
    "value", [datetime(2024, 1, 1), date(2024, 1, 1), "2024-01-01 00:00:00+00:00", 1_700_000_000], ids=str
)
def test_f57_time_without_a_zone_is_refused_wherever_it_is_given(scene: Scene, value: Any) -> None:
    """No driver guesses what a naive time, a date, a text or a number means, in an option, a row or a filter."""
    with pytest.raises(ValueError, match="run_at is (naive|an aware datetime)") as caught:
        send.using(run_at=value)
    assert isinstance(caught.value, InvalidOption)

    with Session(scene.engine) as session:
        session.add(Job(type="send", run_at=value))
        with pytest.raises(StatementError, match="aware datetime|naive datetime"):
            session.flush()
        session.rollback()
        with pytest.raises(StatementError, match="aware datetime|naive datetime"):
            session.scalars(select(Job).where(Job.run_at <= value))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": timedelta(seconds=-5)}, "delay is from 0"),
        ({"delay": timedelta(seconds=10**12)}, "delay is from 0"),
        ({"delay": timedelta.max}, "delay is from 0"),
        ({"delay": 5}, "timedelta"),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "from 1970 to 9998"),
        ({"run_at": datetime.min.replace(tzinfo=UTC)}, "from 1970 to 9998"),
        ({"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=9)))}, "from 1970 to 9998"),
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=9)))}, "from 1970 to 9998"),
        ({"run_at": datetime(1969, 12, 31, 23, 59, tzinfo=UTC)}, "from 1970 to 9998"),
        ({"run_at": datetime(2024, 1, 1, tzinfo=UTC), "delay": MINUTE}, "not both"),
    ],
    ids=str,
)
def test_f59_time_out_of_range_is_a_value_error_before_any_sql(options: dict[str, Any], says: str) -> None:
    """Negative, infinite and contradictory times fail in `using`, with the remedy."""
    with pytest.raises(ValueError, match=says) as caught:
        send.using(**options)

    assert isinstance(caught.value, InvalidOption)


def test_f59_past_jobs_go_before_jobs_that_became_due_later(session: Session) -> None:
    """A `run_at` in the past is due now, in the order of what it says, as far back as one can say."""
    due = add(session, ago=MINUTE)
    past = enqueue(session, timed_send.using(run_at=shop_clock.read(session) - HOUR), order_id=1).id
    first = enqueue(session, timed_send.using(run_at=datetime(1970, 1, 1, tzinfo=UTC)), order_id=1).id

    assert [lease.id for lease in take(session)] == [first, past, due]
