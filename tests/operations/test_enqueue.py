from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs.errors import InvalidOption, PayloadError
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.schema.constructs import db_now
from tests.operations.shop import Customer, Job, OtherJob, clock, mail, send, tidy, timed_send

MINUTE = timedelta(minutes=1)
NEW_YORK = ZoneInfo("America/New_York")


def stored(sessions: sessionmaker[Session]) -> list[Job]:
    """Read all jobs in a session of their own."""
    with sessions() as session:
        return [*session.scalars(select(Job).order_by(Job.id)).unique()]


def now(session: Session) -> datetime:
    time: datetime = session.execute(select(db_now())).scalar_one()
    return time


def test_enqueue_gives_the_job_as_an_object_of_the_session(session: Session) -> None:
    """The job is a persistent object with all its values, before any commit."""
    before = now(session)

    job = enqueue(session, send, order_id=5)

    assert job in session
    assert not session.dirty
    assert session.get(Job, job.id) is job
    assert (job.type, job.payload, job.queue, job.max_attempts) == ("send", {"order_id": 5}, "default", 5)
    assert (job.status, job.attempts, job.claims, job.idempotency_key) == ("ready", 0, 0, None)
    assert job.is_duplicate is False
    assert before <= job.run_at == job.created_at <= now(session)


def test_enqueue_takes_the_options_of_the_handler(session: Session) -> None:
    """What the decorator said is the default of each job; arguments by place and by name are stored by name."""
    job = enqueue(session, mail, "ann", urgent=True)

    assert (job.queue, job.max_attempts, job.payload) == ("mail", 3, {"to": "ann", "urgent": True})


def test_using_overrides_the_handler_for_one_job(session: Session) -> None:
    """`using` changes what it names, keeps the rest, adds up, and leaves the handler as it was."""
    bulk = mail.using(queue="bulk")
    job = enqueue(session, bulk.using(max_attempts=9, key="k"), to="ann")

    assert (job.queue, job.max_attempts, job.idempotency_key) == ("bulk", 9, "k")
    assert (enqueue(session, mail, to="ann").queue, enqueue(session, bulk, to="ann").max_attempts) == ("mail", 3)


def test_job_exists_exactly_when_the_transaction_commits(sessions: sessionmaker[Session]) -> None:
    """Of two transactions, the committed one's job and rows are there, and nothing of the other's."""
    with sessions() as session:
        session.add(Customer(name="ann"))
        enqueue(session, send, order_id=1)
        session.commit()
        session.add(Customer(name="bob"))
        enqueue(session, send, order_id=2)
        session.rollback()

    assert [job.payload for job in stored(sessions)] == [{"order_id": 1}]
    with sessions() as session:
        assert session.scalars(select(Customer.name)).all() == ["ann"]


def test_job_follows_savepoints(sessions: sessionmaker[Session]) -> None:
    """A job enqueued in a savepoint goes with it, and those around it stay."""
    with sessions.begin() as session:
        enqueue(session, send, order_id=1)
        with session.begin_nested():
            enqueue(session, send, order_id=2)
        with session.begin_nested() as savepoint:
            enqueue(session, send, order_id=3)
            savepoint.rollback()
        enqueue(session, send, order_id=4)

    assert [job.payload["order_id"] for job in stored(sessions)] == [1, 2, 4]


def test_job_after_a_rolled_back_savepoint_is_the_one_that_was_enqueued(session: Session) -> None:
    """The object of a job that was rolled back, still in the caller's hands, is not taken for the next one."""
    with session.begin_nested() as savepoint:
        gone = enqueue(session, send, order_id=1)
        savepoint.rollback()

    job = enqueue(session, send, order_id=2)

    assert job.payload == {"order_id": 2}
    assert gone is not job or gone.payload == {"order_id": 2}


def test_job_after_a_rollback_is_the_one_that_was_enqueued(session: Session) -> None:
    """The same over a whole transaction."""
    gone = enqueue(session, send, order_id=1)
    session.rollback()

    job = enqueue(session, mail, to="ann")

    assert (job.type, job.payload) == ("mail", {"to": "ann"})
    assert gone is not job or gone.type == "mail"


@pytest.mark.parametrize("autoflush", [True, False])
def test_pending_objects_keep_their_ways(sessions: sessionmaker[Session], *, autoflush: bool) -> None:
    """Objects that wait for their flush are flushed as by any statement, or wait on where autoflush is off."""
    with sessions(autoflush=autoflush) as session:
        customer = Customer(name="ann")
        session.add(customer)

        enqueue(session, send, order_id=1)
        is_pending = customer in session.new
        session.commit()

        assert is_pending is not autoflush
        assert session.scalars(select(Customer.name)).all() == ["ann"]
    assert len(stored(sessions)) == 1


@pytest.mark.parametrize("expire_on_commit", [True, False])
def test_job_can_be_read_after_the_commit(sessions: sessionmaker[Session], *, expire_on_commit: bool) -> None:
    """After the commit the object is as any other of the session's: expired and read again, or kept."""
    statements: list[str] = []
    with sessions(expire_on_commit=expire_on_commit) as session:
        job = enqueue(session, send, order_id=5)
        session.commit()
        event.listen(session.get_bind(), "before_cursor_execute", lambda *args: statements.append(args[2]))

        assert (job.payload, job.is_duplicate) == ({"order_id": 5}, False)
        assert bool(statements) is expire_on_commit


def test_enqueue_loads_nothing_of_the_objects_at_hand(session: Session) -> None:
    """An object with changes keeps them, and one that was loaded stays loaded."""
    session.add(Customer(name="ann"))
    session.commit()
    customer = session.scalars(select(Customer)).one()
    with session.no_autoflush:
        customer.name = "anne"

        enqueue(session, send, order_id=1)

        assert customer.name == "anne"
        assert customer in session.dirty or session.autoflush
    session.commit()
    assert session.scalars(select(Customer.name)).one() == "anne"


def test_own_columns_are_set_by_using(session: Session) -> None:
    """Values for the app's columns are given by attribute, whatever the column is called; others get their defaults."""
    customer = Customer(name="ann")
    session.add(customer)
    session.flush()

    job = enqueue(session, send.using(columns={"tenant": "north", "customer_id": customer.id, "level": 7}), order_id=1)
    session.commit()

    assert (job.tenant, job.level, job.customer, job.reference) == ("north", 7, customer, None)


def test_own_columns_get_their_defaults(session: Session) -> None:
    """Defaults of Python's, called for each row, and of the server's."""
    first, second = enqueue(session, send, order_id=1), enqueue(session, send, order_id=2)

    assert (first.tenant, first.level) == ("house", 1)
    assert len({first.token, second.token}) == 2


def test_own_column_that_does_not_exist_is_refused_where_it_is_named() -> None:
    """A wrong column fails in `using`, with those that there are, and before any session is asked."""
    with pytest.raises(InvalidOption, match="no column 'tennant'; its own columns: .*tenant"):
        send.using(columns={"tennant": "north"})


def test_unique_column_of_the_apps_still_raises(session: Session) -> None:
    """A key ignores a taken key, and nothing else: the app's own IntegrityError reaches the app."""
    enqueue(session, send.using(key="a", columns={"reference": "r"}), order_id=1)
    session.commit()

    with pytest.raises(IntegrityError):
        enqueue(session, send.using(key="b", columns={"reference": "r"}), order_id=2)


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(milliseconds=1500), timedelta(days=3650)])
def test_delay_counts_from_the_statement_by_the_databases_clock(session: Session, delay: timedelta) -> None:
    """`run_at` is the time of the insert and the delay, to the millisecond."""
    job = enqueue(session, send.using(delay=delay), order_id=1)

    assert abs((job.run_at - job.created_at) - delay) <= timedelta(milliseconds=1)


def test_times_are_the_statements_and_not_the_transactions(postgresql_sessions: sessionmaker[Session]) -> None:
    """A job enqueued late in a long transaction is not older than it is."""
    with postgresql_sessions() as session:
        started = session.execute(select(func.now())).scalar_one()

        first, second = enqueue(session, send, order_id=1), enqueue(session, send, order_id=2)

        assert started < first.created_at < second.created_at


@pytest.mark.parametrize("delay", [None, MINUTE], ids=["now", "later"])
@pytest.mark.parametrize("key", [None, "k"], ids=["unkeyed", "keyed"])
def test_clock_of_the_registry_is_the_only_one(session: Session, delay: timedelta | None, key: str | None) -> None:
    """With `Jobs(…, now=…)` a job's times come from that expression, one by one and in a batch."""
    clock.advance(session, timedelta(days=365))
    handler = timed_send.using(delay=delay)

    enqueue(session, handler.using(key=key), order_id=1)
    enqueue_many(session, [handler.using(key=key and "l").job(order_id=2), handler.job(order_id=3)])

    for job in session.scalars(select(Job)).unique():
        assert job.created_at - now(session) > timedelta(days=364)
        assert abs(job.run_at - job.created_at - (delay or timedelta(0))) < timedelta(seconds=5)


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "'order_id' .* is missing"),
        ((), {"order_id": "5"}, "'order_id'"),
        ((), {"order_id": 5, "colour": "red"}, "'colour'"),
        ((5, 6), {}, "at most 1"),
    ],
    ids=["missing", "type", "unknown", "too many"],
)
def test_arguments_that_do_not_fit_are_refused_at_enqueue(
    session: Session, args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    """A call that the handler could not take fails where it is written, and stores nothing."""
    call: Any = enqueue

    with pytest.raises(PayloadError, match=says):
        call(session, send, *args, **kwargs)

    assert session.scalars(select(func.count()).select_from(Job)).one() == 0


@pytest.mark.parametrize("session", [None, "session", object()], ids=["None", "str", "object"])
@pytest.mark.parametrize("call", [enqueue, enqueue_many])
def test_what_is_no_session_is_refused(call: Any, session: Any) -> None:
    """The error says what comes first, and what was given."""
    arguments = (send, 5) if call is enqueue else ([send.job(order_id=5)],)

    with pytest.raises(InvalidOption, match=f"a Session .* {type(session).__name__}"):
        call(session, *arguments)


def test_what_is_no_handler_is_refused(session: Session) -> None:
    """A plain function is told apart from a handler, with the remedy."""

    def plain() -> None: ...

    handler: Any = plain

    with pytest.raises(InvalidOption, match=r"@jobs\.handler"):
        enqueue(session, handler)


def test_job_tables_are_apart(session: Session) -> None:
    """A handler's jobs go to the table of its registry."""
    job = enqueue(session, tidy, days=1)

    assert type(job) is OtherJob
    assert session.scalars(select(Job)).all() == []
