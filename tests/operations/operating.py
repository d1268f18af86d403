"""An app on call: rows of every status, in its table and in its archive, on a clock that tests set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from sqlalchemy import Engine, ForeignKey, delete, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs.operations.batches import cancel_batch, count_jobs, delete_batch, requeue_batch
from sqla_jobs.operations.dead_letters import cancel_jobs, delete_jobs, requeue_jobs
from sqla_jobs.operations.groups import failure_groups
from sqla_jobs.operations.listing import JobFilter, find_jobs, show_job
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.why import why
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin
from sqla_jobs.testing import Clock

if TYPE_CHECKING:
    from collections.abc import Generator

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)

NOW: Final = datetime(2027, 5, 3, 12, 0, tzinfo=UTC)
"""What the clock is set to; it goes on from there. Tests keep a distance of minutes."""

STATUSES: Final = ("ready", "running", "done", "failed", "dead")


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


class Note(Base):
    """A row of the app's that refers to a job."""

    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"))


clock = Clock(Base.metadata)

jobs = Jobs(Job, archive=ArchivedJob, name="shop", now=clock.now)


@jobs.handler(aliases=["dispatch"])
def send(order_id: int = 1) -> None: ...


@jobs.handler(queue="mail")
def mail(to: str = "ann") -> None: ...


Operation = Callable[[Any, Jobs[Any], Any], Any]


def _on_all(operation: Any, where: JobFilter) -> Operation:
    return lambda session, registry, _: operation(session, registry, where)


LOOKS: Final[dict[str, Operation]] = {
    "find": _on_all(find_jobs, JobFilter(error="e")),
    "show": show_job,
    "why": why,
    "count": _on_all(count_jobs, JobFilter()),
    "groups": _on_all(failure_groups, JobFilter()),
}
"""What people do that changes nothing."""

MOVES: Final[dict[str, Operation]] = {
    "requeue": requeue_jobs,
    "cancel": cancel_jobs,
    "delete": delete_jobs,
    "requeue a batch": _on_all(requeue_batch, JobFilter()),
    "cancel a batch": _on_all(cancel_batch, JobFilter()),
    "delete a batch": _on_all(delete_batch, JobFilter()),
}
"""What changes rows."""


_with_tables: WeakSet[Engine] = WeakSet()


class Scene:
    """The app's database, empty, at `NOW`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_postgresql = engine.dialect.name == "postgresql"
        if engine not in _with_tables:
            Base.metadata.create_all(engine)
            _with_tables.add(engine)
        self.clear()

    def clear(self) -> None:
        """Delete all rows, and set the clock."""
        with self.transaction() as session:
            for table in reversed(Base.metadata.sorted_tables):
                session.execute(delete(table))
            clock.advance(session, NOW - clock.read(session))

    def move_to(self, moment: datetime) -> None:
        """Set the database's clock; it goes on from there."""
        with self.transaction() as session:
            clock.advance(session, moment - clock.read(session))

    @contextmanager
    def transaction(self) -> Generator[Session]:
        """Give a session whose transaction is committed at the end of the block."""
        with Session(self.engine) as session, session.begin():
            yield session

    def add(self, status: str = "ready", ago: timedelta = HOUR, *, is_archived: bool = False, **columns: Any) -> int:
        """Insert a job that has that status since *ago* before `NOW`, and give its id."""
        with self.transaction() as session:
            return add(session, status, ago, is_archived=is_archived, **columns)

    def sql(self, statement: str, **parameters: Any) -> None:
        """Do what somebody does at a console."""
        with self.transaction() as session:
            session.execute(text(statement), parameters)

    def row(self, job_id: int) -> dict[str, Any]:
        """Give what a job's row holds, column by column."""
        with self.transaction() as session:
            return dict(session.execute(select(Job.__table__).where(Job.id == job_id)).mappings().one())

    def statuses(self) -> dict[int, str]:
        """Give the statuses of all jobs, by id."""
        with self.transaction() as session:
            return {row.id: row.status for row in session.execute(select(Job.id, Job.status).order_by(Job.id))}


def add(
    session: Session, status: str = "ready", ago: timedelta = HOUR, *, is_archived: bool = False, **columns: Any
) -> int:
    """Insert a job that has that status since *ago* before `NOW`, and give its id."""
    usual: dict[str, Any] = {"type": "send", "status": status, "run_at": NOW - ago, "created_at": NOW - ago}
    if status != "ready":
        usual |= {"attempts": 1, "claims": 1, "locked_by": "w1", "started_at": NOW - ago}
    if status == "running":
        usual |= {"locked_until": NOW + HOUR}
    if status in {"done", "failed", "dead"}:
        usual |= {"finished_at": NOW - ago}
    if status in {"failed", "dead"}:
        usual |= {"last_error": "ValueError: broken"}
    if is_archived:
        usual |= {"archived_at": NOW - ago}
    table: Any = (ArchivedJob if is_archived else Job).__table__
    job_id: int = session.execute(insert(table).values(usual | columns).returning(table.c.id)).scalar_one()
    return job_id


def found(scene: Scene, where: JobFilter | None = None, *, limit: int = 50) -> list[int]:
    """Give the ids of a list, gone through from page to page, each in a session of its own."""
    ids: list[int] = []
    after: str | None = None
    pages = 0
    while pages == 0 or after is not None:
        with scene.transaction() as session:
            page = find_jobs(session, jobs, where or JobFilter(), limit=limit, after=after)
        assert len(page.jobs) <= limit
        assert page.jobs or page.after is None or pages
        ids += [job.id for job in page.jobs]
        after, pages = page.after, pages + 1
        assert pages < 200, "the list has no end"
    return ids
