from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import ForeignKey, String, case, delete, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, column_property, mapped_column

from sqla_jobs import InvalidModel, JobMixin, Jobs, current_job, enqueue, enqueue_many
from tests.migrations.shape_scene import Scene, opened
from tests.migrations.shapes import Shape, base_of, joined_family, others, single_table_family
from tests.migrations.shapes_of_tables import with_rows_that_refer_to_it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture
def family(database_url: str) -> Iterator[tuple[Scene, Any, Any]]:
    """Give an app on a parent, with two subclasses in its table, on an empty database of each kind in turn."""
    parent, report, mail = single_table_family()
    with opened(Shape(parent, *others(base_of(parent))), database_url) as scene:
        yield scene, report, mail


def teller(jobs: Jobs[Any], name: str, told: list[tuple[str, str]]) -> Any:
    """Register a handler that tells its registry's name and the class of the job that it loads."""

    def tell(session: Session) -> None:
        told.append((jobs.name, type(current_job().load(session)).__name__))

    return jobs.handler(name=name, max_attempts=1)(tell)


def test_workers_of_two_subclasses_run_each_their_own_jobs(family: tuple[Scene, Any, Any]) -> None:
    """Each registry's worker takes its own types from the table that they share, with the columns of its class."""
    scene, report, mail = family
    told: list[tuple[str, str]] = []
    reports, mails = scene.registry(report, name="reports"), scene.registry(mail, name="mails")
    build = teller(reports, "build", told).using(columns={"pages": 3})
    send = teller(mails, "send", told).using(columns={"sender": "ann"})
    with scene.transaction() as session:
        enqueue(session, send)
        enqueue_many(session, [build.job(), build.using(key="k").job()])
        enqueue(session, scene.note, text="of the parent")

    scene.worker(reports).run_until_idle()
    with scene.sessions() as session:
        assert session.scalars(select(mail.status)).all() == ["ready"]
    scene.worker(mails).run_until_idle()
    scene.worker().run_until_idle()

    assert told == [("reports", "ReportJob"), ("reports", "ReportJob"), ("mails", "MailJob")]
    with scene.sessions() as session:
        assert set(session.scalars(select(scene.shape.job.status))) == {"done"}
        assert session.scalars(select(report.pages)).all() == [3, 3]
        assert session.scalars(select(mail.sender)).all() == ["ann"]


def test_class_that_an_expression_tells_is_refused() -> None:
    """`polymorphic_on` is a column: an INSERT can't say what an expression will make of it."""

    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        pages: Mapped[int | None] = mapped_column()
        kind: Mapped[str] = column_property(case((pages.is_(None), "job"), else_="report"))
        __mapper_args__ = {"polymorphic_on": kind, "polymorphic_identity": "job"}  # noqa: RUF012

    with pytest.raises(InvalidModel, match="an expression.*polymorphic_on a column"):
        Jobs(Job)


def test_discriminator_of_another_name_is_filled(engine: Engine) -> None:
    """The column that tells the class may be called otherwise in Python, in the table and in the database."""

    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        kind: Mapped[str] = mapped_column("job kind", String(20), key="job_kind")
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    class ReportJob(Job):
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    Base.metadata.create_all(engine)
    report: Any = Jobs(ReportJob).handler(name="build")(lambda: None)

    with Session(engine) as session:
        job = enqueue(session, report)
        enqueue_many(session, [report.job(), report.using(key="k").job()])

        assert (type(job), job.kind) == (ReportJob, "report")
        assert session.scalars(select(ReportJob.kind)).all() == ["report"] * 3


# --- joined children --------------------------------------------------------------------------------------------------


def test_joined_child_is_refused_and_its_parent_runs_its_rows(database_url: str) -> None:
    """`Jobs` takes the parent alone; rows of the child that are of a known type run, and load as the child."""
    parent, child = joined_family()
    with pytest.raises(InvalidModel, match="register the parent"):
        Jobs(child)

    with opened(Shape(parent, *others(base_of(parent)), filled={"kind": "job"}), database_url) as scene:
        with scene.transaction() as session:
            enqueue(session, scene.note, text="parent's")
            session.add(child(type="_note", payload={"text": "child's"}, pages=3, idempotency_key="k"))
            session.flush()
            assert type(enqueue(session, scene.note.using(key="k"), text="again")) is child
        scene.worker().run_until_idle()

        assert sorted(scene.ran, key=str) == [("child's", child), ("parent's", parent)]
        with scene.transaction() as session:
            found = session.scalars(select(child)).one()
            assert (found.status, found.pages) == ("done", 3)
            session.delete(found)
        assert (scene.count(parent), scene.count(child)) == (1, 0)


# --- rows that refer to a job -----------------------------------------------------------------------------------------


def test_job_is_claimed_while_a_row_that_refers_to_it_is_inserted(postgresql_url: str) -> None:
    """A foreign key locks the job's key, in a transaction that may stay open: the claim does not mind."""
    with opened(with_rows_that_refer_to_it(), postgresql_url) as scene, scene.sessions() as other:
        line = scene.shape.more["line"]
        with scene.transaction() as session:
            job_id = enqueue(session, scene.note, text="one").id
        other.add(line(job_id=job_id))
        other.flush()

        scene.worker().run_until_idle()

        assert scene.ran == [("one", scene.shape.job)]
        other.commit()
        assert scene.count(line) == 1


@pytest.mark.parametrize("is_bulk", [False, True], ids=["session.delete", "bulk"])
def test_rows_that_refer_to_a_deleted_job_follow_their_foreign_keys(database_url: str, is_bulk: bool) -> None:
    """ON DELETE CASCADE takes the app's rows with the job, and SET NULL leaves them."""
    with opened(with_rows_that_refer_to_it(), database_url) as scene:
        job, line, order = scene.shape.job, scene.shape.more["line"], scene.shape.more["order"]
        with scene.transaction() as session:
            new = enqueue(session, scene.note, text="one")
            new.lines.append(line())
            session.add(order(job_id=new.id))
        scene.worker().run_until_idle()

        with scene.transaction() as session:
            if is_bulk:
                session.execute(delete(job))
            else:
                session.delete(session.scalars(select(job)).one())

        assert (scene.count(job), scene.count(line)) == (0, 0)
        with scene.sessions() as session:
            assert session.scalars(select(order.job_id)).all() == [None]


def test_row_and_job_that_refer_to_each_other_are_stored_in_one_transaction(engine: Engine) -> None:
    """The app's row may refer to the job that works on it, and the job's own column to the row."""

    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        order_id: Mapped[int | None] = mapped_column(ForeignKey("order.id", use_alter=True, name="fk_order"))

    class Order(Base):
        __tablename__ = "order"
        id: Mapped[int] = mapped_column(primary_key=True)
        job_id: Mapped[int | None] = mapped_column(ForeignKey("job.id"))

    Base.metadata.create_all(engine)
    handler: Any = Jobs(Job).handler(name="pack")(lambda: None)

    with Session(engine) as session:
        order = Order()
        session.add(order)
        session.flush()
        order.job_id = enqueue(session, handler.using(columns={"order_id": order.id})).id
        session.commit()

        assert session.scalars(select(Order.job_id)).one() == session.scalars(select(Job.id)).one()
        assert session.scalars(select(Job.order_id)).one() == order.id
