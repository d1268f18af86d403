from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Computed, Identity, String, delete, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, column_property, mapped_column

from sqla_jobs.operations.archive import archive_batch, delete_archived_batch
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin
from sqla_jobs.status import JobStatus
from tests.operations.archives import DAY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from sqlalchemy import Engine

NOW: timedelta = 0 * DAY


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def finish(session: Session, jobs: Jobs[Any], **columns: Any) -> int:
    """Enqueue a job of its own columns, and end it now."""
    handler = jobs.handler(name=f"send_{len(jobs.handlers.names)}")(lambda: None)
    job = enqueue(session, handler.using(columns=columns))
    job.status, job.finished_at = "done", job.created_at
    session.flush()
    return int(job.id)


def archived(session: Session, jobs: Jobs[Any]) -> None:
    """Archive all that is done, and see that it has left the table."""
    session.flush()
    assert archive_batch(session, jobs, JobStatus.DONE, NOW).changed > 0
    assert jobs.archive is not None
    assert session.execute(select(jobs.table.table.c.id)).all() == []


def test_own_columns_that_both_models_have_go_along(session: Session) -> None:
    """They are told by the attribute; what the database makes itself, or one model lacks, is left to it."""

    class Base(DeclarativeBase): ...

    schema = None if session.get_bind().dialect.name == "sqlite" else "Back Office"

    class Job(JobMixin, Base):
        __tablename__ = "The Jobs"
        __table_args__ = {"schema": schema}  # noqa: RUF012
        tenant: Mapped[str] = mapped_column("tenant name", String(50))
        page: Mapped[int] = mapped_column("Page")
        double: Mapped[int] = mapped_column(Computed('2 * "Page"'))
        number: Mapped[int | None] = mapped_column()
        draft: Mapped[str | None] = mapped_column()
        label = column_property(tenant + "!")

    class ArchivedJob(ArchivedJobMixin, Base):
        __tablename__ = "Old Jobs"
        page: Mapped[int] = mapped_column("SIDE")
        tenant: Mapped[str] = mapped_column("Owner", String(50))
        double: Mapped[int] = mapped_column("twice", Computed('2 * "SIDE"'))
        label: Mapped[str | None] = mapped_column()
        origin: Mapped[str] = mapped_column(default="queue")
        if schema is not None:
            number: Mapped[int] = mapped_column("No", Identity(always=True))

    if schema is not None:
        session.execute(text(f'CREATE SCHEMA "{schema}"'))
    Base.metadata.create_all(session.connection())
    jobs = Jobs(Job, archive=ArchivedJob)
    job_id = finish(session, jobs, tenant="ann", page=3, number=70, draft="?")

    archived(session, jobs)

    row = session.get_one(ArchivedJob, job_id)
    assert (row.tenant, row.page, row.double, row.origin, row.label) == ("ann", 3, 6, "queue", None)
    assert schema is None or row.number == 1
    assert delete_archived_batch(session, jobs, NOW).changed == 1


def test_subclasses_in_one_table_keep_their_class_and_columns(session: Session) -> None:
    """The column that tells the class is copied, and so are those of all classes, whichever is registered."""

    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    class MailJob(Job):
        to: Mapped[str | None] = mapped_column("mail_to", nullable=True)
        size: Mapped[int | None] = mapped_column("mail_size", nullable=True)
        __mapper_args__ = {"polymorphic_identity": "mail"}  # noqa: RUF012

    class ReportJob(Job):
        size: Mapped[int | None] = mapped_column("report_size", nullable=True)
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    class ArchivedJob(ArchivedJobMixin, Base):
        __tablename__ = "archived_job"
        sort: Mapped[str] = mapped_column("kind", String(20), default="job")
        kind: Mapped[str] = mapped_column("class", String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    class ArchivedMailJob(ArchivedJob):
        to: Mapped[str | None] = mapped_column("addressee", nullable=True)
        size: Mapped[int | None] = mapped_column("mail_size", nullable=True)
        __mapper_args__ = {"polymorphic_identity": "mail"}  # noqa: RUF012

    class ArchivedReportJob(ArchivedJob):
        size: Mapped[int | None] = mapped_column("report_size", nullable=True)
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    Base.metadata.create_all(session.connection())
    mail = finish(session, Jobs(MailJob), to="ann", size=1)
    report = finish(session, Jobs(ReportJob), size=2)
    plain = finish(session, Jobs(Job))

    archived(session, Jobs(ReportJob, archive=ArchivedReportJob))

    session.expunge_all()
    rows: dict[int, Any] = {row.id: row for row in session.scalars(select(ArchivedJob))}
    assert {job_id: type(row) for job_id, row in rows.items()} == {
        mail: ArchivedMailJob,
        report: ArchivedReportJob,
        plain: ArchivedJob,
    }
    assert (rows[mail].to, rows[mail].size, rows[report].size) == ("ann", 1, 2)
    assert {row.sort for row in rows.values()} == {"job"}


def test_archive_that_alone_has_classes_gets_its_own(session: Session) -> None:
    """Without a column to copy, the row is of the class that is registered."""

    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"

    class Old(ArchivedJobMixin, Base):
        __tablename__ = "old"
        kind: Mapped[str] = mapped_column("class", String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "old"}  # noqa: RUF012

    class OldJob(Old):
        __mapper_args__ = {"polymorphic_identity": "job"}  # noqa: RUF012

    Base.metadata.create_all(session.connection())
    jobs = Jobs(Job, archive=OldJob)
    finish(session, jobs)

    archived(session, jobs)

    assert [type(row) for row in session.scalars(select(Old))] == [OldJob]
    session.execute(delete(Old))
