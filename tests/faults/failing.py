"""A scene in which a worker does everything once, and what must have come of it wherever a failpoint had it fail."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from sqlalchemy import Connection, create_engine, delete, func, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sqla_jobs import (
    ArchivedJobMixin,
    JobEvent,
    JobMixin,
    Jobs,
    Retention,
    ScheduleMixin,
    Worker,
    cancel_jobs,
    current_job,
    enqueue,
    enqueue_many,
)
from sqla_jobs.rules import settlement
from sqla_jobs.runtime import dispatch, failpoints, heartbeat, machinery
from sqla_jobs.testing import Clock
from tests.engines import build_engine
from tests.runtime.app import AT_ONCE, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from sqlalchemy.orm import Mapper

LEASE: Final = timedelta(minutes=1)

BEATS: Final = 3000
"""A beat each 20 ms: it is also how soon a worker tries again after an error, and how soon it reaps."""

HOUR: Final = timedelta(hours=1)

YEARLY: Final = "0 0 1 1 *"


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class Effect(Base):
    """What a handler wrote through the job's session."""

    __tablename__ = "effect"
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[str]


class Run(Base):
    """One run of a handler, told in a transaction of its own."""

    __tablename__ = "run"
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[str]


class Watch(failpoints.Failpoints):
    """Failpoints that tell when a place is passed, so that nobody waits for time."""

    def __init__(self, plan: Mapping[str, str]) -> None:
        super().__init__(plan)
        self._planned = len(plan)
        self._passed = threading.Condition()
        self._has_committed = threading.Event()

    def reach(self, place: str, at: Connection | Session, mapper: Mapper[Any] | None) -> None:
        """Pass a place, and tell so whatever happens there."""
        try:
            super().reach(place, at, mapper)
        finally:
            with self._passed:
                self._passed.notify_all()
            if place.endswith(".after_commit") and not place.startswith(("claim", "renew")):
                self._has_committed.set()

    def wait_for_renewal(self) -> None:
        """Wait until leases are renewed."""
        before = len(self.passed)
        self._wait_until(lambda: any(place.startswith("renew.after_commit") for place in self.passed[before:]))

    def wait_for_loss(self) -> None:
        """Wait until the calling handler's job is no more its worker's."""
        job = current_job()
        self._wait_until(lambda: job.cancelled)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        with self._passed:
            assert self._passed.wait_for(is_so, PATIENCE)

    def wait_until_over(self, is_over: Callable[[], bool]) -> None:
        """Ask after each commit, once all that was planned has happened; give up when patience ends."""
        deadline = time.monotonic() + PATIENCE
        while not (len(self.fired) == self._planned and is_over()):
            if not self._has_committed.wait(deadline - time.monotonic()):
                return
            self._has_committed.clear()


class Here:
    """Where handlers run."""

    watch: Watch
    sessions: sessionmaker[Session]


clock = Clock(Base.metadata)
jobs = Jobs(Job, archive=ArchivedJob, schedule=Schedule, now=clock.now, name="office")


@jobs.handler(backoff=AT_ONCE)
def plain(job: str) -> int:
    """Return."""
    return _count_run(job)


@jobs.handler(backoff=AT_ONCE)
def fails_once(job: str) -> None:
    """Raise in the first run."""
    if _count_run(job) == 1:
        raise ValueError("the first time")


@jobs.handler(backoff=AT_ONCE)
def is_renewed(job: str) -> None:
    """Run until the next beat."""
    _count_run(job)
    Here.watch.wait_for_renewal()


@jobs.handler(backoff=AT_ONCE)
def is_cancelled(job: str) -> None:
    """Be cancelled, and run until that shows."""
    _count_run(job)
    with Here.sessions.begin() as session:
        cancel_jobs(session, jobs, current_job().id)
    Here.watch.wait_for_loss()


@jobs.handler(backoff=AT_ONCE)
def writes(session: Session, job: str) -> None:
    """Write an effect."""
    session.add(Effect(job=job))


@jobs.handler(backoff=AT_ONCE)
def has_child(session: Session, job: str) -> None:
    """Write an effect, and enqueue what another enqueues, too."""
    session.add(Effect(job=job))
    enqueue(session, plain.using(key="child"), job="child")


@jobs.handler(backoff=AT_ONCE, max_attempts=2)
def always_fails(session: Session, job: str) -> None:
    """Write an effect, and raise."""
    session.add(Effect(job=job))
    session.flush()
    raise ValueError("each time")


jobs.schedule("declared", plain.job(job="declared"), cron=YEARLY)

told: list[JobEvent] = []
jobs.on("done", "failed", "dead")(told.append)


def _count_run(job: str) -> int:
    with Here.sessions.begin() as session:
        session.execute(insert(Run).values(job=job))
        return session.scalars(select(func.count()).where(Run.job == job)).one()


@dataclass(frozen=True, slots=True)
class End:
    """How a job must have ended, and after what, if no process has died."""

    status: str
    attempts: int = 1
    runs: int = 0
    effects: int = 0
    expirations: int = 0
    is_archived: bool = False


ENDS: Final = {
    "plain": End("done", runs=1),
    "slot": End("done", runs=1),
    "child": End("done", runs=1),
    "renewed": End("done", runs=1),
    "cancelled": End("failed", runs=1),
    "fails once": End("done", attempts=2, runs=2),
    "always fails": End("dead", attempts=2),
    "writes": End("done", effects=1),
    "mother": End("done", effects=1),
    "father": End("done", effects=1),
    "orphan": End("done", attempts=2, effects=1, expirations=1),
    "hopeless": End("dead", attempts=5, expirations=1),
    "undated": End("done", attempts=0),
    "old done": End("done", attempts=0, is_archived=True),
    "old dead": End("dead", attempts=0, is_archived=True),
}

COUNTS: Final = text("""
SELECT (SELECT count(*) FROM job WHERE finished_at IS NULL), (SELECT count(*) FROM job),
       (SELECT count(*) FROM archived_job), (SELECT count(*) FROM schedule WHERE next_run_at IS NOT NULL)
""")

END_OTHERS: Final = text("""
SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
""")


class Scene:
    """The app on a database, and a worker that does everything once."""

    def __init__(self, url: str) -> None:
        self.url = url
        # One cache for all engines made like it: else each worker compiles all statements anew.
        self._engine = build_engine(url, execution_options={"compiled_cache": {}})
        self._sessions = sessionmaker(self._engine)
        # Reads beside a writer.
        self._view = create_engine(url, isolation_level="AUTOCOMMIT", execution_options={"compiled_cache": {}})

    def create(self) -> None:
        """Create the tables."""
        Base.metadata.create_all(self._engine)

    def fill(self) -> None:
        """Empty the tables, and store what there is to do."""
        with self._sessions.begin() as session:
            for table in Base.metadata.sorted_tables:
                session.execute(delete(table))
            long_ago = clock.read(session) - 2 * HOUR
            enqueue_many(session, _new())
            session.add_all(_rows(long_ago))
            session.add(_schedule(long_ago))

    def outlive(self) -> None:
        """Move the clock until the leases of a dead process are over."""
        if self._engine.dialect.name == "postgresql":
            # What it had sent on its way to death would be carried out later, and its lease last longer.
            self.close()
            with self._view.connect() as connection:
                connection.execute(END_OTHERS)
        with self._sessions.begin() as session:
            clock.advance(session, 2 * LEASE)

    def run(self, plan: Mapping[str, str]) -> Watch:
        """Run a worker with these failpoints until all is done, or for as long as patience lasts."""
        told.clear()
        Here.sessions, Here.watch = self._sessions, Watch(plan)
        with patch.object(failpoints, "armed", Here.watch), _brisk(), self._worker() as worker:
            Here.watch.wait_until_over(lambda: worker.fault is not None or self._is_over())
        return Here.watch

    def _worker(self) -> Worker:
        return Worker(
            jobs,
            self._sessions,
            concurrency=4,
            lease=LEASE,
            poll_interval=timedelta(milliseconds=50),
            listen=False,
            retention=Retention(done=HOUR, dead=HOUR, archived=HOUR),
        )

    def _is_over(self) -> bool:
        with self._view.connect() as connection:
            found = connection.execute(COUNTS).one()
        return tuple(found) == (0, len(ENDS) - 2, 2, 2)

    def problems(self, *, killed: bool = False) -> list[str]:
        """Say what was lost, doubled or counted wrongly.

        :param killed: a process has died: what it held may have run once more for each lease that ran out
        """
        with Session(self._view) as session:
            rows = [*session.scalars(select(Job)), *session.scalars(select(ArchivedJob))]
            runs, effects = (Counter(session.scalars(select(table.job))) for table in (Run, Effect))
            slots = list(session.scalars(select(Schedule.last_slot).order_by(Schedule.name)))
        names = Counter(row.payload["job"] for row in rows)
        problems = [f"{names[name]} rows of {name!r}" for name in {*names, *ENDS} if names[name] != (name in ENDS)]
        for row in rows:
            name = row.payload["job"]
            if name not in ENDS:
                continue
            again = row.lease_expirations - ENDS[name].expirations if killed else 0
            found = End(
                status=row.status,
                attempts=row.attempts - _within(row.attempts - ENDS[name].attempts, again),
                runs=runs[name] - _within(runs[name] - ENDS[name].runs, again),
                effects=effects[name],
                expirations=row.lease_expirations - again,
                is_archived=isinstance(row, ArchivedJob),
            )
            problems += [f"{name}: {found}, and not {ENDS[name]}"] if found != ENDS[name] else []
            if (row.status == "running") or row.finished_at is None or row.refunds > 1:
                problems += [f"{name}: {row.finished_at=} {row.refunds=}"]
        problems += [] if killed else _untold({row.id: row.payload["job"] for row in rows})
        return problems + ([] if [slot is None for slot in slots] == [True, False] else [f"slots: {slots}"])

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()
        self._view.dispose()


def _within(difference: int, most: int) -> int:
    """Give the part of a difference that is explained by so many leases that ran out."""
    return min(max(difference, 0), most)


def _untold(names: Mapping[int, str]) -> list[str]:
    """Say whose end was not told once. What was reaped is not told if the answer to that commit is lost."""
    ends = Counter(names.get(each.job_id, f"job {each.job_id}") for each in told)
    wanted = {name: 1 for name, end in ENDS.items() if end.attempts and name != "cancelled"}
    if any(place.startswith("reap.after_commit") for place in Here.watch.fired) and not ends["hopeless"]:
        del wanted["hopeless"]
    return [] if ends == wanted else [f"told: {dict(ends)}"]


def _new() -> list[Any]:
    return [
        plain.job(job="plain"),
        is_renewed.job(job="renewed"),
        is_cancelled.job(job="cancelled"),
        fails_once.job(job="fails once"),
        always_fails.job(job="always fails"),
        writes.job(job="writes"),
        has_child.job(job="mother"),
        has_child.job(job="father"),
    ]


def _rows(long_ago: datetime) -> list[Job | ArchivedJob]:
    gone: dict[str, Any] = {"status": "running", "claims": 1, "locked_by": "gone", "locked_until": long_ago}
    old = {"type": "plain", "finished_at": long_ago}
    return [
        Job(type="writes", payload={"job": "orphan"}, attempts=1, **gone),
        Job(type="plain", payload={"job": "hopeless"}, attempts=5, **gone),
        Job(type="plain", payload={"job": "undated"}, status="done"),
        Job(payload={"job": "old done"}, status="done", **old),
        Job(payload={"job": "old dead"}, status="dead", **old),
        ArchivedJob(id=0, payload={"job": "deleted"}, status="done", archived_at=long_ago, **old),
    ]


def _schedule(long_ago: datetime) -> Schedule:
    plan = {"planned_cron": YEARLY, "planned_timezone": "UTC", "planned_enabled": True}
    due = datetime(long_ago.year, 1, 1, tzinfo=UTC)
    return Schedule(
        name="due",
        job_type="plain",
        payload={"job": "slot"},
        cron=YEARLY,
        timezone="UTC",
        offset=timedelta(0),
        enabled=True,
        next_run_at=due,
        **plan,
    )


@contextmanager
def _brisk() -> Generator[None]:
    """Let nobody wait long."""
    with (
        patch.object(machinery, "BEATS_PER_LEASE", BEATS),
        patch.object(heartbeat, "BEATS_PER_LEASE", BEATS),
        patch.object(dispatch, "BEATS_PER_LEASE", BEATS),
        patch.object(settlement, "INFRASTRUCTURE_BACKOFF", AT_ONCE),
    ):
        yield
