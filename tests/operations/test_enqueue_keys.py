from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, event, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs.errors import EnqueueConflict, InvalidOption
from sqla_jobs.operations.enqueue import CONFLICT_ROUNDS, enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.schema.trouble import is_outage
from sqla_jobs.status import JobStatus
from tests.operations.blocking import PATIENCE, until_blocked
from tests.operations.shop import Customer, Job, mail, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine


def keyed(session: Session, key: str, order_id: int = 1) -> Job:
    return enqueue(session, send.using(key=key), order_id=order_id)


def jobs_by_key(sessions: sessionmaker[Session]) -> dict[str | None, int]:
    with sessions() as session:
        rows = session.execute(select(Job.idempotency_key, Job.payload)).all()
    found = {row.idempotency_key: row.payload["order_id"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_second_enqueue_of_a_key_gives_the_first_job(session: Session) -> None:
    """In one session it is the same object, and it says so; the first answer is remembered by nobody."""
    first = keyed(session, "k", 1)
    was_duplicate = first.is_duplicate
    second = keyed(session, "k", 2)

    assert second is first
    assert (was_duplicate, second.is_duplicate) == (False, True)
    assert second.payload == {"order_id": 1}


def test_duplicate_of_another_session_has_all_its_values(sessions: sessionmaker[Session]) -> None:
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


@pytest.mark.parametrize("status", list(JobStatus))
def test_duplicate_changes_nothing_whatever_its_status(sessions: sessionmaker[Session], status: JobStatus) -> None:
    """The key is held while the row exists: a job that is done or dead is given, and stays as it is."""
    with sessions.begin() as session:
        job_id = keyed(session, "k").id
        session.execute(update(Job).values(status=status, attempts=3, queue="elsewhere"))

    with sessions.begin() as session:
        job = enqueue(session, mail.using(key="k", queue="bulk", max_attempts=9), to="ann")

        assert (job.id, job.is_duplicate, job.status) == (job_id, True, status)
    with sessions() as session:
        again = session.get_one(Job, job_id)
        assert (again.type, again.queue, again.attempts, again.max_attempts) == ("send", "elsewhere", 3, 5)


def test_key_is_free_again_when_its_row_is_deleted(session: Session) -> None:
    """Deleting (or archiving) the job frees its key."""
    first = keyed(session, "k").id
    session.commit()
    session.execute(delete(Job))
    session.commit()

    job = keyed(session, "k")

    assert job.id != first
    assert job.is_duplicate is False


def test_key_is_free_again_when_its_transaction_rolls_back(session: Session) -> None:
    """A key whose enqueue never happened is not taken."""
    with session.begin_nested() as savepoint:
        keyed(session, "k", 1)
        savepoint.rollback()

    job = keyed(session, "k", 2)

    assert (job.is_duplicate, job.payload) == (False, {"order_id": 2})


@pytest.mark.parametrize("autoflush", [True, False])
def test_duplicate_poisons_nothing(sessions: sessionmaker[Session], *, autoflush: bool) -> None:
    """Around a duplicate both app objects are stored, the session goes on, and what was loaded stays loaded."""
    with sessions.begin() as session:
        keyed(session, "k")
        session.add(Customer(name="early"))

    with sessions(autoflush=autoflush) as session:
        early = session.scalars(select(Customer)).one()
        session.add(Customer(name="before"))
        job = keyed(session, "k", 2)
        session.add(Customer(name="after"))
        is_loaded = "name" in vars(early)
        session.commit()

        assert job.is_duplicate
        assert is_loaded
        assert set(session.scalars(select(Customer.name))) == {"early", "before", "after"}


@pytest.mark.parametrize("autoflush", [True, False])
def test_constraint_of_the_apps_is_not_taken_for_a_duplicate(
    sessions: sessionmaker[Session], *, autoflush: bool
) -> None:
    """A pending object that breaks the app's own constraint raises the app's own error, with its own text."""
    with sessions.begin() as session:
        session.add(Customer(name="ann"))
        keyed(session, "k")

    with sessions(autoflush=autoflush) as session:
        session.add(Customer(name="ann"))
        with pytest.raises(IntegrityError, match="customer"):
            keyed(session, "k", 2)
            session.commit()


def test_keys_differ_by_every_letter(sessions: sessionmaker[Session]) -> None:
    """Case, spaces and forms of Unicode count: different keys are different jobs."""
    keys = ["Order-1", "order-1", "k", "k ", " k", "ä", "a\u0308", "ß", "ss", "1", "01", "%", "_", "\\", "'", '"', "\n"]

    with sessions.begin() as session:
        for number, key in enumerate(keys):
            assert keyed(session, key, number).is_duplicate is False

    assert jobs_by_key(sessions) == {key: number for number, key in enumerate(keys)}


@pytest.mark.parametrize("key", ["k" * 255, "😀" * 255, "ü" * 255], ids=["ascii", "4 bytes", "2 bytes"])
def test_key_of_the_greatest_length_is_stored_whole(sessions: sessionmaker[Session], key: str) -> None:
    """255 characters of any alphabet fit in the column and its index, and are never cut short."""
    with sessions.begin() as session:
        keyed(session, key)
        assert keyed(session, key).is_duplicate
        assert not keyed(session, key[:-1] + "x").is_duplicate

    assert set(jobs_by_key(sessions)) == {key, key[:-1] + "x"}


@pytest.mark.parametrize("key", ["", "k" * 256, "k" * 3000, "k" * 10_000, "😀" * 256, "a\x00b", "\ud800"], ids=ascii)
def test_key_that_no_database_stores_alike_is_a_value_error(key: str) -> None:
    """Empty, too long, or with what text columns refuse: told before any SQL, the same for every database."""
    with pytest.raises(ValueError, match="key") as caught:
        send.using(key=key)

    assert isinstance(caught.value, InvalidOption)


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    """Give a thread for the second of two transactions."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_second_transaction_waits_for_the_first_of_a_key(
    postgresql_engine: Engine,
    postgresql_sessions: sessionmaker[Session],
    other_thread: ThreadPoolExecutor,
    end: str,
) -> None:
    """While a key's transaction is open the next waits: then it gets that job, or stores its own: one in each case."""

    def second() -> tuple[int, bool]:
        with postgresql_sessions.begin() as session:
            job = keyed(session, "k", 2)
            return job.payload["order_id"], job.is_duplicate

    with postgresql_sessions() as session:
        keyed(session, "k", 1)
        answer = other_thread.submit(second)
        until_blocked(postgresql_engine, answer)
        getattr(session, end)()

    expected = (1, True) if end == "commit" else (2, False)
    assert answer.result(PATIENCE) == expected
    assert jobs_by_key(postgresql_sessions) == {"k": expected[0]}


def test_lock_timeout_on_a_taken_key_is_an_error(postgresql_sessions: sessionmaker[Session]) -> None:
    """A wait that is cut off is the database's error, never a false success."""
    with postgresql_sessions() as first, postgresql_sessions() as second:
        keyed(first, "k", 1)
        second.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(OperationalError, match="lock timeout"):
            keyed(second, "k", 2)
        second.rollback()
        first.commit()

    assert jobs_by_key(postgresql_sessions) == {"k": 1}


def test_keys_taken_crosswise_end_one_transaction(
    postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session], other_thread: ThreadPoolExecutor
) -> None:
    """Two transactions that take a, b and b, a can't both go on: one gets the database's deadlock error."""
    has_b, may_go_on = threading.Event(), threading.Event()

    def second() -> str:
        with postgresql_sessions() as session:
            keyed(session, "b", 2)
            has_b.set()
            assert may_go_on.wait(PATIENCE)
            return finish(session, "a", 2)

    def finish(session: Session, key: str, order_id: int) -> str:
        try:
            keyed(session, key, order_id)
            session.commit()
        except OperationalError as error:
            session.rollback()
            return getattr(error.orig, "sqlstate", "")
        return "committed"

    with postgresql_sessions() as session:
        keyed(session, "a", 1)
        answer = other_thread.submit(second)
        assert has_b.wait(PATIENCE)
        may_go_on.set()
        until_blocked(postgresql_engine, answer)
        ends = [finish(session, "b", 1), answer.result(PATIENCE)]

    assert sorted(ends) == ["40P01", "committed"]
    assert len(set(jobs_by_key(postgresql_sessions).values())) == 1


def wait_for_nobody(connection: Any, _: object) -> None:
    connection.execute("PRAGMA busy_timeout = 0")


def test_second_writer_of_a_key_fails_on_a_busy_file(
    sqlite_engine: Engine, sqlite_sessions: sessionmaker[Session]
) -> None:
    """On SQLite the second writer gets the database's own error when its patience ends, and then the first's job."""
    event.listen(sqlite_engine, "connect", wait_for_nobody)

    with sqlite_sessions() as first, sqlite_sessions() as second:
        keyed(first, "k", 1)
        with pytest.raises(OperationalError, match="locked") as caught:
            keyed(second, "k", 2)
        second.rollback()
        first.commit()

        assert is_outage(caught.value.orig)  # type: ignore[arg-type]  # it has one
        assert keyed(second, "k", 2).payload == {"order_id": 1}


def after_each_insert(session: Session, do: Callable[[], None]) -> None:
    """Call *do* whenever the session has said an INSERT that ignores taken keys."""

    def after(*args: Any) -> None:
        if "ON CONFLICT" in args[2]:
            do()

    event.listen(session.connection(), "after_cursor_execute", after)


def test_key_whose_job_vanishes_before_the_read_is_enqueued(postgresql_sessions: sessionmaker[Session]) -> None:
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
    assert jobs_by_key(postgresql_sessions) == {"k": 2}


@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_key_that_keeps_vanishing_ends_with_a_conflict(
    postgresql_sessions: sessionmaker[Session], *, many: bool
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
            if many:
                enqueue_many(session, [send.using(key="k").job(order_id=2)])
            else:
                keyed(session, "k", 2)

    assert caught.value.key == "k"
    assert len(rounds) == CONFLICT_ROUNDS


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_key_newer_than_the_snapshot_is_a_serialization_error(
    postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session], level: Any, *, many: bool
) -> None:
    """Under an old snapshot the job can't be seen: the database says so by an error that a retry mends. Never None."""
    with Session(postgresql_engine.execution_options(isolation_level=level)) as session:
        assert session.scalars(select(Job)).all() == []
        with postgresql_sessions.begin() as other:
            keyed(other, "k", 1)

        with pytest.raises(DBAPIError) as caught:
            if many:
                enqueue_many(session, [send.using(key="k").job(order_id=2)])
            else:
                keyed(session, "k", 2)
        session.rollback()

        assert getattr(caught.value.orig, "sqlstate", "") == "40001"
        assert keyed(session, "k", 2).payload == {"order_id": 1}
