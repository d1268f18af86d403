"""The ways in which apps map their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, relationship

from sqla_jobs.schema.mixins import JobMixin

if TYPE_CHECKING:
    from collections.abc import Callable


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


MODELS: Final[dict[str, Callable[[], type[Any]]]] = {
    "joined": lambda: with_a_relationship("joined"),
    "selectin": lambda: with_a_relationship("selectin"),
    "subquery": lambda: with_a_relationship("subquery"),
    "raise": lambda: with_a_relationship("raise"),
    "joined children": with_joined_children,
    "single-table child": single_table_child,
    "dataclass": as_a_dataclass,
    "deferred column": with_our_columns_under_other_names,
}
