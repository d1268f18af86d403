from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from sqlalchemy import DateTime, String, Table, func, inspect, literal
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_jobs.errors import InvalidModel, InvalidOption
from sqla_jobs.schema.constructs import db_now
from sqla_jobs.schema.mixins import JobMixin
from sqla_jobs.schema.tables import CHANNEL_BYTES, job_table
from sqla_jobs.schema.types import UtcDateTime
from tests.schema.models import job_model, new_dialect


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"
    tenant: Mapped[str] = mapped_column("tenant_name", String(50))
    parent_id: Mapped[int | None]


class NoJob(Base):
    __tablename__ = "no_job"
    id: Mapped[int] = mapped_column(primary_key=True)


class Unmapped(JobMixin): ...


class Abstract(JobMixin, Base):
    __abstract__ = True


class LooksLikeOne(Base):
    __tablename__ = "looks_like_one"
    id: Mapped[int] = mapped_column(primary_key=True)
    idempotency_key: Mapped[str | None]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (NoJob, "NoJob has no JobMixin among its bases"),
        (LooksLikeOne, "LooksLikeOne has no JobMixin among its bases"),
        (Unmapped, "is not a mapped class"),
        (Abstract, "is not a mapped class"),
        (JobMixin, "is not a mapped class"),
        (Base, "is not a mapped class"),
        (int, "is not a mapped class"),
        ("Job", "is not a mapped class"),
        (None, "is not a mapped class"),
        (Job(), "is not a mapped class"),
        (Job.__table__, "is not a mapped class"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_model_that_cannot_hold_jobs_is_refused_with_the_remedy(model: Any, says: str) -> None:
    """What is no mapped job class is an `InvalidModel` that shows how to write one."""
    with pytest.raises(InvalidModel, match=says):
        job_table(model, None)


def test_table_is_the_one_of_the_model() -> None:
    """The statements speak of the app's own table."""
    assert job_table(Job, None).table is cast("Table", inspect(Job).local_table)


def test_clock_is_the_databases_unless_another_is_given() -> None:
    """Without `now=` it is `db_now()`; an expression is taken as an instant."""
    assert isinstance(job_table(Job, None).now, db_now)
    assert isinstance(job_table(Job, func.current_timestamp()).now.type, UtcDateTime)
    assert isinstance(job_table(Job, literal(datetime(2024, 1, 1, tzinfo=UTC))).now.type, UtcDateTime)


@pytest.mark.parametrize("now", [datetime(2024, 1, 1, tzinfo=UTC), "now()", lambda: None])
def test_clock_that_is_no_expression_is_refused(now: Any) -> None:
    """A time of Python's would stand still, so only a SQL expression is a clock."""
    with pytest.raises(InvalidOption, match="now is a SQL expression"):
        job_table(Job, now)


def test_own_columns_are_given_by_attribute_name() -> None:
    """The app names its attributes, and the column may be called otherwise."""
    assert job_table(Job, None).own_columns({"tenant": "north", "parent_id": 7}) == {
        "tenant_name": "north",
        "parent_id": 7,
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("id", "one of the library's"),
        ("status", "one of the library's"),
        ("idempotency_key", "one of the library's"),
        ("is_duplicate", "one of the library's"),
        ("tenant_name", "no column 'tenant_name'; its own columns: parent_id, tenant"),
        ("colour", "no column 'colour'; its own columns: parent_id, tenant"),
        ("metadata", "no column 'metadata'"),
    ],
)
def test_column_that_is_not_the_apps_is_refused(name: str, says: str) -> None:
    """Our columns are set by their own options, and a wrong name is told with the right ones."""
    with pytest.raises(InvalidOption, match=says):
        job_table(Job, None).own_columns({name: 1})


def test_relationship_is_no_column() -> None:
    """A relationship can't be given: its foreign key can."""

    class OwnBase(DeclarativeBase): ...

    class Customer(OwnBase):
        __tablename__ = "customer"
        id: Mapped[int] = mapped_column(primary_key=True)

    class CustomerJob(JobMixin, OwnBase):
        __tablename__ = "job"
        customer_id: Mapped[int | None]
        customer: Mapped[Customer | None] = relationship(
            primaryjoin="foreign(CustomerJob.customer_id) == Customer.id", viewonly=True
        )

    with pytest.raises(InvalidOption, match="its own columns: customer_id"):
        job_table(CustomerJob, None).own_columns({"customer": Customer()})


@pytest.mark.parametrize("name", ["job", "t" * 60, "ü" * 60, 'a"b:c'])
@pytest.mark.parametrize("schema", [None, "shop", "s" * 60])
def test_channel_fits_the_servers_limit(name: str, schema: str | None) -> None:
    """However long a table's name is, its channel's has at most 63 bytes, and is the same at each run."""
    first, again = (job_table(job_model(table=name, schema=schema), None).channel for _ in range(2))

    assert first == again
    assert len(first.encode()) <= CHANNEL_BYTES
    assert first.startswith("sqla_jobs:")


def test_channel_is_one_for_each_table() -> None:
    """Two job tables, or one name in two schemas, don't wake each other's workers."""
    names = ["job", "jobs", "t" * 60, "t" * 59 + "u"]
    models = [job_model(table=name, schema=schema) for name in names for schema in (None, "shop")]

    assert len({job_table(model, None).channel for model in models}) == len(models)


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_given_clock_is_all_that_is_rendered(database: str) -> None:
    """The clock that was given stands in the statement as it is."""
    now = job_table(Job, func.my_clock()).now

    assert str(now.compile(dialect=new_dialect(database))) == "my_clock()"


class Stamps:
    """An app's own mixin, with naive times."""

    created_at: Mapped[datetime] = mapped_column(DateTime())


def test_model_whose_times_are_another_mixins_is_refused() -> None:
    """A mixin before ours that has a column of that name would have its times read naive."""

    class Own(DeclarativeBase): ...

    class Stamped(Stamps, JobMixin, Own):
        __tablename__ = "stamped"

    with pytest.raises(InvalidModel, match=r"Stamped\.created_at is DateTime.*put the mixin first"):
        job_table(Stamped, None)


def test_model_whose_discriminator_is_a_column_of_ours_is_refused() -> None:
    """Its classes' names would take the place of the handlers'."""

    class Own(DeclarativeBase): ...

    class Typed(JobMixin, Own):
        __tablename__ = "typed"
        __mapper_args__ = {"polymorphic_on": "type", "polymorphic_identity": "typed"}  # noqa: RUF012

    with pytest.raises(InvalidModel, match="'type', which is one of the library's columns.*`kind`"):
        job_table(Typed, None)
