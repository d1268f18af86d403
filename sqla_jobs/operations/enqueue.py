"""Enqueue: store a job in the caller's transaction.

The job exists exactly when that transaction commits. Nothing here commits or rolls back; pending objects are flushed
as by any other statement of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from sqla_jobs.errors import EnqueueConflict, InvalidOption
from sqla_jobs.operations.callers import unscoped
from sqla_jobs.operations.registry import Handler, Jobs, NewJob
from sqla_jobs.schema import statements
from sqla_jobs.schema.dialects import Capabilities, capabilities, later
from sqla_jobs.schema.mixins import JobMixin

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

J = TypeVar("J", bound=JobMixin)
P = ParamSpec("P")
T = TypeVar("T")

CONFLICT_ROUNDS = 5

_KEYS_PER_READ = 1000

_PENDING = "sqla_jobs_pending_wakes"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What `enqueue_many` says of one input: the job's id, and whether it was there already."""

    id: int
    is_duplicate: bool


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
    if not isinstance(handler, Handler):
        raise InvalidOption(f"{handler!r} is not a handler: decorate the function with @jobs.handler")
    new_job = cast("Handler[Any, ..., ..., Any]", handler).job(*args, **kwargs)
    return _run(session, lambda sync: _store(sync, new_job))


@overload
def enqueue_many(session: Session | scoped_session[Any], new_jobs: Iterable[NewJob[Any]], /) -> list[Enqueued]: ...
@overload
def enqueue_many(
    session: AsyncSession | async_scoped_session[Any], new_jobs: Iterable[NewJob[Any]], /
) -> Coroutine[Any, Any, list[Enqueued]]: ...
def enqueue_many(session: object, new_jobs: Iterable[object], /) -> Any:
    """Store many jobs (`handler.job(…)`), a statement for each thousand. Await it for an AsyncSession.

    Gives one `Enqueued` for each input, in order. Keys are stored sorted, so that two such calls can't deadlock; of two
    inputs with one key the first is stored.

    :raises EnqueueConflict: a key's job kept vanishing
    """
    batch: list[Any] = []
    for new_job in new_jobs:
        if type(new_job) is not NewJob:
            raise InvalidOption(
                f"{new_job!r} is not a job to enqueue: write handler.job(…), with the handler's arguments"
            )
        batch.append(new_job)
    return _run(session, lambda sync: _store_many(sync, batch))


def _run(session: object, store: Callable[[Session], T]) -> T | Coroutine[Any, Any, T]:
    """Call *store* with the plain Session behind *session*; for an async one, give the coroutine that does."""
    inner = unscoped(session)
    return store(inner) if isinstance(inner, Session) else inner.run_sync(store)


def _store(session: Session, new_job: NewJob[J]) -> J:
    jobs, options = new_job.jobs, new_job.options
    columns = _columns(new_job)
    can = _can(session, jobs)
    statement = statements.insert_job(
        jobs.table,
        can,
        frozenset(columns),
        is_delayed=options.delay is not None,
        channel=_channel(session, jobs, can),
    )
    parameters = {"new_" + name: value for name, value in columns.items()}
    if options.delay is not None:
        parameters["delay"] = options.delay.total_seconds()
    for _ in range(CONFLICT_ROUNDS):
        job = session.scalars(statement, parameters).one_or_none()
        is_duplicate = job is None
        if job is None and options.key is not None:
            job = session.scalars(statements.object_by_key(jobs.table, options.key)).unique().one_or_none()
        if job is not None:
            job.is_duplicate = is_duplicate
            _wake_later(session, jobs, {new_job.queue})
            return cast("J", job)
    raise EnqueueConflict(options.key or "")


def _columns(new_job: NewJob[Any]) -> dict[str, Any]:
    """Give the values of the row, by column."""
    jobs, spec, options = new_job.jobs, new_job.spec, new_job.options
    columns: dict[str, Any] = {
        "type": spec.name,
        "payload": new_job.payload,
        "queue": new_job.queue,
        "max_attempts": options.max_attempts if options.max_attempts is not None else spec.max_attempts,
    }
    if options.key is not None:
        columns["idempotency_key"] = options.key
    if options.run_at is not None:
        columns["run_at"] = options.run_at
    return columns | jobs.table.identity | jobs.table.own_columns(dict(options.columns))


def _store_many(session: Session, new_jobs: Sequence[NewJob[Any]]) -> list[Enqueued]:
    stored: dict[int, Enqueued] = {}
    for group in _groups(new_jobs):
        stored.update(_store_group(session, group, new_jobs))
    for jobs in {new_job.jobs for new_job in new_jobs}:
        queues = {new_job.queue for new_job in new_jobs if new_job.jobs is jobs}
        if _channel(session, jobs, _can(session, jobs)) is not None:
            session.execute(
                statements.notify(jobs.table.channel, sorted(queues)), bind_arguments={"mapper": jobs.table.mapper}
            )
        _wake_later(session, jobs, queues)
    return [stored[position] for position in range(len(new_jobs))]


def _groups(new_jobs: Sequence[NewJob[Any]]) -> Iterator[list[int]]:
    """Give the positions of jobs that one statement can insert: same table, same columns."""
    groups: dict[Any, list[int]] = {}
    for position, new_job in enumerate(new_jobs):
        options = new_job.options
        shape = (new_job.jobs, options.key is None, options.delay, options.run_at is None, frozenset(options.columns))
        groups.setdefault(shape, []).append(position)
    yield from groups.values()


def _store_group(session: Session, positions: Sequence[int], new_jobs: Sequence[NewJob[Any]]) -> dict[int, Enqueued]:
    first = new_jobs[positions[0]]
    can, table = _can(session, first.jobs), first.jobs.table
    rows = {position: _attributes(new_jobs[position]) for position in positions}
    common = _common(list(rows.values()))
    if first.options.delay is not None:
        common["run_at"] = later(table.now, first.options.delay.total_seconds())
    if first.options.key is None:
        parameters = [_without(row, common) for row in rows.values()]
        ids = session.scalars(statements.insert_jobs(table, can, common, has_keys=False), parameters).all()
        return {position: Enqueued(new, is_duplicate=False) for position, new in zip(positions, ids, strict=True)}
    return _store_keyed(session, first.jobs, rows, common)


def _store_keyed(
    session: Session, jobs: Jobs[Any], rows: dict[int, dict[str, Any]], common: dict[str, Any]
) -> dict[int, Enqueued]:
    firsts: dict[str, int] = {}
    for position, row in rows.items():
        firsts.setdefault(row["idempotency_key"], position)
    statement = statements.insert_jobs(jobs.table, _can(session, jobs), common, has_keys=True)
    created: dict[str, int] = {}
    found: dict[str, int] = {}
    open_keys = sorted(firsts)
    for _ in range(CONFLICT_ROUNDS):
        parameters = [_without(rows[firsts[key]], common) for key in open_keys]
        created.update((row.idempotency_key, row.id) for row in session.execute(statement, parameters))
        found.update(_read_keys(session, jobs, [key for key in open_keys if key not in created]))
        open_keys = [key for key in open_keys if key not in created and key not in found]
        if not open_keys:
            break
    else:
        raise EnqueueConflict(open_keys[0])
    ids = created | found
    keys = {position: row["idempotency_key"] for position, row in rows.items()}
    return {position: Enqueued(ids[key], key in found or firsts[key] != position) for position, key in keys.items()}


def _read_keys(session: Session, jobs: Jobs[Any], keys: Sequence[str]) -> Iterator[tuple[str, int]]:
    for start in range(0, len(keys), _KEYS_PER_READ):
        rows = session.execute(
            statements.by_key(jobs.table, list(keys[start : start + _KEYS_PER_READ])),
            bind_arguments={"mapper": jobs.table.mapper},
        )
        yield from ((row.idempotency_key, row.id) for row in rows)


def _attributes(new_job: NewJob[Any]) -> dict[str, Any]:
    """Give the values of the row by attribute of the model, as the ORM's bulk insert wants them."""
    mapper = new_job.jobs.table.mapper
    own = dict(new_job.options.columns)
    columns = _columns(new_job)
    ours = {mapper.get_property_by_column(new_job.jobs.table.table.c[name]).key: columns[name] for name in columns}
    return ours | own


def _common(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Give what all rows have alike, so that it is sent once; never the key, by which answers are matched."""
    first = rows[0]
    return {
        name: value
        for name, value in first.items()
        if name not in {"idempotency_key", "payload"} and all(row[name] == value for row in rows)
    }


def _without(row: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in common}


def _can(session: Session, jobs: Jobs[Any]) -> Capabilities:
    return capabilities(session.get_bind(mapper=jobs.table.mapper).dialect)


def _channel(session: Session, jobs: Jobs[Any], can: Capabilities) -> str | None:
    # PREPARE TRANSACTION refuses a transaction that has used NOTIFY.
    return jobs.table.channel if jobs.notify and can.has_notify and not session.twophase else None


def _wake_later(session: Session, jobs: Jobs[Any], queues: set[str]) -> None:
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
