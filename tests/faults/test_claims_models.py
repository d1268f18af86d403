"""Models whose relationships load with them, or whose classes share tables."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import DeclarativeBase, Session

from sqla_jobs import ArchivedJobMixin, Jobs, enqueue, find_jobs, requeue_jobs, show_job
from sqla_jobs.operations import leases
from sqla_jobs.operations.archive import archive_batch
from sqla_jobs.rules.settlement import Failed, GaveUp, Returned, Vanished, decide
from sqla_jobs.testing import Clock
from tests.operations.leasing import BACKOFF, HOUR, MINUTE, add, take
from tests.operations.models import MODELS
from tests.operations.shop import Customer, Job

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import sessionmaker


def send(order_id: int) -> None: ...


def archive_beside(model: type[Any]) -> type[Any]:
    base = next(each for each in model.__mro__ if DeclarativeBase in each.__bases__)
    return type("ArchivedJob", (ArchivedJobMixin, base), {"__tablename__": "archived_job"})


@pytest.mark.parametrize("name", MODELS)
def test_f14_life_of_a_job_is_the_same_on_every_model(engine: Engine, name: str) -> None:
    """Enqueue, claim, fail, reap, renew, finish, list, requeue and archive work however the app maps its jobs."""
    model = MODELS[name]()
    clock = Clock(model.metadata)
    jobs = Jobs(model, archive=archive_beside(model), now=clock.now)
    handler = jobs.handler(send)
    model.metadata.create_all(engine)

    def claim(session: Session) -> Any:
        clock.advance(session, HOUR)
        demand = leases.Demand(("send",), None)
        (lease,) = leases.claim(session, jobs.table, demand, limit=5, locked_by="w1", lease=MINUTE)
        return lease

    def settle(session: Session, lease: Any, outcome: Any) -> None:
        settlement = decide(lease, outcome, backoff=BACKOFF, draw=0)
        assert leases.settle(session, jobs.table, [settlement]) == {lease.key}

    with Session(engine) as session:
        job = enqueue(session, handler.using(key="k"), order_id=5)
        assert enqueue(session, handler.using(key="k"), order_id=6) is job
        settle(session, claim(session), Failed("boom"))
        claim(session)
        clock.advance(session, HOUR)
        vanished = leases.reap(
            session, jobs.table, lambda lease: decide(lease, Vanished("gone"), backoff=BACKOFF, draw=0), limit=5
        )
        settle(session, claim(session), GaveUp("no"))
        (requeued,) = requeue_jobs(session, jobs, job.id)
        lease = claim(session)
        assert leases.renew(session, jobs.table, [lease], lease=HOUR).renewed == {lease.key}
        settle(session, lease, Returned(7))
        session.commit()

        assert (len(vanished), requeued.is_changed) == (1, True)
        session.expire_all()
        found = session.scalars(select(model)).unique().one()
        assert (found.status, found.attempts, found.claims, found.result, len(found.errors)) == ("done", 1, 4, 7, 3)
        (listed,) = find_jobs(session, jobs).jobs
        assert (listed.id, listed.status) == (job.id, "done")
        assert archive_batch(session, jobs, "done", timedelta(0)).changed == 1
        assert find_jobs(session, jobs).jobs == ()
        assert show_job(session, jobs, listed.id).result == 7


def test_f14_claim_locks_the_job_table_alone(postgresql_sessions: sessionmaker[Session]) -> None:
    """With eager relationships on the model, the related row stays free for others while the claim is open."""
    with postgresql_sessions.begin() as session:
        session.add(Customer(id=3, name="ann"))
        session.flush()
        job_id = add(session, ago=HOUR, customer_id=3)

    with postgresql_sessions() as session, postgresql_sessions() as app:
        assert [lease.id for lease in take(session)] == [job_id]
        app.execute(text("SET LOCAL lock_timeout = '1s'"))
        app.execute(update(Customer).values(name="anne"))
        app.commit()
        session.commit()

        job = session.get_one(Job, job_id)
        assert job.customer is not None
        assert (job.customer.name, job.status) == ("anne", "running")
