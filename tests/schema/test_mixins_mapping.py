from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Optional

import pytest
from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, String, UniqueConstraint, inspect, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    declarative_base,
    mapped_column,
    registry,
)

from sqla_jobs.errors import InvalidModel
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.mixins import JobMixin
from sqla_jobs.schema.tables import job_table
from tests.schema.models import COLUMNS, INDEXES, NULLABLE, parts_of, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine


def on_declarative_base() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"

    return Job


def with_the_mixin_last() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Job(Base, JobMixin):
        __tablename__ = "job"

    return Job


def on_the_function_declarative_base() -> type[Any]:
    base: Any = declarative_base()

    class Job(JobMixin, base):  # type: ignore[misc]  # a base made by a function is none for checkers
        __tablename__ = "job"

    return Job


def by_registry_mapped() -> type[Any]:
    @registry().mapped
    class Job(JobMixin):
        __tablename__ = "job"

    return Job


def on_a_dataclass_base() -> type[Any]:
    class Base(MappedAsDataclass, DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        tenant: Mapped[str] = mapped_column(String(50), insert_default="house")

    return Job


def as_a_dataclass_itself() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Job(MappedAsDataclass, JobMixin, Base):
        __tablename__ = "job"
        tenant: Mapped[str] = mapped_column(String(50), insert_default="house")

    return Job


def by_registry_mapped_as_dataclass() -> type[Any]:
    @registry().mapped_as_dataclass
    class Job(JobMixin):
        __tablename__ = "job"
        tenant: Mapped[str] = mapped_column(String(50), insert_default="house")

    return Job


def on_an_abstract_base() -> type[Any]:
    class Base(DeclarativeBase): ...

    class AbstractJob(JobMixin, Base):
        __abstract__ = True

    class Job(AbstractJob):
        __tablename__ = "job"

    return Job


def with_a_mixin_of_the_apps() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Stamped:
        updated_at: Mapped[datetime | None] = mapped_column(onupdate=None)

    class Job(Stamped, JobMixin, Base):
        __tablename__ = "job"

    return Job


def with_single_table_children() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    class ReportJob(Job):
        pages: Mapped[int | None] = mapped_column(Integer)
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    return ReportJob.__mro__[1]


def with_a_type_annotation_map() -> type[Any]:
    class Base(DeclarativeBase):
        type_annotation_map = {str: String(7), datetime: Integer(), int: String(3), dict[str, Any]: Integer()}  # noqa: RUF012

    class Job(JobMixin, Base):
        __tablename__ = "job"
        tenant: Mapped[str | None]

    return Job


FORMS = [
    on_declarative_base,
    with_the_mixin_last,
    on_the_function_declarative_base,
    by_registry_mapped,
    on_a_dataclass_base,
    as_a_dataclass_itself,
    by_registry_mapped_as_dataclass,
    on_an_abstract_base,
    with_a_mixin_of_the_apps,
    with_single_table_children,
    with_a_type_annotation_map,
]


def send(order_id: int) -> None: ...


@pytest.mark.parametrize("form", FORMS)
def test_job_table_is_whole_in_every_form_of_mapping(form: Callable[[], type[Any]]) -> None:
    """However an app maps its job class, the table has our columns first, in order, and all our parts, once."""
    table = table_of(form())

    ours = [column for column in table.columns if column.name in COLUMNS]
    assert [column.name for column in ours] == COLUMNS
    assert {column.name for column in ours if column.nullable} == NULLABLE
    assert parts_of(table) == ({f"ix_job_{token}" for token in INDEXES}, {"ck_job_status"})
    assert len(table.indexes) == len(INDEXES)
    assert table.dialect_options["sqlite"]["autoincrement"] is True


@pytest.mark.parametrize("form", FORMS)
def test_types_are_the_same_in_every_form_of_mapping(form: Callable[[], type[Any]]) -> None:
    """No base, and no `type_annotation_map` of an app, changes a type of ours."""
    usual = table_of(on_declarative_base())

    table = table_of(form())

    assert {name: repr(table.c[name].type) for name in COLUMNS} == {name: repr(usual.c[name].type) for name in COLUMNS}


@pytest.mark.parametrize("form", FORMS)
def test_job_is_enqueued_in_every_form_of_mapping(form: Callable[[], type[Any]], sqlite_engine: Engine) -> None:
    """A job is stored and read back as an object of the app's class, with the app's columns filled."""
    model = form()
    table_of(model).metadata.create_all(sqlite_engine)
    handler = Jobs(model).handler(send)

    with Session(sqlite_engine) as session:
        job = enqueue(session, handler, order_id=5)
        session.commit()

        assert type(job) is model
        assert (job.type, job.payload, job.status) == ("send", {"order_id": 5}, "ready")
        assert getattr(job, "tenant", None) in {None, "house"}
        assert getattr(job, "kind", "job") == "job"


def test_dataclass_model_is_constructed_without_our_columns() -> None:
    """Our columns are no fields of an app's dataclass: its constructor takes the app's own."""
    model = on_a_dataclass_base()

    assert model(tenant="north").tenant == "north"
    with pytest.raises(TypeError):
        model(type="send")


OWN_INDEX, OWN_CHECK = "ix_of_the_app", "ck_of_the_app"


def own_parts() -> tuple[Any, ...]:
    return (Index(OWN_INDEX, "tenant"), CheckConstraint("length(tenant) > 0", name=OWN_CHECK))


@pytest.mark.parametrize(
    "arguments",
    [own_parts, lambda: (*own_parts(), {"comment": "jobs"}), lambda: {"comment": "jobs"}, tuple, dict],
    ids=["tuple", "both", "dict", "empty tuple", "empty dict"],
)
def test_table_args_of_the_app_drop_none_of_our_parts(arguments: Callable[[], Any]) -> None:
    """What an app says in `__table_args__`, in whatever form, comes beside our parts and not instead of them."""
    given: Any = arguments()

    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        __table_args__ = given
        tenant: Mapped[str] = mapped_column(String(50), default="house")

    indexes, checks = parts_of(table_of(Job))
    assert {f"ix_job_{token}" for token in INDEXES} <= indexes
    assert "ck_job_status" in checks
    is_with_parts = OWN_INDEX in str(given)
    assert (OWN_INDEX in indexes, OWN_CHECK in checks) == (is_with_parts, is_with_parts)
    assert table_of(Job).comment == ("jobs" if "comment" in str(given) else None)


def test_unique_columns_and_relationships_of_the_app_stand_beside_ours(engine: Engine) -> None:
    """An app's own constraints and foreign keys are created with ours."""

    class Base(DeclarativeBase): ...

    class Customer(Base):
        __tablename__ = "customer"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Job(JobMixin, Base):
        __tablename__ = "job"
        __table_args__ = (UniqueConstraint("tenant", "reference"),)
        tenant: Mapped[str] = mapped_column(String(50))
        reference: Mapped[Optional[str]] = mapped_column(String(50))  # noqa: UP045  # as apps of that age write it
        customer_id: Mapped[int | None] = mapped_column(ForeignKey(Customer.id))

    assert table_of(Job).metadata is Base.metadata
    Base.metadata.create_all(engine)

    found = inspect(engine)
    assert [key["constrained_columns"] for key in found.get_foreign_keys("job")] == [["customer_id"]]
    assert [key["column_names"] for key in found.get_unique_constraints("job")] == [["tenant", "reference"]]
    assert len([index for index in found.get_indexes("job") if str(index["name"]).startswith("ix_job_")]) == 6


def test_single_table_children_share_one_set_of_parts(engine: Engine) -> None:
    """Children in the parent's table add nothing twice, and each can hold jobs of its own kind."""
    model = with_single_table_children()
    child = model.__subclasses__()[0]
    model.metadata.create_all(engine)
    handler = Jobs(child).handler(send)

    with Session(engine) as session:
        job = enqueue(session, handler, order_id=1)
        session.commit()

        assert type(job) is child
        assert job.kind == "report"
        assert session.scalars(select(model)).all() == [job]


def joined_child() -> tuple[type[Any], type[Any]]:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    class ReportJob(Job):
        __tablename__ = "report_job"
        id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)
        pages: Mapped[int | None] = mapped_column(Integer)
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    return Job, ReportJob


def test_joined_child_can_be_mapped_and_added(engine: Engine) -> None:
    """A child with a table of its own is mapped and stored as any other, and its table has none of our parts."""
    model, child = joined_child()
    model.metadata.create_all(engine)

    with Session(engine) as session:
        session.add(child(type="send", pages=3))
        session.commit()

        assert session.scalars(select(model)).one().pages == 3
    assert parts_of(table_of(child)) == (set(), set())


def test_parent_of_a_joined_child_holds_jobs(engine: Engine) -> None:
    """The parent is enqueued as itself, whatever children it has."""
    model, _ = joined_child()
    model.metadata.create_all(engine)
    handler = Jobs(model).handler(send)

    with Session(engine) as session:
        assert type(enqueue(session, handler, order_id=1)) is model


def test_joined_child_is_no_registry_model() -> None:
    """A claim fills one table: `Jobs(Child)` says so, and names both ways out."""
    _, child = joined_child()

    with pytest.raises(InvalidModel, match=r"ReportJob .* register the parent, or use single-table inheritance"):
        job_table(child, None)
