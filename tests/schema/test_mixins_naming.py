from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import MetaData, inspect, select
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.schema import CreateSchema

from sqla_jobs.schema.mixins import JobMixin
from tests.schema.models import INDEXES, insert_rows, job_model, names_in_database, parts_of, table_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

ALEMBICS = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""The naming convention that SQLAlchemy's and alembic's documentation recommend."""

LONG = "t" * 60


@pytest.mark.parametrize(
    ("naming", "index", "check"),
    [
        (None, "ix_job_{}", "ck_job_status"),
        (ALEMBICS, "ix_job_{}", "ck_job_status"),
        ({"ck": "chk_%(table_name)s_%(constraint_name)s"}, "ix_job_{}", "chk_job_status"),
        ({"ix": "%(table_name)s_%(constraint_name)s_idx"}, "job_{}_idx", "ck_job_status"),
        ({"ix": "idx_%(column_0_N_name)s"}, "ix_job_{}", "ck_job_status"),
    ],
    ids=["none", "alembic's", "ck", "ix with a name", "ix of columns"],
)
def test_names_respect_the_apps_naming_convention(engine: Engine, naming: Any, index: str, check: str) -> None:
    """A convention that asks for a name gets a short one to put in; else our names are final and can't collide."""
    model = job_model(naming=naming)

    table_of(model).metadata.create_all(engine)

    assert names_in_database(engine, "job") == ({index.format(token) for token in INDEXES}, {check})


@pytest.mark.parametrize(
    "naming", [None, ALEMBICS, {"ix": "index_of_%(table_name)s_for_%(constraint_name)s"}], ids=["none", "short", "long"]
)
def test_names_fit_when_the_table_has_60_characters(engine: Engine, naming: Any) -> None:
    """Names longer than the database takes are shortened by SQLAlchemy, stay apart, and are the same at each run."""
    model = job_model(table=LONG, naming=naming)

    table_of(model).metadata.create_all(engine)

    indexes, checks = names_in_database(engine, LONG)
    assert len(indexes) == len(INDEXES)
    assert len(checks) == 1
    if engine.dialect.name == "postgresql":
        assert all(len(name.encode()) <= 63 for name in indexes | checks)
        # The server would have cut what SQLAlchemy doesn't: then names would differ from the model's, for ever.
        shortened = {engine.dialect.identifier_preparer.format_index(index) for index in table_of(model).indexes}
        assert shortened == indexes


def two_tables(first: str, second: str) -> tuple[type[Any], type[Any]]:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = first

    class OtherJob(JobMixin, Base):
        __tablename__ = second

    return Job, OtherJob


@pytest.mark.parametrize("names", [("job", "mail_job"), (LONG + "a", LONG + "b")], ids=["short", "long"])
def test_two_job_tables_share_one_metadata(engine: Engine, names: tuple[str, str]) -> None:
    """An app may have several job tables: their parts have names of their own, also where those are cut."""
    models = two_tables(*names)

    table_of(models[0]).metadata.create_all(engine)

    found = [names_in_database(engine, name) for name in names]
    assert all(len(indexes) == len(INDEXES) and len(checks) == 1 for indexes, checks in found)
    assert found[0][0].isdisjoint(found[1][0])


def test_schema_is_respected(postgresql_engine: Engine) -> None:
    """With `schema=` all parts are in that schema, and two schemas may have tables of one name."""
    engine = postgresql_engine
    north, south = (job_model(schema=schema) for schema in ("north", "south"))

    with engine.begin() as connection:
        for model, schema in ((north, "north"), (south, "south")):
            connection.execute(CreateSchema(schema))
            table_of(model).metadata.create_all(connection)

    for schema in ("north", "south"):
        assert names_in_database(engine, "job", schema) == ({f"ix_job_{each}" for each in INDEXES}, {"ck_job_status"})
    assert inspect(engine).get_table_names() == []


def test_tables_of_one_name_in_two_schemas_share_one_metadata(postgresql_engine: Engine) -> None:
    """One MetaData may hold the same table name in several schemas."""

    class Base(DeclarativeBase): ...

    class North(JobMixin, Base):
        __tablename__ = "job"
        __table_args__ = {"schema": "north"}  # noqa: RUF012  # as SQLAlchemy's documentation writes it

    class South(JobMixin, Base):
        __tablename__ = "job"
        __table_args__ = {"schema": "south"}  # noqa: RUF012

    with postgresql_engine.begin() as connection:
        connection.execute(CreateSchema("north"))
        connection.execute(CreateSchema("south"))
        Base.metadata.create_all(connection)
        insert_rows(connection, table_of(North), {}, {})

    with Session(postgresql_engine) as session:
        assert len(session.scalars(select(North)).all()) == 2
        assert session.scalars(select(South)).all() == []


def test_table_copied_to_another_metadata_keeps_its_parts() -> None:
    """`to_metadata` copies each part once."""
    table = table_of(job_model())

    copy = table.to_metadata(MetaData())

    assert parts_of(copy) == parts_of(table)
    assert len(copy.indexes) == len(INDEXES)
