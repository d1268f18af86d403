from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url, select, text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema import statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import Listen, as_rows, capabilities
from tests.engines import build_engine
from tests.operations.shop import Base, Customer, Job, jobs, mail, other_jobs, send, tidy
from tests.schema.models import job_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

PATIENCE = 20


class Listener:
    """Hears what is told on the channel of a job table.

    It tells itself where to stop, so that a test waits for nothing that may not come.
    """

    def __init__(self, url: str, channel: str) -> None:
        dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self.channel = channel

    def close(self) -> None:
        self.connection.close()

    def heard(self) -> list[str]:
        """Give the queues that were told until now, in the order of their commits."""
        self.connection.execute("SELECT pg_notify(%s, 'the end')", [self.channel])
        queues: list[str] = []
        for notification in self.connection.notifies(timeout=PATIENCE):
            if notification.payload == "the end":
                return queues
            queues.append(notification.payload)
        pytest.fail("not even its own notification came")


@pytest.fixture
def listener(shop_url: str) -> Iterator[Listener]:
    with closing(Listener(shop_url, jobs.table.channel)) as listener:
        yield listener


def test_notify_is_heard_when_the_transaction_commits(
    listener: Listener, postgresql_sessions: sessionmaker[Session]
) -> None:
    """Workers hear of a job's queue at its commit, not before, and never of a job that was rolled back."""
    with postgresql_sessions() as session:
        enqueue(session, mail, to="ann")
        before = listener.heard()
        session.commit()
        enqueue(session, send, order_id=1)
        session.rollback()

    assert (before, listener.heard()) == ([], ["mail"])


def test_notify_tells_each_queue_once(listener: Listener, postgresql_sessions: sessionmaker[Session]) -> None:
    """A batch, or many jobs of one transaction, are told once for each queue."""
    with postgresql_sessions.begin() as session:
        enqueue_many(session, [mail.job("ann"), send.job(order_id=1), mail.job("bob"), tidy.job(days=1)])
        enqueue(session, send, order_id=2)
        enqueue(session, send, order_id=3)

    assert sorted(listener.heard()) == ["default", "mail"]


def test_notify_is_told_for_jobs_of_the_future(listener: Listener, postgresql_sessions: sessionmaker[Session]) -> None:
    """A job that is due later is told, too: a worker that waits for a later one must know."""
    with postgresql_sessions.begin() as session:
        enqueue(session, mail.using(delay=timedelta(hours=1)), to="ann")

    assert listener.heard() == ["mail"]


def test_duplicate_is_not_told(listener: Listener, postgresql_sessions: sessionmaker[Session]) -> None:
    """Where nothing was stored, nothing is to be done."""
    with postgresql_sessions.begin() as session:
        enqueue(session, mail.using(key="k"), to="ann")
    first = listener.heard()
    with postgresql_sessions.begin() as session:
        enqueue(session, mail.using(key="k"), to="ann")

    assert (first, listener.heard()) == (["mail"], [])


def test_notify_is_off_when_the_registry_says_so(shop_url: str, postgresql_sessions: sessionmaker[Session]) -> None:
    """With `Jobs(…, notify=False)` a commit takes no server-wide lock: nothing is told."""
    with closing(Listener(shop_url, other_jobs.table.channel)) as listener:
        with postgresql_sessions.begin() as session:
            enqueue(session, tidy, days=1)
            enqueue_many(session, [tidy.job(days=2)])

        assert listener.heard() == []


def test_two_phase_session_commits_its_jobs(
    listener: Listener, postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session]
) -> None:
    """PREPARE TRANSACTION refuses a NOTIFY, so that a two-phase session tells nothing, and its jobs are there."""
    with postgresql_sessions() as session:
        if session.execute(text("SHOW max_prepared_transactions")).scalar_one() == "0":
            pytest.skip("the server takes no prepared transactions")

    with Session(binds={Base: postgresql_engine}, twophase=True) as session:
        session.add(Customer(name="ann"))
        enqueue(session, send.using(key="k"), order_id=1)
        enqueue_many(session, [send.job(order_id=2), send.using(key="k").job(order_id=3)])
        session.prepare()
        session.commit()
        enqueue(session, send, order_id=4)
        session.rollback()

    with postgresql_sessions() as session:
        assert [job.payload["order_id"] for job in session.scalars(select(Job).order_by(Job.id)).unique()] == [1, 2]
        assert session.scalars(select(Customer.name)).all() == ["ann"]
    assert listener.heard() == []


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_enqueue_joins_a_transaction_of_any_isolation(
    listener: Listener, postgresql_engine: Engine, postgresql_sessions: sessionmaker[Session], level: Any
) -> None:
    """Under a stricter isolation jobs are stored, found by their key again, and told, like any other."""
    with Session(postgresql_engine.execution_options(isolation_level=level)) as session:
        session.add(Customer(name="ann"))
        enqueue(session, send.using(key="k"), order_id=1)
        assert enqueue(session, send.using(key="k"), order_id=2).is_duplicate
        results = enqueue_many(session, [send.using(key=key).job(order_id=3) for key in "kl"])
        session.commit()

        assert session.execute(text("SHOW transaction_isolation")).scalar_one() == level.lower()
        assert [result.is_duplicate for result in results] == [True, False]
    with postgresql_sessions() as session:
        assert len(session.scalars(select(Job)).unique().all()) == 2
    assert set(listener.heard()) == {"default"}


def test_job_is_enqueued_in_a_schema_of_the_tenants(postgresql_url: str) -> None:
    """An app that translates schemas for each tenant has each tenant's jobs in their schema."""
    engine = build_engine(postgresql_url)
    tenants = [engine.execution_options(schema_translate_map={None: name}) for name in ("north", "south")]
    with engine.begin() as connection:
        for name in ("north", "south"):
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    for tenant in tenants:
        Base.metadata.create_all(tenant)

    with Session(tenants[0]) as session:
        enqueue(session, send.using(key="k"), order_id=1)
        assert enqueue(session, send.using(key="k"), order_id=2).is_duplicate
        enqueue_many(session, [send.job(order_id=3)])
        session.commit()

    counts: list[int] = []
    for tenant in tenants:
        with Session(tenant) as session:
            counts.append(len(session.scalars(select(Job)).unique().all()))
    engine.dispose()
    assert counts == [2, 0]


def test_channel_of_a_name_that_needs_quotes_is_heard(shop_url: str, postgresql_engine: Engine) -> None:
    """A table's name may hold any letter: LISTEN and NOTIFY mean the same channel."""
    channel = Jobs(job_model(table='We"ird:job')).table.channel

    with closing(Listener(shop_url, channel)) as listener:
        with postgresql_engine.begin() as connection:
            connection.execute(Listen(channel))
            told = statements.notify(capabilities(connection.dialect), channel)
            connection.execute(told, said({"rows": as_rows([{"queue": "mail"}, {"queue": "default"}])}))

        assert listener.heard() == ["mail", "default"]
