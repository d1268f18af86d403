"""The shapes in which apps map their tables: each a function that maps a job, a schedule and an archive anew.

A shape says what its own columns are given at enqueue, what they hold where nothing was given, and which rows must be
there first. Its tables stand in a MetaData of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, ForeignKey, MetaData, String, Text, func, inspect
from sqlalchemy.ext.asyncio import AsyncAttrs
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    declared_attr,
    mapped_column,
    registry,
)

from sqla_jobs import ArchivedJobMixin, JobMixin, ScheduleMixin


def nothing() -> list[object]:
    return []


@dataclass(frozen=True)
class Shape:
    """The classes of an app.

    :ivar columns: own columns that are given at enqueue
    :ivar filled: own columns where nothing is given
    :ivar first: makes the rows that both need
    :ivar schema: the one in the database that has the tables
    :ivar translated: the app's `schema_translate_map`
    :ivar flask: the app's Flask-SQLAlchemy
    :ivar more: the app's other tables, by name
    :ivar is_dataclass: whether the schedule is a dataclass, whose fields are the app's own columns
    """

    job: Any
    schedule: Any
    archive: Any
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    filled: Mapping[str, Any] = field(default_factory=dict[str, Any])
    first: Callable[[], list[object]] = nothing
    schema: str | None = None
    translated: Mapping[str | None, str] | None = None
    flask: Any = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_dataclass: bool = False

    @property
    def metadata(self) -> MetaData:
        """What all its tables are in."""
        found: MetaData = inspect(self.job).local_table.metadata
        return found

    def new_schedule(self, **values: Any) -> Any:
        """Make a schedule at run time."""
        if not self.is_dataclass:
            return self.schedule(**values)
        made = self.schedule()
        for name, value in values.items():
            setattr(made, name, value)
        return made


def others(base: Any) -> tuple[Any, Any]:
    """Map the schedule and the archive of a base, with nothing special about them."""

    class Schedule(ScheduleMixin, base):  # type: ignore[misc]  # whatever the base is
        __tablename__ = "schedule"

    class ArchivedJob(ArchivedJobMixin, base):  # type: ignore[misc]
        __tablename__ = "archived_job"

    return Schedule, ArchivedJob


def plain(base: Any) -> tuple[Any, Any, Any]:
    """Map all three with nothing special about them."""

    class Job(JobMixin, base):  # type: ignore[misc]
        __tablename__ = "job"

    return Job, *others(base)


# --- bases ------------------------------------------------------------------------------------------------------------


def on_declarative_base() -> Shape:
    class Base(DeclarativeBase): ...

    return Shape(*plain(Base))


def on_the_function_declarative_base() -> Shape:
    return Shape(*plain(declarative_base()))


def on_async_attrs() -> Shape:
    class Base(AsyncAttrs, DeclarativeBase): ...

    return Shape(*plain(Base))


def by_registry_mapped() -> Shape:
    mapped = registry()

    @mapped.mapped
    class Job(JobMixin):
        __tablename__ = "job"

    @mapped.mapped
    class Schedule(ScheduleMixin):
        __tablename__ = "schedule"

    @mapped.mapped
    class ArchivedJob(ArchivedJobMixin):
        __tablename__ = "archived_job"

    return Shape(Job, Schedule, ArchivedJob)


def on_a_dataclass_base() -> Shape:
    class Base(MappedAsDataclass, DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        tenant: Mapped[str] = mapped_column(String(50), insert_default="house")
        remark: Mapped[str | None] = mapped_column(default=None)

    return Shape(
        Job,
        *others(Base),
        columns={"tenant": "north", "remark": "soon"},
        filled={"tenant": "house", "remark": None},
        is_dataclass=True,
    )


def as_dataclasses_themselves() -> Shape:
    class Base(DeclarativeBase): ...

    class Job(MappedAsDataclass, JobMixin, Base, unsafe_hash=True):
        __tablename__ = "job"
        tenant: Mapped[str] = mapped_column(String(50), insert_default="house")

    class Schedule(MappedAsDataclass, ScheduleMixin, Base):
        __tablename__ = "schedule"

    class ArchivedJob(MappedAsDataclass, ArchivedJobMixin, Base):
        __tablename__ = "archived_job"
        tenant: Mapped[str | None] = mapped_column(default=None)

    return Shape(Job, Schedule, ArchivedJob, {"tenant": "north"}, {"tenant": "house"}, is_dataclass=True)


def as_dataclasses_with_the_usual_constructor() -> Shape:
    """With `init=False`, the constructor is SQLAlchemy's, and takes all columns."""

    class Base(MappedAsDataclass, DeclarativeBase): ...

    class Job(JobMixin, Base, init=False):
        __tablename__ = "job"
        tenant: Mapped[str] = mapped_column(insert_default="house")

    class Schedule(ScheduleMixin, Base, init=False):
        __tablename__ = "schedule"

    class ArchivedJob(ArchivedJobMixin, Base, init=False):
        __tablename__ = "archived_job"

    return Shape(Job, Schedule, ArchivedJob, {"tenant": "north"}, {"tenant": "house"})


def by_registry_mapped_as_dataclass() -> Shape:
    mapped = registry()

    @mapped.mapped_as_dataclass
    class Job(JobMixin):
        __tablename__ = "job"
        tenant: Mapped[str] = mapped_column(insert_default="house")

    @mapped.mapped_as_dataclass
    class Schedule(ScheduleMixin):
        __tablename__ = "schedule"

    @mapped.mapped_as_dataclass
    class ArchivedJob(ArchivedJobMixin):
        __tablename__ = "archived_job"

    return Shape(Job, Schedule, ArchivedJob, {"tenant": "north"}, {"tenant": "house"}, is_dataclass=True)


def on_an_abstract_base() -> Shape:
    class Base(DeclarativeBase): ...

    class AbstractJob(JobMixin, Base):
        __abstract__ = True
        tenant: Mapped[str | None]

    class Job(AbstractJob):
        __tablename__ = "job"

    return Shape(Job, *others(Base), {"tenant": "north"}, {"tenant": None})


def on_a_base_that_has_columns() -> Shape:
    """A base that gives each table a name, a key, and times of its own: where names meet, ours stand."""

    class Base(DeclarativeBase):
        id: Mapped[int] = mapped_column(primary_key=True)
        created_at: Mapped[datetime] = mapped_column(server_default=func.now())
        updated_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())

        @declared_attr.directive
        @classmethod
        def __tablename__(cls) -> str:
            return cls.__name__.lower()

    class Job(JobMixin, Base): ...

    class Schedule(ScheduleMixin, Base): ...

    class ArchivedJob(ArchivedJobMixin, Base): ...

    return Shape(Job, Schedule, ArchivedJob)


def on_flask_sqlalchemy() -> Shape:
    from flask_sqlalchemy import SQLAlchemy

    db: Any = SQLAlchemy()

    class Job(JobMixin, db.Model):  # type: ignore[misc]
        tenant = db.Column(db.String(50), default="house")

    class Schedule(ScheduleMixin, db.Model): ...  # type: ignore[misc]

    class ArchivedJob(ArchivedJobMixin, db.Model): ...  # type: ignore[misc]

    return Shape(Job, Schedule, ArchivedJob, {"tenant": "north"}, {"tenant": "house"}, flask=db)


def with_a_type_annotation_map() -> Shape:
    class Base(DeclarativeBase):
        type_annotation_map = {str: String(7), datetime: DateTime(), int: String(3), dict[str, Any]: Text()}  # noqa: RUF012

    class Job(JobMixin, Base):
        __tablename__ = "job"
        tenant: Mapped[str | None]
        wanted_on: Mapped[datetime | None]

    wanted_on = datetime(2027, 5, 3)
    return Shape(
        Job,
        *others(Base),
        {"tenant": "north", "wanted_on": wanted_on},
        {"tenant": None, "wanted_on": None},
    )


# --- inheritance ------------------------------------------------------------------------------------------------------


def polymorphic(base: Any) -> Any:
    """Map a job whose rows say of which class they are."""

    class Job(JobMixin, base):  # type: ignore[misc]
        __tablename__ = "job"
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    return Job


def single_table_family() -> tuple[Any, Any, Any]:
    """Map a job and two subclasses in its table, each with a column of its own."""

    class Base(DeclarativeBase): ...

    parent = polymorphic(Base)

    class ReportJob(parent):  # type: ignore[misc, valid-type]
        pages: Mapped[int | None]
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    class MailJob(parent):  # type: ignore[misc, valid-type]
        sender: Mapped[str | None]
        __mapper_args__ = {"polymorphic_identity": "mail"}  # noqa: RUF012

    return parent, ReportJob, MailJob


def joined_family() -> tuple[Any, Any]:
    """Map a job, and a subclass with a table joined to its."""

    class Base(DeclarativeBase): ...

    parent = polymorphic(Base)

    class ReportJob(parent):  # type: ignore[misc, valid-type]
        __tablename__ = "report_job"
        id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)
        pages: Mapped[int | None]
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    return parent, ReportJob


def base_of(model: Any) -> Any:
    """Make a base in the MetaData of a model."""

    class Base(DeclarativeBase):
        metadata = inspect(model).local_table.metadata

    return Base


def as_a_single_table_child() -> Shape:
    parent, child, _ = single_table_family()
    return Shape(child, *others(base_of(parent)), {"pages": 3}, {"pages": None, "kind": "report"})


def as_a_single_table_parent() -> Shape:
    parent, *_ = single_table_family()
    return Shape(parent, *others(base_of(parent)), {}, {"kind": "job"})


def as_the_parent_of_a_joined_child() -> Shape:
    parent, child = joined_family()
    return Shape(
        parent,
        *others(base_of(parent)),
        filled={"kind": "job"},
        first=lambda: [child(type="other", pages=3, queue="reports")],
    )


BASES: list[Callable[[], Shape]] = [
    on_declarative_base,
    on_the_function_declarative_base,
    on_async_attrs,
    by_registry_mapped,
    on_a_dataclass_base,
    as_dataclasses_themselves,
    as_dataclasses_with_the_usual_constructor,
    by_registry_mapped_as_dataclass,
    on_an_abstract_base,
    on_a_base_that_has_columns,
    on_flask_sqlalchemy,
    with_a_type_annotation_map,
    as_a_single_table_child,
    as_a_single_table_parent,
    as_the_parent_of_a_joined_child,
]
