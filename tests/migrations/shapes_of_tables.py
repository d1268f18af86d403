"""More shapes: what stands in the tables beside our columns, and where the tables stand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, MetaData, String, Text, func
from sqlalchemy.orm import DeclarativeBase, Mapped, backref, declared_attr, deferred, mapped_column, relationship

from sqla_jobs import ArchivedJobMixin, JobMixin, ScheduleMixin
from tests.migrations.shapes import Shape, others, plain

# --- columns and relationships ----------------------------------------------------------------------------------------


def with_columns_of_all_kinds() -> Shape:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        nullable: Mapped[str | None]
        by_python: Mapped[str] = mapped_column(default="house")
        by_a_function: Mapped[int] = mapped_column(default=lambda: 5)
        by_an_expression: Mapped[int] = mapped_column(default=func.length("four"))
        by_the_server: Mapped[str] = mapped_column(server_default="street")
        updated_at: Mapped[datetime | None] = mapped_column(onupdate=func.now())
        renamed: Mapped[str | None] = mapped_column("tenant code", key="t_code")
        class_: Mapped[str | None] = mapped_column("class")
        large: Mapped[str | None] = deferred(mapped_column(Text))

    names = {"nullable", "by_python", "by_the_server", "renamed", "class_", "large"}
    return Shape(
        Job,
        *others(Base),
        columns={name: f"own {name}" for name in names} | {"by_a_function": 7, "by_an_expression": 8},
        filled=dict.fromkeys(names)
        | {"by_python": "house", "by_the_server": "street", "by_a_function": 5, "by_an_expression": 4},
    )


def with_eager_relationships() -> Shape:
    class Base(DeclarativeBase): ...

    class Customer(Base):
        __tablename__ = "customer"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Job(JobMixin, Base):
        __tablename__ = "job"
        owner_id: Mapped[int] = mapped_column(ForeignKey(Customer.id), default=1)
        payer_id: Mapped[int | None] = mapped_column(ForeignKey(Customer.id))
        parent_id: Mapped[int | None] = mapped_column(ForeignKey("job.id", ondelete="SET NULL"))
        owner: Mapped[Customer] = relationship(
            Customer, foreign_keys=owner_id, lazy="joined", innerjoin=True, backref=backref("owned", lazy="joined")
        )
        payer: Mapped[Customer | None] = relationship(Customer, foreign_keys=payer_id, lazy="joined")
        children: Mapped[list[Any]] = relationship("Job", lazy="selectin", passive_deletes=True)

    return Shape(
        Job,
        *others(Base),
        columns={"owner_id": 2, "payer_id": 1},
        filled={"owner_id": 1, "payer_id": None},
        first=lambda: [Customer(id=1), Customer(id=2)],
    )


def with_rows_that_refer_to_it() -> Shape:
    """What an app deletes with the job, and what it keeps."""

    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        lines: Mapped[list[Line]] = relationship("Line", passive_deletes=True, cascade="all, delete-orphan")

    class Line(Base):
        __tablename__ = "line"
        id: Mapped[int] = mapped_column(primary_key=True)
        job_id: Mapped[int] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"))

    class Order(Base):
        __tablename__ = "order"
        id: Mapped[int] = mapped_column(primary_key=True)
        job_id: Mapped[int | None] = mapped_column(ForeignKey("job.id", ondelete="SET NULL"))

    return Shape(Job, *others(Base), more={"line": Line, "order": Order})


def with_arguments(arguments: Any) -> Shape:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        __table_args__ = arguments
        tenant: Mapped[str] = mapped_column(String(50), default="house")

    class Schedule(ScheduleMixin, Base):
        __tablename__ = "schedule"
        __table_args__ = arguments
        tenant: Mapped[str] = mapped_column(String(50), default="house")

    class ArchivedJob(ArchivedJobMixin, Base):
        __tablename__ = "archived_job"
        __table_args__ = arguments
        tenant: Mapped[str] = mapped_column(String(50), default="house")

    return Shape(Job, Schedule, ArchivedJob, {"tenant": "north"}, {"tenant": "house"})


def with_table_args_as_a_tuple() -> Shape:
    class Base(DeclarativeBase): ...

    class Tenanted:
        tenant: Mapped[str] = mapped_column(String(50), default="house")

        @declared_attr.directive
        @classmethod
        def __table_args__(cls) -> Any:
            return (Index(None, "tenant"), CheckConstraint("length(tenant) > 0"))

    class Job(JobMixin, Tenanted, Base):
        __tablename__ = "job"

    class Schedule(ScheduleMixin, Tenanted, Base):
        __tablename__ = "schedule"

    class ArchivedJob(ArchivedJobMixin, Tenanted, Base):
        __tablename__ = "archived_job"

    return Shape(Job, Schedule, ArchivedJob, {"tenant": "north"}, {"tenant": "house"})


def with_table_args_as_a_dict() -> Shape:
    return with_arguments({"comment": "rows of the library", "sqlite_autoincrement": True})


def with_table_args_as_both() -> Shape:
    return with_arguments((CheckConstraint("length(tenant) > 0"), {"comment": "rows of the library"}))


def with_eager_defaults() -> Shape:
    class Base(DeclarativeBase):
        __mapper_args__ = {"eager_defaults": True}  # noqa: RUF012

    class Job(JobMixin, Base):
        __tablename__ = "job"
        place: Mapped[str] = mapped_column(server_default="street")

    return Shape(Job, *others(Base), {"place": "field"}, {"place": "street"})


# --- schemas and names ------------------------------------------------------------------------------------------------


def in_a_schema_of_the_metadata() -> Shape:
    class Base(DeclarativeBase):
        metadata = MetaData(schema="queue")

    return Shape(*plain(Base), schema="queue")


def in_a_schema_of_the_tables() -> Shape:
    shape = with_arguments({"schema": "queue"})
    return Shape(shape.job, shape.schedule, shape.archive, shape.columns, shape.filled, schema="queue")


def in_a_schema_by_translation_of_none() -> Shape:
    class Base(DeclarativeBase): ...

    return Shape(*plain(Base), schema="queue", translated={None: "queue"})


def in_a_schema_by_translation_of_a_name() -> Shape:
    class Base(DeclarativeBase):
        metadata = MetaData(schema="per tenant")

    return Shape(*plain(Base), schema="queue", translated={"per tenant": "queue"})


SHORT = {"ix": "ix_%(column_0_label)s", "uq": "uq_%(table_name)s_%(column_0_name)s", "pk": "pk_%(table_name)s"}


def with_a_naming_convention() -> Shape:
    class Base(DeclarativeBase):
        metadata = MetaData(naming_convention=SHORT)

    return Shape(*plain(Base))


def with_a_naming_convention_of_constraint_names() -> Shape:
    class Base(DeclarativeBase):
        metadata = MetaData(
            naming_convention={kind: f"{kind}__%(table_name)s__%(constraint_name)s" for kind in ("ck", "uq", "ix")}
        )

    return Shape(*plain(Base))


TABLES: list[Callable[[], Shape]] = [
    with_columns_of_all_kinds,
    with_eager_relationships,
    with_rows_that_refer_to_it,
    with_table_args_as_a_tuple,
    with_table_args_as_a_dict,
    with_table_args_as_both,
    with_eager_defaults,
    in_a_schema_of_the_metadata,
    in_a_schema_of_the_tables,
    in_a_schema_by_translation_of_none,
    in_a_schema_by_translation_of_a_name,
    with_a_naming_convention,
    with_a_naming_convention_of_constraint_names,
]
