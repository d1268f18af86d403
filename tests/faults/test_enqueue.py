"""Keys, and what is in the caller's session and transaction beside a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, event, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import EnqueueConflict, Jobs, enqueue, enqueue_many
from sqla_jobs.operations.enqueue import CONFLICT_ROUNDS
from tests.operations.models import single_table_child
from tests.operations.shop import Customer, Job, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    Put = Callable[[Session, str, int], bool]


def keyed(session: Session, key: str, order_id: int) -> Job:
    return enqueue(session, send.using(key=key), order_id=order_id)


def put(session: Session, key: str, order_id: int) -> bool:
    """Enqueue, and tell whether the key was taken."""
    return keyed(session, key, order_id).is_duplicate


def put_many(session: Session, key: str, order_id: int) -> bool:
    """The same by the other door."""
    return enqueue_many(session, [send.using(key=key).job(order_id=order_id)])[0].is_duplicate


both_doors = pytest.mark.parametrize("put", [put, put_many])


def stored(sessions: sessionmaker[Session]) -> dict[str | None, int]:
    """Give the order of each job by its key."""
    with sessions() as session:
        rows = session.execute(select(Job.idempotency_key, Job.payload)).all()
    found = {row.idempotency_key: row.payload["order_id"] for row in rows}
    assert len(found) == len(rows)
    return found


@both_doors
@pytest.mark.parametrize("autoflush", [True, False])
def test_f24_duplicate_poisons_nothing(sessions: sessionmaker[Session], put: Put, *, autoflush: bool) -> None:
    """Around a duplicate both app objects are stored, the session goes on, and what was loaded stays loaded."""
    with sessions.begin() as session:
        put(session, "k", 1)
        session.add(Customer(name="early"))

    with sessions(autoflush=autoflush) as session:
        early = session.scalars(select(Customer)).one()
        session.add(Customer(name="before"))
        is_duplicate = put(session, "k", 2)
        session.add(Customer(name="after"))
        is_loaded = "name" in vars(early)
        session.commit()

        assert is_duplicate
        assert is_loaded
        assert set(session.scalars(select(Customer.name))) == {"early", "before", "after"}
    assert stored(sessions) == {"k": 1}


@both_doors
@pytest.mark.parametrize("autoflush", [True, False])
def test_f24_constraint_of_the_apps_is_not_taken_for_a_duplicate(
    sessions: sessionmaker[Session], put: Put, *, autoflush: bool
) -> None:
    """A pending object that breaks the app's own constraint raises the app's own error, and a rollback mends all."""
    with sessions.begin() as session:
        session.add(Customer(name="ann"))
        put(session, "k", 1)

    with sessions(autoflush=autoflush) as session:
        session.add(Customer(name="ann"))
        with pytest.raises(IntegrityError, match="customer"):
            put(session, "k", 2)
            session.commit()
        session.rollback()
        assert not put(session, "l", 3)
        session.commit()

    assert stored(sessions) == {"k": 1, "l": 3}


def test_f26_second_enqueue_of_a_key_gives_the_first_job(session: Session) -> None:
    """In one session it is the same object, and it says so; the first answer is remembered by nobody."""
    first = keyed(session, "k", 1)
    was_duplicate = first.is_duplicate
    second = keyed(session, "k", 2)

    assert second is first
    assert (was_duplicate, second.is_duplicate) == (False, True)
    assert (second.id, second.status, second.payload) == (first.id, "ready", {"order_id": 1})


def test_f26_duplicate_of_another_session_has_all_its_values(sessions: sessionmaker[Session]) -> None:
    """The existing job is loaded whole: id, status and payload can be used, relationships too."""
    with sessions.begin() as session:
        session.add(Customer(id=3, name="ann"))
        session.flush()
        job_id = enqueue(session, send.using(key="k", columns={"customer_id": 3}), order_id=1).id

    with sessions() as session:
        job = keyed(session, "k", 2)

        assert (job.id, job.status, job.payload, job.is_duplicate) == (job_id, "ready", {"order_id": 1}, True)
        assert job.customer is not None
        assert job.customer.name == "ann"
        assert job.notes == []


def work(order_id: int) -> None: ...


def test_f26_key_of_another_kind_of_job_is_found(engine: Engine) -> None:
    """A key is taken in the whole table: a job of another class in it is given as the duplicate that it is."""
    child = single_table_child()
    parent = child.__mro__[1]
    child.metadata.create_all(engine)
    registries: list[Jobs[Any]] = [Jobs(parent), Jobs(child)]
    of_parent, of_child = (registry.handler(work) for registry in registries)

    with Session(engine) as session:
        first = enqueue(session, of_parent.using(key="k"), order_id=1)

        again = enqueue(session, of_child.using(key="k"), order_id=2)

        assert again is first
        assert again.is_duplicate


def after_each_insert(session: Session, do: Callable[[], None]) -> None:
    """Call *do* whenever the session has said an INSERT that ignores taken keys."""

    def after(*args: Any) -> None:
        if "ON CONFLICT" in args[2]:
            do()

    event.listen(session.connection(), "after_cursor_execute", after)


def test_f26_key_whose_job_vanishes_before_the_read_is_enqueued(postgresql_sessions: sessionmaker[Session]) -> None:
    """A job deleted between the conflict and the read doesn't leave the caller with nothing: it is tried again."""
    with postgresql_sessions.begin() as session:
        keyed(session, "k", 1)

    def vanish() -> None:
        with postgresql_sessions.begin() as other:
            other.execute(delete(Job).where(Job.payload["order_id"].as_integer() == 1))

    with postgresql_sessions.begin() as session:
        after_each_insert(session, vanish)
        job = keyed(session, "k", 2)

        assert (job.is_duplicate, job.payload) == (False, {"order_id": 2})
    assert stored(postgresql_sessions) == {"k": 2}


@both_doors
def test_f26_key_that_keeps_vanishing_ends_with_a_conflict(
    postgresql_sessions: sessionmaker[Session], put: Put
) -> None:
    """After five rounds the caller is told, with the key, instead of going round for ever."""
    rounds: list[int] = []

    def appear_and_vanish() -> None:
        rounds.append(1)
        with postgresql_sessions.begin() as other:
            other.execute(delete(Job))

    def appear(*args: Any) -> None:
        if "ON CONFLICT" in args[2]:
            with postgresql_sessions.begin() as other:
                other.add(Job(type="send", idempotency_key="k"))

    with postgresql_sessions() as session:
        event.listen(session.connection(), "before_cursor_execute", appear)
        after_each_insert(session, appear_and_vanish)
        with pytest.raises(EnqueueConflict) as caught:
            put(session, "k", 2)

    assert caught.value.key == "k"
    assert len(rounds) == CONFLICT_ROUNDS


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@both_doors
def test_f26_key_newer_than_the_snapshot_is_a_serialization_error(
    postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session], put: Put, level: Any
) -> None:
    """Under an old snapshot the job can't be seen: the database says so by an error that a retry mends. Never None."""
    with Session(postgresql_engine.execution_options(isolation_level=level)) as session:
        assert session.scalars(select(Job)).all() == []
        with postgresql_sessions.begin() as other:
            keyed(other, "k", 1)

        with pytest.raises(DBAPIError) as caught:
            put(session, "k", 2)
        session.rollback()

        assert getattr(caught.value.orig, "sqlstate", "") == "40001"
        assert keyed(session, "k", 2).payload == {"order_id": 1}
