"""Jobs that differ by their payloads alone, which go to the database as one array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import JSON, String, Text, TypeDecorator, cast, event, func, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.mixins import JobMixin

if TYPE_CHECKING:
    from sqlalchemy import Engine


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "plain_job"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012  # SQLAlchemy's way
    kind: Mapped[str] = mapped_column("kind_of_job", String(20))
    tenant: Mapped[str] = mapped_column("tenant_name", String(20), default="house")
    size: Mapped[int] = mapped_column(insert_default=func.abs(-3))
    level: Mapped[int] = mapped_column(server_default=text("1"))


class Errand(Job):
    __mapper_args__ = {"polymorphic_identity": "errand"}  # noqa: RUF012


class Sealed(TypeDecorator[Any]):
    """JSON as the app stores it."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return {"sealed": value}

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value["sealed"]


class SealedJob(JobMixin, Base):
    __tablename__ = "sealed_job"
    payload: Mapped[dict[str, Any]] = mapped_column(Sealed)


jobs = Jobs(Errand, max_payload=2**20)
sealed_jobs = Jobs(SealedJob)


@jobs.handler
def keep(*, value: Any) -> None: ...


@jobs.handler(queue="mail", max_attempts=3)
def send(number: int, *, urgent: bool = False) -> None: ...


@sealed_jobs.handler
def tidy(number: int) -> None: ...


VALUES: list[Any] = [
    0,
    2**70,
    -1.5,
    1e-300,
    "",
    "é\U0001f600\u2028\"\\/'%s:x",
    None,
    True,
    [],
    {},
    [1, [2, {"a": None}]],
    {"n": 1, "value": {"key": [0.1]}},
]


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """Give a session on the tables."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session


def test_rows_have_what_enqueue_gives_them(session: Session) -> None:
    """Options of the handler, the subclass, defaults of the app's columns: the row is as a single enqueue makes it."""
    enqueue(session, send, number=1)
    enqueue_many(session, [send.job(number=2), send.job(3, urgent=True)])
    enqueue_many(session, [keep.job(value=None)])

    rows = [{**row} for row in session.execute(select(*Job.__table__.c).order_by(Job.id)).mappings()]
    times = [(row.pop("created_at"), row.pop("run_at")) for row in rows]
    changed = [{name for name in rows[0] if row[name] != rows[0][name]} for row in rows]
    assert changed == [set(), {"id", "payload"}, {"id", "payload"}, {"id", "payload", "type", "queue", "max_attempts"}]
    assert [row["payload"] for row in rows] == [
        {"number": 1},
        {"number": 2},
        {"number": 3, "urgent": True},
        {"value": None},
    ]
    assert {(row["kind_of_job"], row["tenant_name"], row["size"], row["level"]) for row in rows} == {
        ("errand", "house", 3, 1)
    }
    assert all(created == due for created, due in times)


def test_payloads_come_back_as_they_were(session: Session) -> None:
    """Whatever JSON can say."""
    enqueue_many(session, [keep.job(value=value) for value in VALUES])

    assert session.scalars(select(Job.payload).order_by(Job.id)).all() == [{"value": value} for value in VALUES]


def test_payload_goes_through_a_type_of_the_app(session: Session) -> None:
    """Many are stored as one is: by the type that the app has put around the payload."""
    enqueue(session, tidy, number=1)
    enqueue_many(session, [tidy.job(number=2), tidy.job(number=3)])

    stored = session.scalars(select(func.length(cast(SealedJob.payload, Text))).order_by(SealedJob.id)).all()
    assert set(stored) == {len('{"sealed": {"number": 1}}')}
    assert session.scalars(select(SealedJob.payload).order_by(SealedJob.id)).all() == [{"number": n} for n in (1, 2, 3)]


def test_ids_come_in_the_order_of_the_inputs(session: Session) -> None:
    """Each result has the id of its own row, and ids rise with the inputs, of one kind or of several."""
    given = [send.job(number=n) for n in range(2500)] + [
        send.job(number=n) if n % 3 else keep.job(value=n) for n in range(90)
    ]

    results = enqueue_many(session, given[:2500]) + enqueue_many(session, given[2500:])

    assert [result.id for result in results] == sorted(result.id for result in results)
    payloads = {row.id: row.payload for row in session.execute(select(Job.id, Job.payload))}
    assert [payloads[result.id] for result in results] == [new_job.payload for new_job in given]


def test_large_payloads_are_stored_in_several_statements(session: Session) -> None:
    """One statement never carries many times the largest payload: a driver, or the server, would refuse it."""
    said: list[int] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *args: said.append(len(str(args[3]))))
    given = [keep.job(value=f"{n}:" + "x" * 900_000) for n in range(25)]

    results = enqueue_many(session, given)

    assert len(said) > 1
    assert max(said) < 20 * 2**20
    starts = {
        row.id: row.value[:3]
        for row in session.execute(select(Job.id, Job.payload["value"].as_string().label("value")))
    }
    assert [starts[result.id].partition(":")[0] for result in results] == [str(n) for n in range(25)]
