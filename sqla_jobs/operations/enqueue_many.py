"""Enqueue many jobs: a statement for each batch, not for each job."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast, overload

from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.errors import ConfigurationError, EnqueueConflict, InvalidOption
from sqla_jobs.operations.callers import flush
from sqla_jobs.operations.enqueue import (
    CONFLICT_ROUNDS,
    capabilities_of,
    channel_for,
    columns_of,
    run_on,
    wake_later,
)
from sqla_jobs.operations.registry import Jobs, NewJob
from sqla_jobs.schema import statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import Capabilities, as_rows
from sqla_jobs.schema.tables import MappedTable

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

_KEYS_PER_READ = 1000

_ROWS_PER_INSERT = 1000

_BYTES_PER_INSERT = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What `enqueue_many` says of one input: the job's id, and whether it was there already."""

    id: int
    is_duplicate: bool


@overload
def enqueue_many(session: Session | scoped_session[Any], new_jobs: Iterable[NewJob[Any]], /) -> list[Enqueued]: ...
@overload
def enqueue_many(
    session: AsyncSession | async_scoped_session[Any], new_jobs: Iterable[NewJob[Any]], /
) -> Coroutine[Any, Any, list[Enqueued]]: ...
def enqueue_many(session: object, new_jobs: object, /) -> Any:
    """Store many jobs (`handler.job(…)`), a statement for each thousand. Await it for an AsyncSession.

    Gives one `Enqueued` for each input, in order. Keys are stored sorted, so that two such calls can't deadlock; of two
    inputs with one key the first is stored.

    :raises EnqueueConflict: a key's job kept vanishing
    :raises ConfigurationError: the engine has `use_insertmanyvalues=False`, and the jobs have keys or are not alike
    """
    batch: list[Any] = []
    if not isinstance(new_jobs, Iterable):
        raise InvalidOption(f"enqueue_many takes a list of jobs, and got a {type(new_jobs).__name__}: [handler.job(…)]")
    for new_job in cast("Iterable[object]", new_jobs):
        if type(new_job) is not NewJob:
            raise InvalidOption(
                f"{new_job!r} is not a job to enqueue: write handler.job(…), with the handler's arguments"
            )
        batch.append(new_job)
    return run_on(session, lambda sync: _store_many(sync, batch))


@dataclass(frozen=True, slots=True)
class NewRow:
    """One input: its place, its key, and the values of its row by attribute of the model."""

    position: int
    key: str | None
    values: dict[str, Any]

    @property
    def names(self) -> frozenset[str]:
        """The columns that it sets: one statement inserts rows of the same ones."""
        return frozenset(self.values)


def _store_many(session: Session, new_jobs: Sequence[NewJob[Any]]) -> list[Enqueued]:
    stored: dict[int, Enqueued] = {}
    # In one order, whatever that of the input: two such calls then wait in one direction.
    for jobs in sorted({new_job.jobs for new_job in new_jobs}, key=lambda jobs: (jobs.table.table.fullname, jobs.name)):
        mine = [position for position, new_job in enumerate(new_jobs) if new_job.jobs is jobs]
        given = new_jobs if len(mine) == len(new_jobs) else [new_jobs[position] for position in mine]
        if _are_alike(given) and not jobs.table.has_defaults_by_row:
            stored.update(zip(mine, _store_alike(session, jobs, given), strict=True))
        else:
            rows = _rows(session, jobs, [*zip(mine, given, strict=True)])
            stored.update(_store_unkeyed(session, jobs, [row for row in rows if row.key is None]))
            stored.update(_store_keyed(session, jobs, [row for row in rows if row.key is not None]))
        tell(session, jobs, {new_job.queue for new_job in given})
    return [stored[position] for position in range(len(new_jobs))]


def _are_alike(new_jobs: Sequence[NewJob[Any]]) -> bool:
    """Tell whether they differ by payloads alone: one handler, one set of options, no key, time or own columns."""
    first = new_jobs[0]
    options = first.options
    if not (options.key is None and options.delay is None and options.run_at is None and not options.columns):
        return False
    return all(
        new_job.spec is first.spec and (new_job.options is options or new_job.options == options)
        for new_job in new_jobs
    )


def _store_alike(session: Session, jobs: Jobs[Any], new_jobs: Sequence[NewJob[Any]]) -> Iterator[Enqueued]:
    """Store them; to have the ORM look at each row costs several times what the database takes."""
    if session.autoflush:
        flush(session)
    first = new_jobs[0]
    common = {"of_type": first.spec.name, "of_queue": first.queue, "of_max_attempts": first.max_attempts}
    for start in range(0, len(new_jobs), _ROWS_PER_INSERT):
        payloads = [new_job.payload for new_job in new_jobs[start : start + _ROWS_PER_INSERT]]
        for id_ in _insert_payloads(session, jobs, common, payloads):
            yield Enqueued(id_, is_duplicate=False)


def _insert_payloads(
    session: Session, jobs: Jobs[Any], common: dict[str, Any], payloads: list[dict[str, Any]]
) -> list[int]:
    """Insert jobs, and give their ids in order; in several statements, where one would be too long."""
    rows = as_rows(payloads)
    if len(rows) > _BYTES_PER_INSERT and len(payloads) > 1:
        middle = len(payloads) // 2
        halves = (payloads[:middle], payloads[middle:])
        return [id_ for half in halves for id_ in _insert_payloads(session, jobs, common, half)]
    statement = statements.insert_payloads(jobs.table, capabilities_of(session, jobs))
    bind = {"mapper": jobs.table.mapper}
    return sorted(session.scalars(statement, said(common | {"rows": rows}), bind_arguments=bind).all())


def _rows(session: Session, jobs: Jobs[Any], mine: Sequence[tuple[int, NewJob[Any]]]) -> list[NewRow]:
    now = None
    if any(new_job.options.delay is not None or new_job.options.run_at is not None for _, new_job in mine):
        # Times that differ are told apart here, by the database's clock; else every row's is the statement's.
        bind = {"mapper": jobs.table.mapper}
        now = session.scalars(statements.current_time(jobs.table), bind_arguments=bind).one()
    return [NewRow(position, new_job.options.key, _values(new_job, now)) for position, new_job in mine]


def _values(new_job: NewJob[Any], now: datetime | None) -> dict[str, Any]:
    """Give the values of the row as the ORM's bulk insert wants them."""
    options = new_job.options
    values = by_attribute(new_job.jobs.table, columns_of(new_job))
    if now is not None and options.run_at is None:
        values["run_at"] = now if options.delay is None else now + options.delay
    return values


def by_attribute(table: MappedTable, columns: dict[str, Any]) -> dict[str, Any]:
    """Give *columns* by the names of the model's attributes."""
    return {table.mapper.get_property_by_column(table.table.c[name]).key: columns[name] for name in columns}


def _store_unkeyed(session: Session, jobs: Jobs[Any], rows: list[NewRow]) -> dict[int, Enqueued]:
    can = _bulk_capabilities(session, jobs)
    stored: dict[int, Enqueued] = {}
    for names in dict.fromkeys(row.names for row in rows):
        batch = [row for row in rows if row.names == names]
        common = _common(batch)
        statement = statements.insert_jobs(jobs.table, can, common, has_keys=False, has_times="run_at" in names)
        ids = sorted(session.scalars(statement, _parameters(batch, common)))
        stored.update((row.position, Enqueued(new, is_duplicate=False)) for row, new in zip(batch, ids, strict=True))
    return stored


def _store_keyed(session: Session, jobs: Jobs[Any], rows: list[NewRow]) -> dict[int, Enqueued]:
    """Store the first row of each key, in the order of the keys: two such calls then wait in one direction."""
    firsts: dict[str, NewRow] = {}
    for row in rows:
        firsts.setdefault(row.key or "", row)
    created: dict[str, int] = {}
    found: dict[str, int] = {}
    for _ in range(CONFLICT_ROUNDS):
        open_keys = sorted(key for key in firsts if key not in created and key not in found)
        if not open_keys:
            break
        created.update(insert_keyed(session, jobs, [firsts[key] for key in open_keys]))
        found.update(read_keys(session, jobs.table, [key for key in open_keys if key not in created]))
    ids = created | found
    for key in firsts:
        if key not in ids:
            raise EnqueueConflict(key)
    return {
        row.position: Enqueued(ids[row.key or ""], is_duplicate=row.key in found or firsts[row.key or ""] is not row)
        for row in rows
    }


def insert_keyed(session: Session, jobs: Jobs[Any], rows: Sequence[NewRow]) -> Iterator[tuple[str, int]]:
    """Insert rows, and give key and id of those whose key was free."""
    can = _bulk_capabilities(session, jobs)
    for names, run in groupby(rows, key=lambda row: row.names):
        batch = list(run)
        common = _common(batch)
        statement = statements.insert_jobs(jobs.table, can, common, has_keys=True, has_times="run_at" in names)
        for inserted in session.execute(statement, _parameters(batch, common)):
            yield inserted.idempotency_key, inserted.id


def read_keys(session: Session, table: MappedTable, keys: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Give key and id of the jobs, live or archived, that hold *keys*."""
    for start in range(0, len(keys), _KEYS_PER_READ):
        rows = session.execute(
            statements.by_key(table, list(keys[start : start + _KEYS_PER_READ])),
            bind_arguments={"mapper": table.mapper},
        )
        yield from ((row.idempotency_key, row.id) for row in rows)


def _bulk_capabilities(session: Session, jobs: Jobs[Any]) -> Capabilities:
    """Tell what the database can do, for rows whose ids are to come back.

    :raises ConfigurationError: the engine was told not to
    """
    if not session.get_bind(mapper=jobs.table.mapper).dialect.use_insertmanyvalues:
        raise ConfigurationError(
            "schedules and enqueue_many need the ids of rows that they insert at once: take use_insertmanyvalues=False "
            "off create_engine(…)"
        )
    return capabilities_of(session, jobs)


def _common(rows: Sequence[NewRow]) -> dict[str, Any]:
    """Give what all rows have alike, so that it is sent once. Only of our columns: in the app's, 1 is not True."""
    first = rows[0].values
    return {
        name: first[name]
        for name in ("type", "queue", "max_attempts", "run_at")
        if name in first and all(row.values[name] == first[name] for row in rows)
    }


def _parameters(rows: Sequence[NewRow], common: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.values.items() if name not in common} for row in rows]


def tell(session: Session, jobs: Jobs[Any], queues: set[str]) -> None:
    """Have the workers woken that serve *queues*, here and elsewhere, when the transaction commits."""
    notify(session, jobs, queues)
    wake_later(session, jobs, queues)


def notify(session: Session, jobs: Jobs[Any], queues: set[str]) -> None:
    """Have the workers of other processes woken that serve *queues*, when the transaction commits."""
    can = capabilities_of(session, jobs)
    channel = channel_for(session, jobs, can)
    if channel is not None and queues:
        session.execute(
            statements.notify(can, channel),
            said({"rows": as_rows([{"queue": queue} for queue in sorted(queues)])}),
            bind_arguments={"mapper": jobs.table.mapper},
        )
