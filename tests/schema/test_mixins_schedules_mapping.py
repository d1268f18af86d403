from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import ForeignKey, Integer, String, bindparam, func, insert, literal, select, text, update
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    Session,
    declarative_base,
    mapped_column,
    registry,
)

from sqla_jobs.errors import LONGEST_DELAY, InvalidModel, InvalidOption, InvalidSchedule
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.mixins import ArchivedJobMixin, ScheduleMixin
from sqla_jobs.testing import tick
from tests.schema.models import job_model, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

NEW: dict[str, Any] = {"name": "nightly", "job_type": "send", "cron": "0 2 * * *"}
SECOND = timedelta(seconds=1)


class Base(DeclarativeBase): ...


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"
    label: Mapped[str | None] = mapped_column(String(50))


def on_declarative_base() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Schedule(ScheduleMixin, Base):
        __tablename__ = "schedule"

    return Schedule


def with_the_mixin_last() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Schedule(Base, ScheduleMixin):
        __tablename__ = "schedule"

    return Schedule


def on_the_function_declarative_base() -> type[Any]:
    base: Any = declarative_base()

    class Schedule(ScheduleMixin, base):  # type: ignore[misc]  # a base made by a function is none for checkers
        __tablename__ = "schedule"

    return Schedule


def by_registry_mapped() -> type[Any]:
    @registry().mapped
    class Schedule(ScheduleMixin):
        __tablename__ = "schedule"

    return Schedule


def on_an_abstract_base() -> type[Any]:
    class Base(DeclarativeBase): ...

    class AbstractSchedule(ScheduleMixin, Base):
        __abstract__ = True

    class Schedule(AbstractSchedule):
        __tablename__ = "schedule"

    return Schedule


def with_a_type_annotation_map() -> type[Any]:
    class Base(DeclarativeBase):
        type_annotation_map = {str: String(7), datetime: Integer(), timedelta: String(3), bool: Integer()}  # noqa: RUF012

    class Schedule(ScheduleMixin, Base):
        __tablename__ = "schedule"

    return Schedule


def with_single_table_children() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Schedule(ScheduleMixin, Base):
        __tablename__ = "schedule"
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "plain"}  # noqa: RUF012

    class ReportSchedule(Schedule):
        pages: Mapped[int | None] = mapped_column(Integer)
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    return ReportSchedule


def on_a_dataclass_base() -> type[Any]:
    class Base(MappedAsDataclass, DeclarativeBase): ...

    class Schedule(ScheduleMixin, Base):
        __tablename__ = "schedule"
        tenant: Mapped[str] = mapped_column(String(50), default="house")

    return Schedule


def as_a_dataclass_itself() -> type[Any]:
    class Base(DeclarativeBase): ...

    class Schedule(MappedAsDataclass, ScheduleMixin, Base):
        __tablename__ = "schedule"
        tenant: Mapped[str] = mapped_column(String(50), default="house")

    return Schedule


def by_registry_mapped_as_dataclass() -> type[Any]:
    @registry().mapped_as_dataclass
    class Schedule(ScheduleMixin):
        __tablename__ = "schedule"
        tenant: Mapped[str] = mapped_column(String(50), default="house")

    return Schedule


PLAIN = [
    *(on_declarative_base, with_the_mixin_last, on_the_function_declarative_base, by_registry_mapped),
    *(on_an_abstract_base, with_a_type_annotation_map, with_single_table_children),
]
DATACLASSES = [on_a_dataclass_base, as_a_dataclass_itself, by_registry_mapped_as_dataclass]


@pytest.mark.parametrize("form", [*PLAIN, *DATACLASSES])
def test_schedule_table_is_whole_in_every_form_of_mapping(form: Callable[[], type[Any]]) -> None:
    """However an app maps its class, the table has our columns first, of our types, and our parts once."""
    usual, table = table_of(Schedule), table_of(form())

    ours = [column.name for column in usual.columns if column.name != "label"]
    assert [column.name for column in table.columns][: len(ours)] == ours
    for name in ours:
        assert (repr(table.c[name].type), table.c[name].nullable) == (repr(usual.c[name].type), usual.c[name].nullable)
    assert sorted(str(index.name) for index in table.indexes) == sorted(str(index.name) for index in usual.indexes)
    assert {str(each.name) for each in table.constraints} == {str(each.name) for each in usual.constraints}
    assert table.dialect_options["sqlite"]["autoincrement"] is True


@pytest.mark.parametrize("form", PLAIN)
def test_schedule_is_constructed_and_checked_in_every_form_of_mapping(
    form: Callable[[], type[Any]], sqlite_engine: Engine
) -> None:
    """A schedule is an object of the app's class, and is checked where it is made."""
    model = form()
    table_of(model).metadata.create_all(sqlite_engine)

    with Session(sqlite_engine) as session:
        session.add(model(**NEW, offset=SECOND))
        session.commit()

        stored = session.scalars(select(model)).one()
        assert (type(stored), stored.cron, stored.offset) == (model, "0 2 * * *", SECOND)
        with pytest.raises(InvalidSchedule):
            model(**NEW | {"cron": "nonsense"})


@pytest.mark.parametrize("form", DATACLASSES)
def test_schedule_of_a_dataclass_is_filled_after_its_construction(
    form: Callable[[], type[Any]], sqlite_engine: Engine
) -> None:
    """Our columns are no fields of an app's dataclass: they are set on the object, and checked there."""
    model = form()
    table_of(model).metadata.create_all(sqlite_engine)
    with pytest.raises(TypeError, match="name"):
        model(**NEW)

    with Session(sqlite_engine) as session:
        schedule = model(tenant="north")
        for name, value in NEW.items():
            setattr(schedule, name, value)
        session.add(schedule)
        session.commit()

        assert (schedule.id, schedule.tenant, schedule.timezone, schedule.payload) == (1, "north", "UTC", {})
        with pytest.raises(InvalidSchedule):
            schedule.cron = "nonsense"


@pytest.mark.parametrize("form", [*PLAIN, *DATACLASSES])
def test_schedule_of_the_code_is_an_object_of_the_registered_class(
    form: Callable[[], type[Any]], sqlite_engine: Engine
) -> None:
    """A declared schedule gets its row through whatever class is registered, and the app's columns their defaults."""
    model = form()
    job = job_model()
    jobs: Jobs[Any] = Jobs(job, schedule=model)
    handler = jobs.handler(name="send")(lambda: None)
    jobs.schedule("nightly", handler, cron="0 2 * * *")
    for each in (job, model):
        table_of(each).metadata.create_all(sqlite_engine)

    with Session(sqlite_engine) as session:
        assert tick(session, jobs) == []

        stored = session.scalars(select(model)).one()
        assert (type(stored), stored.name, stored.declared_by) == (model, "nightly", "default")
        assert stored.next_run_at is not None
        assert getattr(stored, "tenant", "house") == "house"


def joined(mixin: type[Any], table: str) -> type[Any]:
    """Map a child with a table of its own, joined to its parent's."""

    class Base(DeclarativeBase): ...

    class Parent(mixin, Base):  # type: ignore[misc]  # each mixin in turn
        __tablename__ = table
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "parent"}  # noqa: RUF012

    class Child(Parent):
        __tablename__ = "child"
        id: Mapped[int] = mapped_column(ForeignKey(f"{table}.id"), primary_key=True)
        __mapper_args__ = {"polymorphic_identity": "child"}  # noqa: RUF012

    return Child


@pytest.mark.parametrize(("part", "mixin"), [("schedule", ScheduleMixin), ("archive", ArchivedJobMixin)])
def test_joined_child_is_no_registry_model_and_its_parent_is(part: str, mixin: type[Any]) -> None:
    """Our statements are of one table: `Jobs(…, schedule=Child)` says so, and names both ways out."""
    child = joined(mixin, part)
    options: dict[str, Any] = {part: child}

    with pytest.raises(InvalidModel, match=r"Child .* register the parent, or use single-table inheritance"):
        Jobs(job_model(), **options)

    options[part] = child.__mro__[1]
    assert isinstance(Jobs(job_model(), **options), Jobs)
    assert table_of(child).indexes == set()


@pytest.mark.parametrize(
    ("part", "model", "says"),
    [
        ("schedule", job_model(), "Job has no ScheduleMixin among its bases: `class Job[(]ScheduleMixin, Base[)]`"),
        ("archive", Schedule, "Schedule has no ArchivedJobMixin among its bases"),
        ("archive", job_model(), "Job has no ArchivedJobMixin among its bases"),
        ("schedule", ScheduleMixin, "is not a mapped class with a table: `class …[(]ScheduleMixin, Base[)]"),
        ("archive", "ArchivedJob", "is not a mapped class with a table: `class …[(]ArchivedJobMixin, Base[)]"),
    ],
    ids=["jobs as schedules", "schedules as archive", "jobs as archive", "mixin", "text"],
)
def test_model_of_another_kind_is_refused_with_the_remedy(part: str, model: Any, says: str) -> None:
    """Each of a registry's tables is of its own mixin, and the error says how to write the class."""
    with pytest.raises(InvalidModel, match=says):
        Jobs(job_model(), **{part: model})


BAD: dict[str, Any] = {
    "name": "",
    "job_type": None,
    "queue": "",
    "cron": "0 0 30 2 *",
    "timezone": "Mars/Phobos",
    "offset": 30,
    "catch_up": "never",
    "catch_up_limit": 0,
    "overlap": "maybe",
}


@pytest.mark.parametrize("part", BAD)
def test_bad_part_is_refused_when_it_is_set(part: str) -> None:
    """The line that writes what no scheduler can go by is the one that raises, and the object stays as it was."""
    schedule = Schedule(**NEW)
    before = getattr(schedule, part)

    with pytest.raises(InvalidOption):
        setattr(schedule, part, BAD[part])
    with pytest.raises(InvalidOption):
        Schedule(**NEW | {part: BAD[part]})

    assert getattr(schedule, part) == before


EXPRESSIONS: list[Any] = [
    func.lower("WEEKLY"),
    literal("weekly"),
    text("'weekly'"),
    select(literal("weekly")).scalar_subquery(),
    bindparam("given", "weekly"),
    Schedule.label,
    Schedule.__table__.c.label,
]


@pytest.mark.parametrize(
    "expression", EXPRESSIONS, ids=["function", "literal", "text", "subquery", "parameter", "attribute", "column"]
)
def test_sql_expression_is_let_pass(tables: Engine, expression: Any) -> None:
    """What the database works out has no value yet: it is stored, and a scheduler looks at what came of it."""
    with Session(tables) as session:
        session.add(schedule := Schedule(**NEW, label="weekly"))
        session.flush()

        schedule.name = expression
        session.commit()

        assert schedule.name == "weekly"


@pytest.fixture
def tables(engine: Engine) -> Engine:
    """Give an engine on a database that has the schedules."""
    Base.metadata.create_all(engine)
    return engine


@pytest.mark.parametrize(
    "offset", [None, timedelta(0), SECOND / 1000, 30 * SECOND, LONGEST_DELAY, LONGEST_DELAY - SECOND / 1_000_000]
)
def test_offset_comes_back_as_it_was(tables: Engine, offset: timedelta | None) -> None:
    """A duration is stored as a number of seconds, to the microsecond."""
    with Session(tables) as session:
        session.add(schedule := Schedule(**NEW, offset=offset))
        session.commit()

        assert schedule.offset == offset
        stored = session.execute(text('SELECT "offset" FROM schedule')).scalar_one()
        assert stored == (None if offset is None else offset.total_seconds())


def test_offset_is_a_number_of_seconds_to_plain_sql(tables: Engine) -> None:
    """What people write by hand is read as seconds, and compared as seconds."""
    with Session(tables) as session:
        session.add(schedule := Schedule(**NEW, offset=SECOND))
        session.commit()

        for number, expected in (("30", 30 * SECOND), ("0.25", SECOND / 4), ("NULL", None)):
            session.execute(text(f'UPDATE schedule SET "offset" = {number}'))
            session.expire_all()
            assert schedule.offset == expected
        session.execute(update(Schedule).values(offset=90 * SECOND))
        assert session.scalars(select(Schedule).where(Schedule.offset > 89 * SECOND)).one() is schedule


@pytest.mark.parametrize("value", [30, 30.0, "30", datetime(2024, 1, 1, tzinfo=UTC)], ids=["int", "float", "str", "at"])
def test_value_that_is_no_duration_is_refused(tables: Engine, value: Any) -> None:
    """Bulk statements pass by the validators, so the type refuses a number: minutes or seconds, nobody can tell."""
    row = {**NEW, "created_at": datetime(2024, 1, 1, tzinfo=UTC), "offset": value}
    with Session(tables) as session:
        for statement in (insert(Schedule).values(row), update(Schedule).values(offset=value)):
            with pytest.raises(StatementError, match="a timedelta is wanted, and this is a") as caught:
                session.execute(statement)
            assert isinstance(caught.value.orig, TypeError)
