"""Many rows at once: the order of their tables, and engines that were told not to insert so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, func, select
from sqlalchemy.orm import Session

from sqla_jobs.errors import ConfigurationError
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from tests.operations import scheduling, shop
from tests.operations.scheduling import HOUR, Scene, at
from tests.operations.shop import OtherJob, mail, send, tidy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from sqla_jobs.operations.registry import NewJob

REMEDY = r"take use_insertmanyvalues=False off create_engine\(…\)"


@pytest.fixture
def one_by_one(database_url: str) -> Iterator[Engine]:
    """Give an engine that inserts row by row, on a database of each kind in turn."""
    engine = create_engine(database_url, use_insertmanyvalues=False)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("has_keys", [True, False], ids=["keyed", "mixed"])
def test_tables_are_written_in_one_order_whatever_the_input_is(session: Session, *, has_keys: bool) -> None:
    """Two that enqueue the same jobs of two tables, the one backwards, wait for each other in one direction."""
    orders: list[list[str]] = []
    for turn in range(2):
        keys = [f"{turn}:{number}" if has_keys else None for number in range(3)]
        given: list[NewJob[Any]] = [
            send.using(key=keys[0]).job(1),
            mail.using(key=keys[1]).job("a"),
            tidy.using(key=keys[2]).job(1),
        ]
        said: list[str] = []

        def note(_c: object, _cursor: object, statement: str, *_: object, said: list[str] = said) -> None:
            if statement.startswith("INSERT INTO"):
                said.append(statement.split()[2])

        event.listen(session.connection(), "before_cursor_execute", note)
        enqueued = enqueue_many(session, given[:: -1 if turn else 1])
        assert len(enqueued) == 3
        event.remove(session.connection(), "before_cursor_execute", note)
        orders.append(list(dict.fromkeys(said)))

    assert orders == [["job", "other_job"]] * 2


def test_enqueue_many_when_the_engine_inserts_row_by_row(one_by_one: Engine) -> None:
    """Keys need the ids of the rows that were stored: where those can't come back, the error says what to change."""
    shop.Base.metadata.create_all(one_by_one)
    with Session(one_by_one) as session:
        for given in ([tidy.using(key=key).job(1) for key in "ab"], [tidy.job(1), tidy.using(delay=HOUR).job(1)]):
            with pytest.raises(ConfigurationError, match=REMEDY):
                enqueue_many(session, given)

        assert not enqueue(session, tidy.using(key="a"), 1).is_duplicate
        assert enqueue(session, tidy.using(key="a"), 1).is_duplicate
        alike = enqueue_many(session, [tidy.job(number) for number in range(3)])
        assert len({each.id for each in alike}) == 3
        assert session.scalars(select(func.count()).select_from(OtherJob)).one() == 4


def test_schedule_when_the_engine_inserts_row_by_row(one_by_one: Engine) -> None:
    """A schedule that can't fire for it says so in its row, too."""
    scheduling.Base.metadata.create_all(one_by_one)
    scene = Scene(one_by_one)
    schedule_id = scene.planned()

    assert scene.tick(moment=at("12:01:05")) == []

    assert "take use_insertmanyvalues=False off create_engine(…)" in str(scene.error(schedule_id))
