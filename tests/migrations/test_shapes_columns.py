from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import CheckConstraint, ForeignKey, event, func, select
from sqlalchemy.exc import IntegrityError, StatementError
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    backref,
    column_property,
    composite,
    mapped_column,
    relationship,
    synonym,
)

from sqla_jobs import InvalidOption, JobMixin, Jobs, enqueue, enqueue_many

if TYPE_CHECKING:
    from sqlalchemy import Engine


class Base(DeclarativeBase): ...


class Customer(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Place:
    row: int | None
    seat: int | None


class Job(JobMixin, Base):
    __tablename__ = "job"
    __table_args__ = (CheckConstraint("pages > 0"),)
    tenant: Mapped[str] = mapped_column("tenant_code", default="house")
    wanted_on: Mapped[datetime | None]
    pages: Mapped[int | None]
    owner_id: Mapped[int | None] = mapped_column(ForeignKey(Customer.id))
    owner: Mapped[Customer | None] = relationship(Customer, lazy="joined", backref=backref("jobs"))
    alias: Mapped[str] = synonym("tenant")
    loud: Mapped[str] = column_property(func.upper(tenant))
    row: Mapped[int | None]
    seat: Mapped[int | None]
    place: Mapped[Place] = composite(Place, "row", "seat")

    @hybrid_property
    def is_long(self) -> bool:
        return (self.pages or 0) > 100


jobs = Jobs(Job)


@jobs.handler
def work() -> None: ...


@pytest.fixture
def session(engine: Engine) -> Any:
    """Give a session on a database with the tables and one customer, of each kind in turn."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Customer(id=1))
        session.commit()
        yield session


def stored(session: Session) -> list[str]:
    session.rollback()
    return list(session.scalars(select(Job.tenant).order_by(Job.id)))


def test_own_columns_are_set_by_the_names_of_their_attributes(session: Session) -> None:
    """A column is called as the model's attribute is, whatever its name is in the database."""
    columns = {"tenant": "north", "wanted_on": datetime(2027, 5, 3), "pages": 3, "owner_id": 1, "row": 4, "seat": 5}

    job = enqueue(session, work.using(columns=columns))
    enqueue_many(session, [work.using(columns=columns).job(), work.using(columns=columns, key="k").job()])
    session.commit()

    rows = session.scalars(select(Job)).unique().all()
    assert [{name: getattr(row, name) for name in columns} for row in rows] == [columns] * 3
    assert (job.owner, job.loud, job.place) == (session.get(Customer, 1), "NORTH", Place(4, 5))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tenent", "Job has no column 'tenent'; its own columns: .*tenant"),
        ("tenant_code", "Job has no column 'tenant_code'"),
        ("owner", "Job has no column 'owner'"),
        ("alias", "Job has no column 'alias'"),
        ("is_long", "Job has no column 'is_long'"),
        ("place", "Job has no column 'place'"),
        ("loud", "Job has no column 'loud'"),
        ("metadata", "Job has no column 'metadata'"),
        ("status", "'status' is one of the library's"),
        ("id", "'id' is one of the library's"),
        ("payload", "'payload' is one of the library's"),
        ("run_at", "'run_at' is one of the library's"),
        ("idempotency_key", "'idempotency_key' is one of the library's"),
        ("is_duplicate", "'is_duplicate' is one of the library's"),
    ],
)
def test_name_that_is_no_own_column_is_refused(name: str, says: str) -> None:
    """Unknown names, the database's names, relationships and all else that is no column, and the library's columns."""
    with pytest.raises(InvalidOption, match=says):
        work.using(columns={"pages": 3, name: "north"})


def test_refusal_names_only_what_can_be_given() -> None:
    """The error for a misspelt column lists the app's own columns, and nothing else."""
    with pytest.raises(InvalidOption) as caught:
        work.using(columns={"tenent": "north"})

    assert str(caught.value).endswith("its own columns: owner_id, pages, row, seat, tenant, wanted_on")


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"wanted_on": "no date"}, StatementError),
        ({"pages": object()}, StatementError),
        ({"pages": -1}, IntegrityError),
        ({"tenant": None}, IntegrityError),
        ({"owner_id": 2}, IntegrityError),
    ],
    ids=["no date", "no number", "against a CHECK", "NULL", "no such row"],
)
@pytest.mark.parametrize(("is_many", "key"), [(False, None), (True, None), (True, "k")], ids=["one", "many", "keyed"])
def test_value_that_the_database_refuses_is_its_error(
    session: Session, columns: dict[str, Any], error: type[Exception], is_many: bool, key: str | None
) -> None:
    """What does not fit the column raises as in any insert; a savepoint keeps the rest, and the job is not stored."""
    refused = work.using(columns=columns, key=key)
    enqueue(session, work)

    with pytest.raises(error), session.begin_nested():
        if is_many:
            enqueue_many(session, [work.job(), refused.job()])
        else:
            enqueue(session, refused)

    session.commit()
    assert stored(session) == ["house"]
    assert not enqueue(session, work.using(key="k")).is_duplicate


@pytest.mark.parametrize("is_many", [False, True], ids=["one", "many"])
def test_none_that_is_given_is_null_and_no_default(engine: Engine, is_many: bool) -> None:
    """What is given stands, None too: a default is for columns that nobody has given."""

    class NullBase(DeclarativeBase): ...

    class Nullable(JobMixin, NullBase):
        __tablename__ = "nullable"
        tenant: Mapped[str | None] = mapped_column(default="house")
        place: Mapped[str | None] = mapped_column(server_default="street")

    NullBase.metadata.create_all(engine)
    handler: Any = Jobs(Nullable).handler(name="send")(lambda: None)
    given = handler.using(columns={"tenant": None, "place": None})

    with Session(engine) as session:
        if is_many:
            enqueue_many(session, [given.job(), given.using(key="k").job()])
        else:
            enqueue(session, given)

        assert set(session.execute(select(Nullable.tenant, Nullable.place))) == {(None, None)}


# --- defaults ---------------------------------------------------------------------------------------------------------


def by_type(context: Any) -> str:
    return f"to {context.get_current_parameters()['type']}"


def labelled() -> Any:
    class LabelBase(DeclarativeBase): ...

    class Labelled(JobMixin, LabelBase):
        __tablename__ = "labelled"
        label: Mapped[str] = mapped_column(default=by_type)

    return Labelled


@pytest.mark.parametrize("key", [None, "k"])
def test_default_that_reads_the_other_columns_is_filled_by_enqueue(engine: Engine, key: str | None) -> None:
    """A default may look at the row that it is for, as in any insert."""
    model = labelled()
    model.metadata.create_all(engine)
    handler: Any = Jobs(model).handler(name="send")(lambda: None)

    with Session(engine) as session:
        job = enqueue(session, handler.using(key=key))

        assert job.label == "to send"


@pytest.mark.parametrize("key", [None, "k"])
def test_default_that_reads_the_other_columns_is_filled_by_enqueue_many(engine: Engine, key: str | None) -> None:
    """It does for each row of many, too."""
    model = labelled()
    model.metadata.create_all(engine)
    handler: Any = Jobs(model).handler(name="send")(lambda: None)

    with Session(engine) as session:
        enqueue_many(session, [handler.using(key=key).job(), handler.using(queue="mail").job()])

        assert session.scalars(select(model.label)).all() == ["to send", "to send"]


def test_row_version_of_the_app_counts_from_its_default(engine: Engine) -> None:
    """A `version_id_col` with a default holds for jobs as for other rows: a stale change by the ORM is refused."""

    class VersionBase(DeclarativeBase): ...

    class Versioned(JobMixin, VersionBase):
        __tablename__ = "versioned"
        version: Mapped[int] = mapped_column(default=1)
        remark: Mapped[str | None]
        __mapper_args__ = {"version_id_col": version}  # noqa: RUF012

    VersionBase.metadata.create_all(engine)
    handler: Any = Jobs(Versioned).handler(name="send")(lambda: None)
    with Session(engine) as session:
        job: Any = enqueue(session, handler)
        session.commit()

        job.remark = "late"
        session.commit()

        assert job.version == 2


def test_engine_sees_no_value_in_the_text_of_the_statement(session: Session) -> None:
    """Own values go as parameters: what looks like SQL in them is stored as it is."""
    statements: list[str] = []

    @event.listens_for(session.get_bind(), "before_cursor_execute")
    def note(*arguments: Any) -> None:
        statements.append(str(arguments[2]))

    nasty = "'); DROP TABLE job; -- %s :x %(y)s"
    enqueue(session, work.using(columns={"tenant": nasty}))
    enqueue_many(session, [work.using(columns={"tenant": nasty}).job()])
    session.commit()

    assert stored(session) == [nasty, nasty]
    assert not [text for text in statements if "DROP TABLE" in text]
