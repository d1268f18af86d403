from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import ForeignKey, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column, relationship

from sqla_jobs.operations import leases
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.settlement import Failed, Returned, Vanished, decide
from sqla_jobs.schema.mixins import JobMixin
from sqla_jobs.testing import Clock
from tests.operations.leasing import BACKOFF, HOUR, MINUTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine


def with_a_relationship(lazy: Any) -> type[Any]:
    class Base(DeclarativeBase): ...

    class Customer(Base):
        __tablename__ = "customer"
        id: Mapped[int] = mapped_column(primary_key=True)
        jobs: Mapped[list[Any]] = relationship("Job", lazy="joined", back_populates="customer", join_depth=1)

    class Job(JobMixin, Base):
        __tablename__ = "job"
        customer_id: Mapped[int | None] = mapped_column(ForeignKey("customer.id"))
        customer: Mapped[Any] = relationship(Customer, lazy=lazy, back_populates="jobs")

    return Job


def with_joined_children() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {  # noqa: RUF012
            "polymorphic_on": "kind",
            "polymorphic_identity": "job",
            "with_polymorphic": "*",
        }

    class ReportJob(Job):
        __tablename__ = "report_job"
        id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    return ReportJob.__mro__[1]


def single_table_child() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    class ReportJob(Job):
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    return ReportJob


def as_a_dataclass() -> type[Any]:
    class Base(MappedAsDataclass, DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        tenant: Mapped[str] = mapped_column(String(50), insert_default="house")

    return Job


def with_our_columns_under_other_names() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        label: Mapped[str] = mapped_column("type_of_work", String(50), default="none", deferred=True)

    return Job


MODELS: dict[str, Callable[[], type[Any]]] = {
    "joined": lambda: with_a_relationship("joined"),
    "selectin": lambda: with_a_relationship("selectin"),
    "subquery": lambda: with_a_relationship("subquery"),
    "raise": lambda: with_a_relationship("raise"),
    "joined children": with_joined_children,
    "single-table child": single_table_child,
    "dataclass": as_a_dataclass,
    "deferred column": with_our_columns_under_other_names,
}


def send(order_id: int) -> None: ...


@pytest.mark.parametrize("name", MODELS)
def test_life_of_a_job_is_the_same_on_every_model(engine: Engine, name: str) -> None:
    """Enqueue, claim, fail, reap, renew and finish work however the app maps its jobs, eager relationships too."""
    model = MODELS[name]()
    clock = Clock(model.metadata)
    jobs = Jobs(model, now=clock.now)
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
        lease = claim(session)
        assert leases.renew(session, jobs.table, [lease], lease=HOUR).renewed == {lease.key}
        settle(session, lease, Returned(7))
        session.commit()

        assert len(vanished) == 1
        session.expire_all()
        found = session.scalars(select(model)).unique().one()
        assert (found.status, found.attempts, found.result, len(found.errors)) == ("done", 3, 7, 2)


def test_key_of_another_kind_of_job_is_found(engine: Engine) -> None:
    """A key is taken in the whole table: a job of another class in it is given as the duplicate that it is."""
    child = single_table_child()
    parent = child.__mro__[1]
    child.metadata.create_all(engine)
    registries: list[Jobs[Any]] = [Jobs(parent), Jobs(child)]
    of_parent, of_child = (registry.handler(send) for registry in registries)

    with Session(engine) as session:
        first = enqueue(session, of_parent.using(key="k"), order_id=1)

        again = enqueue(session, of_child.using(key="k"), order_id=2)

        assert again is first
        assert again.is_duplicate
