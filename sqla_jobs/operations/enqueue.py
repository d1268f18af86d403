"""Enqueue: store a job in the caller's transaction.

The job exists exactly when that transaction commits. Nothing here commits or rolls back; pending objects are flushed
as by any other statement of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from sqla_jobs.errors import EnqueueConflict, InvalidOption
from sqla_jobs.operations.callers import unscoped
from sqla_jobs.operations.registry import Handler, Jobs, NewJob
from sqla_jobs.schema import statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import Capabilities, capabilities
from sqla_jobs.schema.mixins import JobMixin

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

J = TypeVar("J", bound=JobMixin)
P = ParamSpec("P")
T = TypeVar("T")

CONFLICT_ROUNDS = 5

_PENDING = "sqla_jobs_pending_wakes"


@overload
def enqueue(
    session: Session | scoped_session[Any], handler: Handler[J, ..., P, Any], /, *args: P.args, **kwargs: P.kwargs
) -> J: ...
@overload
def enqueue(
    session: AsyncSession | async_scoped_session[Any],
    handler: Handler[J, ..., P, Any],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Coroutine[Any, Any, J]: ...
def enqueue(session: object, handler: object, /, *args: Any, **kwargs: Any) -> Any:
    """Store a job for *handler* with these arguments, in the session's transaction. Await it for an AsyncSession.

    Gives the job, an object of the session. If the handler has a key (`handler.using(key=…)`) that a job holds
    already, nothing is stored, and that job is given with `is_duplicate` true, whatever its status. A transaction that
    has enqueued the key and is still open is waited for.

    :raises PayloadError: an argument is missing, unknown, of the wrong type, or can't be stored; nothing has happened
    :raises EnqueueConflict: the key's job kept vanishing
    """
    if isinstance(handler, NewJob):
        raise InvalidOption("enqueue takes a handler and its arguments; a handler.job(…) is for enqueue_many")
    if not isinstance(handler, Handler):
        name = getattr(handler, "__name__", type(handler).__name__)
        raise InvalidOption(f"{name} is not a handler: enqueue(session, handler, …), and a handler has @jobs.handler")
    new_job = cast("Handler[Any, ..., ..., Any]", handler).job(*args, **kwargs)
    return run_on(session, lambda sync: _store(sync, new_job))


def run_on(session: object, store: Callable[[Session], T]) -> T | Coroutine[Any, Any, T]:
    """Call *store* with the plain Session behind *session*; for an async one, give the coroutine that does."""
    inner = unscoped(session)
    return store(inner) if isinstance(inner, Session) else inner.run_sync(store)


def _store(session: Session, new_job: NewJob[J]) -> J:
    jobs, options = new_job.jobs, new_job.options
    columns = columns_of(new_job)
    for _ in range(CONFLICT_ROUNDS):
        job = insert(session, jobs, columns, delay=options.delay)
        is_duplicate = job is None
        if job is None and options.key is not None:
            job = _holder(session, jobs, options.key)
        if job is not None:
            # Past __setattr__: SQLModel's refuses what is no field.
            vars(job)["is_duplicate"] = is_duplicate
            wake_later(session, jobs, {new_job.queue})
            return job
    raise EnqueueConflict(options.key or "")


def _holder(session: Session, jobs: Jobs[J], key: str) -> J | None:
    for build in (statements.object_by_key, statements.object_behind):
        job = session.scalars(build(jobs.table, key)).unique().one_or_none()
        if job is not None:
            return cast("J", job)
    return None


def insert(session: Session, jobs: Jobs[J], columns: dict[str, Any], *, delay: timedelta | None = None) -> J | None:
    """Insert a row of these columns, and give its object; None if its key is taken."""
    can = capabilities_of(session, jobs)
    channel = channel_for(session, jobs, can)
    statement = statements.insert_job(
        jobs.table,
        can,
        has_key="idempotency_key" in columns,
        has_time="run_at" in columns,
        is_delayed=delay is not None,
        channel=channel,
    )
    parameters = columns if delay is None else columns | said({"delay": delay.total_seconds()})
    return cast("J | None", session.scalars(statement, parameters).unique().one_or_none())


def columns_of(new_job: NewJob[Any]) -> dict[str, Any]:
    """Give the values of the row, by column."""
    jobs, spec, options = new_job.jobs, new_job.spec, new_job.options
    columns: dict[str, Any] = {
        "type": spec.name,
        "payload": new_job.payload,
        "queue": new_job.queue,
        "max_attempts": new_job.max_attempts,
    }
    if options.key is not None:
        columns["idempotency_key"] = options.key
    if options.run_at is not None:
        columns["run_at"] = options.run_at
    return columns | jobs.table.identity | jobs.table.own_columns(dict(options.columns))


def capabilities_of(session: Session, jobs: Jobs[Any]) -> Capabilities:
    """Tell what the database can do that serves the job model."""
    return capabilities(session.get_bind(mapper=jobs.table.mapper).dialect)


def channel_for(session: Session, jobs: Jobs[Any], can: Capabilities) -> str | None:
    """Give the channel to tell of new jobs; None where nothing is told."""
    # PREPARE TRANSACTION refuses a transaction that has used NOTIFY.
    return jobs.table.channel if jobs.notify and can.has_notify and not session.twophase else None


def wake_later(session: Session, jobs: Jobs[Any], queues: set[str]) -> None:
    """Wake this process's workers when the session's outermost transaction has ended."""
    if not jobs.has_wakers:
        return
    pending: dict[Jobs[Any], set[str]] = session.info.setdefault(_PENDING, {})
    pending.setdefault(jobs, set()).update(queues)
    if not event.contains(session, "after_transaction_end", _wake_now):
        event.listen(session, "after_transaction_end", _wake_now)


def _wake_now(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is not None:
        return
    pending: dict[Jobs[Any], set[str]] = session.info.pop(_PENDING, {})
    for jobs, queues in pending.items():
        jobs.wake(frozenset(queues))
