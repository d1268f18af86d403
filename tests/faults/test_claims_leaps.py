"""A clock that leaps: the server's was set, or the server stood still."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy.orm import DeclarativeBase, sessionmaker

from sqla_jobs import JobEvent, JobMixin, Jobs, Worker, enqueue
from sqla_jobs.testing import Clock
from tests.runtime.app import PATIENCE, have_tick, wait_for

if TYPE_CHECKING:
    from tests.runtime.app import MakeEngine


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


clock = Clock(Base.metadata)


def test_f16_leap_of_the_database_s_clock_takes_no_lease_from_a_live_worker(
    postgresql_url: str, make_engine: MakeEngine
) -> None:
    """All leases are over at once, and reapers first let the living renew theirs: each job runs once."""
    engine = make_engine(postgresql_url)
    Base.metadata.create_all(engine)
    jobs, sessions = Jobs(Job, now=clock.now), sessionmaker(engine)
    started, is_over, has_ended = (threading.Event() for _ in range(3))
    told: list[str] = []

    @jobs.handler
    def slow() -> None:
        started.set()
        wait_for(is_over)

    @jobs.on("done", "lease_lost", "lease_expired")
    def hear(told_of: JobEvent) -> None:
        told.append(told_of.name)
        has_ended.set()

    with sessions.begin() as session:
        job_id = enqueue(session, slow).id
    with Worker(jobs, sessions, listen=False) as worker:
        wait_for(started)
        have_tick(worker, "reaper")
        with sessions.begin() as session:
            clock.advance(session, timedelta(hours=1))
        for part in ("reaper", "heartbeat", "reaper"):
            have_tick(worker, part)
        is_over.set()
        assert has_ended.wait(PATIENCE)

    with sessions() as session:
        row = session.get_one(Job, job_id)
    assert told == ["done"]
    assert (row.status, row.claims, row.lease_expirations) == ("done", 1, 0)
