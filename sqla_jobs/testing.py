"""For tests of apps that use this library: a clock to move; slots fired and jobs run in the test's own transaction.

.. code-block:: python

    clock = Clock(Base.metadata)
    jobs = Jobs(Job, now=clock.now)               # in tests only

    def test_reminder_is_sent_after_a_day(session):
        place_order(session, "ann")
        assert enqueued(session, send_reminder, customer="ann")
        clock.advance(session, timedelta(days=1))
        assert [event.name for event in drain(session, jobs)] == ["done"]

    def test_report_is_made_every_night(session):
        tick(session, jobs)                       # plans
        clock.advance(session, timedelta(days=1))
        assert [fired.name for fired in tick(session, jobs)] == ["nightly-report"]

`session` may be one that joins a transaction which the test rolls back at its end (`join_transaction_mode=
"create_savepoint"`): nothing here commits it. On SQLite, savepoints need the driver settings that SQLAlchemy documents.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from sqlalchemy import Connection, MetaData
from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.errors import InvalidOption, WorkerError
from sqla_jobs.operations import leases, scheduling
from sqla_jobs.operations.callers import unscoped
from sqla_jobs.operations.enqueue import run_on
from sqla_jobs.operations.registry import Handler, Jobs
from sqla_jobs.operations.scheduling import Fired
from sqla_jobs.rules.events import EventName, JobEvent
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.registry import SessionKind
from sqla_jobs.rules.settlement import Failed, Outcome, Settlement, decide
from sqla_jobs.runtime.execution import Execution
from sqla_jobs.runtime.holdings import Holding, Holdings
from sqla_jobs.runtime.warden import timed_out
from sqla_jobs.schema import clock as clocks
from sqla_jobs.schema import statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.mixins import JobMixin

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

J = TypeVar("J", bound=JobMixin)

_LEASE = timedelta(hours=1)

_SCHEDULES_PER_LOOK = 500


class Clock:
    """The database's clock, and how far a test has moved it. All processes on the database see it moved.

    :param metadata: gets one more table, `sqla_jobs_clock`; `create_all` makes it
    :ivar now: the moved time as a SQL expression, for `Jobs(…, now=…)`
    """

    def __init__(self, metadata: MetaData) -> None:
        self._table = clocks.clock_table(metadata)
        self.now = clocks.moved_now(self._table)

    def advance(self, session: Session | Connection, by: timedelta) -> None:
        """Move the clock forward (or back, by a negative time), in the caller's transaction.

        With an AsyncSession: `await session.run_sync(lambda sync: clock.advance(sync, …))`.
        """
        _check_sync(session)
        if not isinstance(cast("object", by), timedelta):
            raise InvalidOption(
                f"the clock is advanced by a timedelta, not by a {type(by).__name__}: timedelta(hours=…)"
            )
        seconds = said({"by": by.total_seconds()})
        moved: Any = session.execute(clocks.advance_clock(self._table), seconds)
        if moved.rowcount == 0:
            session.execute(clocks.start_clock(self._table), seconds)

    def read(self, session: Session | Connection) -> datetime:
        """Give the moved time."""
        _check_sync(session)
        now: datetime = session.execute(clocks.read_clock(self._table)).scalar_one()
        return now


def _check_sync(session: object) -> None:
    if not isinstance(session, Session | scoped_session | Connection):
        raise InvalidOption(
            f"a Session or Connection is wanted, not {type(session).__name__}: "
            "with an AsyncSession, `await session.run_sync(lambda sync: clock.advance(sync, …))`"
        )


def enqueued(
    session: Session | scoped_session[Any], handler: Handler[J, ..., ..., Any], /, **arguments: Any
) -> list[J]:
    """Give the ready jobs of *handler* that have these arguments, and maybe others, in the order of their ids.

    :raises PayloadError: the handler has no such argument, or it can't have that value
    """
    inner = unscoped(session)
    if not isinstance(inner, Session):
        raise InvalidOption(
            "enqueued takes a Session: `await session.run_sync(lambda sync: enqueued(sync, handler, …))`"
        )
    wanted = handler.spec.arguments.dump_some(arguments)
    found = inner.scalars(statements.ready_of_type(handler.jobs.table, handler.name)).unique()
    return [job for job in found if all(name in job.payload and job.payload[name] == wanted[name] for name in wanted)]


@overload
def tick(session: Session | scoped_session[Any], jobs: Jobs[Any]) -> list[Fired]: ...
@overload
def tick(session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any]) -> Coroutine[Any, Any, list[Fired]]: ...
def tick(session: Any, jobs: Jobs[Any]) -> Any:
    """Do what a worker's scheduler does: declare what the code has, plan, and fire the slots that are due.

    Inside the session's transaction; nothing is committed. Gives a `Fired` (name, slot, job_id) for each job made.
    The first tick that sees a schedule plans it from then on. Await it for an AsyncSession.

    :raises InvalidModel: the registry has no schedules
    """
    return run_on(session, lambda sync: _ticked(sync, jobs))


def _ticked(session: Session, jobs: Jobs[Any]) -> list[Fired]:
    session.flush()
    scheduling.declare(session, jobs, list(jobs.declarations.values()))
    scheduling.revive(session, jobs)
    scheduling.retire(session, jobs)
    fired: list[Fired] = []
    while True:
        found = scheduling.look(session, jobs, limit=_SCHEDULES_PER_LOOK)
        written = scheduling.write(session, jobs, scheduling.moves(jobs, found), now=found.now)
        fired += written.fired
        if not written.moves:
            session.expire_all()
            return fired


@overload
def drain(
    session: Session | scoped_session[Any], jobs: Jobs[Any], *, queues: Iterable[str] | None = None
) -> list[JobEvent]: ...
@overload
def drain(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], *, queues: Iterable[str] | None = None
) -> Coroutine[Any, Any, list[JobEvent]]: ...
def drain(session: object, jobs: Jobs[Any], *, queues: Iterable[str] | None = None) -> Any:
    """Run the due jobs one after the other, inside the session's transaction, until none is due. Nothing is committed.

    Each handler has its own session in a savepoint of that transaction; one that fails rolls back to it. What was
    loaded in *session* is expired. Gives one `JobEvent` for each end of an attempt; a retry that is due later is left.
    Await it for an AsyncSession, which handlers with an AsyncSession need.

    :raises WorkerError: a due job's handler takes an AsyncSession, and this is a Session
    """
    demand = leases.Demand(jobs.handlers.names, None if queues is None else tuple(queues))
    session = unscoped(session)
    if not isinstance(session, Session):
        return _drain_async(session, jobs, demand)
    drained = _Drain(jobs, demand, session)
    while (holding := drained.claim(session)) is not None:
        drained.run(holding)
        drained.settle(session)
    return drained.events


async def _drain_async(session: AsyncSession, jobs: Jobs[Any], demand: leases.Demand) -> list[JobEvent]:
    drained = _Drain(jobs, demand, session.sync_session, await session.connection())
    while (holding := await session.run_sync(drained.claim)) is not None:
        if holding.spec.is_async:
            await drained.execution.run_async(holding)
        else:
            await session.run_sync(drained.run_in, holding)
        await session.run_sync(drained.settle)
    return drained.events


class _Holdings(Holdings):
    """Plays the warden, too: what a sync handler does past its timeout is undone, and the attempt has failed."""

    def __init__(self, submit: Callable[[Holding, Outcome], None]) -> None:
        super().__init__(1)
        self._submit = submit

    def begin_settling(self, holding: Holding) -> bool:
        if not super().begin_settling(holding):
            return False
        if holding.spec.is_async or holding.overdue_at is None or time.monotonic() < holding.overdue_at:
            return True
        self._submit(holding, Failed(timed_out(holding)))
        return False


class _Drain:
    """Plays the worker's parts within one transaction: makes sessions, settles, and keeps what is told."""

    def __init__(
        self, jobs: Jobs[Any], demand: leases.Demand, session: Session, connection: AsyncConnection | None = None
    ) -> None:
        self.events: list[JobEvent] = []
        self._jobs = jobs
        self._demand = demand
        self._session = session
        self._connection = connection
        self._holdings = _Holdings(self.submit)
        self._ends: list[tuple[Holding, Outcome]] = []
        self.execution = Execution(jobs, self._holdings, self, self, self, settler=self, doubtful=self)

    def claim(self, session: Session) -> Holding | None:
        """Claim the oldest due job."""
        session.flush()
        claimed = leases.claim(
            session, self._jobs.table, self._demand, limit=1, locked_by=f"drain:{os.getpid()}", lease=_LEASE
        )
        if not claimed:
            return None
        spec = self._jobs.handlers.find(claimed[0].type)
        return self._holdings.offer([Holding(claimed[0], spec, time.monotonic() + _LEASE.total_seconds())])[0]

    def run(self, holding: Holding) -> None:
        """Run a job from a plain Session: its async handler on a loop of its own, in a thread of its own."""
        if not holding.spec.is_async:
            return self.execution.run(holding)
        if holding.spec.session is SessionKind.ASYNC:
            raise WorkerError(
                f"handler {holding.spec.name!r} takes an AsyncSession: `await drain(async_session, jobs)`"
            )
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self.execution.run_async(holding)).result()
        return None

    def run_in(self, session: Session, holding: Holding) -> None:
        """Run a sync job below an AsyncSession."""
        self.execution.run(holding)

    def settle(self, session: Session) -> None:
        """Write what has ended."""
        for holding, outcome in self._ends:
            settlement = decide(holding.lease, outcome, backoff=holding.spec.backoff, draw=0.0)
            if holding.key in leases.settle(session, self._jobs.table, [settlement]):
                self.settled(settlement, holding.ms)
            self._holdings.settled([holding])
        for holding in self._holdings.running():
            self._holdings.next_after(holding)
        self._ends.clear()
        session.expire_all()

    def new(self) -> Session:
        """Make a handler's session: a savepoint of the transaction."""
        connection = self._session.connection(bind_arguments={"mapper": self._jobs.table.mapper})
        return Session(bind=connection, join_transaction_mode="create_savepoint")

    def new_async(self) -> AsyncSession:
        """Make an async handler's session: the same."""
        from sqlalchemy.ext.asyncio import AsyncSession

        return AsyncSession(bind=self._connection, join_transaction_mode="create_savepoint")

    @property
    def may_be_taken(self) -> bool:
        """Say that there is nothing to prepare."""
        return False

    def prepare(self, holding: Holding) -> None:
        """Do nothing: no heartbeat comes between."""

    def raised(self, holding: Holding) -> None:
        """Do nothing, for the same reason."""

    def submit(self, holding: Holding, outcome: Outcome, *, is_in_doubt: bool = False) -> None:
        """Keep an end, for `settle`."""
        self._ends.append((holding, outcome))

    def settled(self, settlement: Settlement, ms: float | None) -> None:
        """Keep the event."""
        self.tell(settlement.event, settlement.lease, ms, settlement.error)

    def tell(self, name: EventName, lease: Lease, ms: float | None, error: str | None = None) -> None:
        """Keep the event."""
        self.events.append(JobEvent.of(name, lease, ms, error))
