from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs import JobMixin, Jobs, enqueue
from sqla_jobs.testing import drain

if TYPE_CHECKING:
    from sqlalchemy import Engine


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_drain_when_a_sync_handler_outruns_its_timeout(engine: Engine) -> None:
    """As in a worker: what it did in its session is undone, and the attempt has failed, though it returned."""
    jobs = Jobs(Job)
    over = threading.Event()
    moment = timedelta(milliseconds=1)

    @jobs.handler(timeout=moment, max_attempts=1)
    def with_session(session: Session) -> None:
        session.add(Note())
        session.flush()
        over.wait(10 * moment.total_seconds())

    @jobs.handler(timeout=moment, max_attempts=1)
    def without() -> None:
        over.wait(10 * moment.total_seconds())

    Base.metadata.create_all(engine)
    with Session(engine) as session:
        enqueue(session, with_session)
        enqueue(session, without)
        events = drain(session, jobs)

        assert [(event.name, event.attempt) for event in events] == [("dead", 1)] * 2
        assert all("ran longer than its timeout of" in str(event.error) for event in events)
        assert session.scalars(select(Job.status)).all() == ["dead", "dead"]
        assert session.scalars(select(func.count()).select_from(Note)).one() == 0
