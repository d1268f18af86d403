"""A job table, connections to race on it, and threads that start at one moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm import DeclarativeBase, Session

from sqla_jobs import Backoff, JobMixin, Jobs, enqueue_many
from sqla_jobs.operations import leases
from sqla_jobs.operations.leases import Demand
from sqla_jobs.rules.settlement import Outcome, Returned, Settlement, Vanished, decide
from tests.engines import build_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from sqla_jobs.rules.lease import Lease

LEASE: Final = timedelta(seconds=60)

LONGEST: Final = 60.0
"""Seconds until a race that hangs fails its test."""


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


jobs = Jobs(Job)


@jobs.handler
def work() -> None:
    """Never called: what races here are the statements."""


DEMAND: Final = Demand(("work",), None)


class Scene:
    """A database with the job table. Each session that it gives has a connection of its own."""

    def __init__(self, url: str) -> None:
        self.engine = build_engine(url, pool_size=20)
        Base.metadata.create_all(self.engine)

    @contextmanager
    def transaction(self) -> Generator[Session]:
        """Give a session whose transaction is committed at the end of the block."""
        with Session(self.engine) as session, session.begin():
            yield session

    def enqueue(self, number: int = 1) -> list[int]:
        """Enqueue that many jobs, and give their ids."""
        with self.transaction() as session:
            return [enqueued.id for enqueued in enqueue_many(session, [work.job() for _ in range(number)])]

    def claimed(self, number: int = 1, *, by: str = "first") -> list[Lease]:
        """Enqueue jobs, and claim them."""
        self.enqueue(number)
        with self.transaction() as session:
            return claim(session, limit=number, by=by)

    def expired(self, number: int = 1, *, by: str = "first") -> list[Lease]:
        """Claim jobs whose leases are over."""
        claimed = self.claimed(number, by=by)
        with self.transaction() as session:
            session.execute(update(Job).values(locked_until=Job.created_at))
        return claimed

    def columns(self, job_id: int) -> dict[str, Any]:
        """Give all that a row says."""
        with self.engine.connect() as connection:
            row = connection.execute(select(Job.__table__).where(Job.id == job_id)).mappings().one()
            return dict(row)

    def job(self, job_id: int) -> Job:
        """Give a row as it is now."""
        with Session(self.engine) as session:
            return session.get_one(Job, job_id)

    def race(self, *runners: Callable[[Session], Any]) -> list[Any]:
        """Run each in a transaction and thread of its own, let go at one moment, and give what they return."""
        barrier = threading.Barrier(len(runners))

        def run(runner: Callable[[Session], Any]) -> Any:
            with Session(self.engine) as session:
                barrier.wait(LONGEST)
                with session.begin():
                    return runner(session)

        with ThreadPoolExecutor(len(runners)) as threads:
            running = [threads.submit(run, runner) for runner in runners]
            return [future.result(LONGEST) for future in running]


def claim(session: Session, *, limit: int = 1, by: str = "first") -> list[Lease]:
    """Claim due jobs."""
    return leases.claim(session, jobs.table, DEMAND, limit=limit, locked_by=by, lease=LEASE)


def renew(session: Session, held: Sequence[Lease]) -> leases.Renewal:
    """Beat once."""
    return leases.renew(session, jobs.table, held, lease=LEASE)


def settle(session: Session, lease: Lease, outcome: Outcome | None = None) -> bool:
    """Write how an attempt ended (returned, unless said otherwise), and tell whether the fence held."""
    return lease.key in leases.settle(session, jobs.table, [judge(lease, outcome or Returned())])


def reap(session: Session, *, limit: int = 100) -> list[int]:
    """Give back what has expired; give the ids."""
    reaped = leases.reap(session, jobs.table, lambda lease: judge(lease, Vanished("the worker vanished")), limit=limit)
    return [settlement.lease.id for settlement in reaped]


def judge(lease: Lease, outcome: Outcome) -> Settlement:
    """Decide what the row shall say."""
    return decide(lease, outcome, backoff=Backoff(base=timedelta(0)), draw=0.0)
