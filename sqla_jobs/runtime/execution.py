"""Runs a claimed job: its handler, and with a session the completion in the same commit.

An attempt is a few steps in a row: begin, arguments, session, handler, complete, conclude. What a handler does ends as
an `Outcome`, whatever it raises, and `rules.settlement` decides what the row says of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.errors import GiveUp, JobSignal, Retry, Snooze
from sqla_jobs.operations import leases
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.events import EventName
from sqla_jobs.rules.failure import describe, reason
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.payload import to_json
from sqla_jobs.rules.registry import SessionKind
from sqla_jobs.rules.settlement import (
    Failed,
    GaveUp,
    Interrupted,
    Outcome,
    Released,
    Returned,
    Settlement,
    Snoozed,
    decide,
)
from sqla_jobs.runtime import context, failpoints
from sqla_jobs.runtime.holdings import Holding, Holdings
from sqla_jobs.runtime.sessions import is_infrastructure
from sqla_jobs.runtime.snapshots import LeaseLost, LeaseUnknown, when_raised
from sqla_jobs.runtime.warden import timed_out
from sqla_jobs.schema.trouble import is_read_only

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


class SessionSource(Protocol):
    """Makes the sessions of handlers."""

    def new(self) -> Session:
        """Make a session."""
        ...

    def new_async(self) -> AsyncSession:
        """Make an async session."""
        ...


class Ends(Protocol):
    """Has the ends of attempts written."""

    def submit(self, holding: Holding, outcome: Outcome, *, is_in_doubt: bool = False) -> None:
        """Take note of how an attempt ended."""
        ...


class Preparation(Protocol):
    """What is done before a handler gets its session, where sessions take snapshots."""

    @property
    def may_be_taken(self) -> bool:
        """Whether there may be something to do."""
        ...

    def prepare(self, holding: Holding) -> None:
        """Do it."""
        ...

    def raised(self, holding: Holding) -> None:
        """Do it for a handler that takes a snapshot by itself, just before."""
        ...


class Narrator(Protocol):
    """Is told how attempts ended."""

    def settled(self, settlement: Settlement, ms: float | None) -> None:
        """Take note of a settlement that was committed."""
        ...

    def tell(self, name: EventName, lease: Lease, ms: float | None, error: str | None = None) -> None:
        """Take note of an event."""
        ...


class Execution:
    """Runs jobs of one worker.

    :param settler: for ends that nothing else has tried to write
    :param doubtful: for ends after an error of settle or commit, whose row a commit in flight may still hold
    """

    def __init__(
        self,
        jobs: Jobs[Any],
        holdings: Holdings,
        sessions: SessionSource,
        snapshots: Preparation,
        reporter: Narrator,
        *,
        settler: Ends,
        doubtful: Ends,
    ) -> None:
        self._jobs = jobs
        self._holdings = holdings
        self._sessions = sessions
        self._snapshots = snapshots
        self._reporter = reporter
        self._settler = settler
        self._doubtful = doubtful

    def run(self, holding: Holding) -> None:
        """Run a sync handler, in the calling thread."""
        spec, session = holding.spec, None
        token = context.enter(context.CurrentJob(holding, self._jobs.model))
        holding.begin()
        try:
            arguments = self._arguments(holding)
            if spec.session is SessionKind.NONE:
                self._finish(holding, self._returned(spec.function(**arguments)))
            else:
                self._snapshots.prepare(holding)
                session = self._sessions.new()
                when_raised(session, lambda: self._snapshots.raised(holding))
                self._complete(session, holding, spec.function(session, **arguments))
        except BaseException as error:  # noqa: BLE001  # an outcome, SystemExit and KeyboardInterrupt included: the worker lives on
            if session is not None:
                _abandon(session, error)
            self._conclude(holding, error)
        finally:
            context.leave(token)
            if session is not None:
                _close(session)

    async def run_async(self, holding: Holding) -> None:
        """Run an async handler, on the calling event loop."""
        spec, session = holding.spec, None
        token = context.enter(context.CurrentJob(holding, self._jobs.model))
        holding.begin()
        try:
            arguments = self._arguments(holding)
            if spec.session is SessionKind.NONE:
                value = await _watched(holding, lambda: spec.function(**arguments))
                self._finish(holding, self._returned(value))
            else:
                if self._snapshots.may_be_taken:
                    await _in_thread(lambda: self._snapshots.prepare(holding))
                session = opened = self._sessions.new_async()
                when_raised(session.sync_session, lambda: _aside(lambda: self._snapshots.raised(holding)))
                value = await _watched(holding, lambda: spec.function(opened, **arguments))
                await session.run_sync(self._complete, holding, value)
        except BaseException as error:  # noqa: BLE001  # as above; the handler's task alone is ever cancelled
            if session is not None:
                await session.run_sync(_abandon, error)
            self._conclude(holding, error)
        finally:
            context.leave(token)
            if session is not None:
                await session.run_sync(_close)

    def _arguments(self, holding: Holding) -> dict[str, Any]:
        if holding.is_lost:
            raise LeaseLost
        return holding.spec.arguments.load(holding.lease.payload)

    def _complete(self, session: Session, holding: Holding, value: object) -> None:
        """Flush, settle behind the fence as the last statement of the open transaction, and commit."""
        backoff = holding.spec.backoff
        settlement = decide(holding.lease, self._returned(value), backoff=backoff, draw=random.random())
        if not self._holdings.begin_settling(holding):
            raise LeaseLost
        holding.is_committing = True
        session.flush()
        mapper = self._jobs.table.mapper
        failpoints.reach("complete", "statement_1", session, mapper)
        if holding.key not in leases.settle(session, self._jobs.table, [settlement]):
            raise LeaseLost
        failpoints.reach("complete", "before_commit", session, mapper)
        session.commit()
        failpoints.reach("complete", "after_commit", session, mapper)
        if self._holdings.settled([holding]):
            self._reporter.settled(settlement, holding.ms)

    def _returned(self, value: object) -> Returned:
        """Keep the result. One that can't be stored is no failure: the work is done.

        :raises TypeError: the work is not done: it is a coroutine that nobody has awaited
        """
        if value is None:
            return _NOTHING
        if isinstance(value, Coroutine):
            value.close()  # else Python warns of it whenever it is collected
            raise TypeError(_NOT_AWAITED)
        if isinstance(value, Generator | AsyncGenerator | Awaitable):
            raise TypeError(_NOT_RUN)  # to write it down would run it, here
        try:
            return Returned(to_json(value, max_bytes=self._jobs.max_payload))
        except (TypeError, ValueError) as error:
            return Returned(note=f"the result was not stored: {error}")

    def _conclude(self, holding: Holding, error: BaseException) -> None:
        """Have the end of an attempt that raised written, unless the row is no more ours, or says it already."""
        holding.is_left_alone = False
        if holding.is_committing:
            # After a rollback the row says whether the lease was lost, or the handler itself had changed it.
            outcome = Failed(_CHANGED) if isinstance(error, LeaseLost) else self._outcome(holding, error)
            self._doubtful.submit(holding, outcome, is_in_doubt=not isinstance(error, LeaseLost))
        elif isinstance(error, LeaseLost):
            holding.is_lost = True
            if self._holdings.begin_settling(holding) and self._holdings.settled([holding]):
                self._reporter.tell("lease_lost", holding.lease, holding.ms, holding.silence)
        else:
            self._finish(holding, self._outcome(holding, error))

    def _finish(self, holding: Holding, outcome: Outcome) -> None:
        if self._holdings.begin_settling(holding):
            self._settler.submit(holding, outcome)

    def _outcome(self, holding: Holding, error: BaseException) -> Outcome:
        try:
            return self._judge(holding, error)
        except BaseException:  # noqa: BLE001  # whatever an error does when it is looked at, it is a failed attempt
            return Failed(f"{type(error).__name__} (it can't be described)")

    def _judge(self, holding: Holding, error: BaseException) -> Outcome:
        redact = self._jobs.redact
        error = _unwrapped(error)
        match error:
            case Snooze():
                return Snoozed(error.delay)
            case Retry():
                return Failed(reason(error, redact=redact), delay=error.delay)
            case GiveUp():
                return GaveUp(reason(error, redact=redact))
            case LeaseUnknown():
                return Released()
            case asyncio.CancelledError() if holding.is_stopping:
                return Released()
            case asyncio.CancelledError() if holding.is_timed_out:
                return Failed(timed_out(holding))
            case _ if is_infrastructure(error, has_session=holding.spec.session is not SessionKind.NONE):
                return Interrupted(describe(error, redact=redact))
            case _:
                return Failed(describe(error, redact=redact))


def _unwrapped(error: BaseException) -> BaseException:
    """Give what a group holds if it holds one signal alone: `asyncio.TaskGroup` makes groups, and cancels the rest."""
    inner = error
    while isinstance(inner, BaseExceptionGroup):
        held: tuple[BaseException, ...] = cast("Any", inner).exceptions
        if len(held) != 1:
            return error
        inner = held[0]
    return inner if isinstance(inner, JobSignal | LeaseUnknown) else error


_NOTHING = Returned()

_NOT_AWAITED = (
    "the handler returned a coroutine, and what is in it has not run: write the handler itself as `async def` (a "
    "lambda or a decorator may hide that it is one), and await what it calls"
)

_NOT_RUN = (
    "the handler returned a generator or something else that is still to be run or awaited: run it in the handler, and "
    "return a list, or nothing"
)

_CHANGED = (
    "the handler has deleted its job's row, or changed the library's columns on it, or its session looks elsewhere "
    "(search_path, schema_translate_map, another database): nothing was committed"
)


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


async def _watched(holding: Holding, call: Callable[[], Awaitable[Any]]) -> Any:
    """Await the handler in a task of its own, and cancel that when its time is up."""

    async def guard() -> Any:
        # Inside the task: a SystemExit that leaves a task stops the whole event loop.
        try:
            return await call()
        except BaseException as error:  # noqa: BLE001  # raised again below, in the task that waits
            return _Raised(error)

    task = holding.task = asyncio.ensure_future(guard())
    if holding.is_stopping:
        task.cancel()
    if holding.timeout is not None:
        done, _ = await asyncio.wait({task}, timeout=holding.timeout.total_seconds())
        if not done:
            holding.is_timed_out = True
            task.cancel()
            await asyncio.wait({task})
    ended = await task
    if isinstance(ended, _Raised):
        raise ended.error
    return ended


def _in_thread(call: Callable[[], None]) -> Awaitable[None]:
    """Call what blocks in a thread of its own: those of `asyncio.to_thread` may all be taken by handlers."""
    future: Future[None] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # raised where it is awaited
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="sqla_jobs snapshot", daemon=True).start()
    return asyncio.wrap_future(future)


def _aside(call: Callable[[], None]) -> None:
    """Call what blocks in a thread, from inside a greenlet of SQLAlchemy's, so that the event loop goes on."""
    from sqlalchemy.util import await_only

    await_only(_in_thread(call))


def _abandon(session: Session, error: BaseException) -> None:
    """Roll back; drop connections that have become read-only, or that can't even roll back."""
    is_useless = isinstance(error, DBAPIError) and error.orig is not None and is_read_only(error.orig)
    try:
        session.invalidate() if is_useless else session.rollback()
    except Exception:  # noqa: BLE001  # the outcome is written on another connection, whatever has become of this one
        with contextlib.suppress(Exception):
            session.invalidate()


def _close(session: Session) -> None:
    with contextlib.suppress(Exception):  # what can't be closed is broken, and its transaction has ended
        session.close()
