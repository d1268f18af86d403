"""Every statement that we say to the database, one builder each, with the index that serves it.

Each builder is called once for a table and a kind of database; the statement is kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    String,
    Text,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.base import Executable

from sqla_jobs.schema.dialects import Capabilities, Listen, durably, epoch, later, stored_json
from sqla_jobs.schema.tables import JobTable

# Literals and not parameters: the planner must see that a partial index serves the statement, in a generic plan too.
READY: ColumnElement[Any] = literal_column("'ready'")
RUNNING: ColumnElement[Any] = literal_column("'running'")

_FENCE_COLUMNS: dict[str, Any] = {"id": BigInteger(), "claims": Integer(), "locked_by": String()}

_SETTLE_COLUMNS: dict[str, Any] = _FENCE_COLUMNS | {
    "status": String(),
    "delay": Double(),
    "attempts": Integer(),
    "refunds": Integer(),
    "error": Text(),
    "errors": Text(),
    "result": Text(),
    "expired": Integer(),
}


def _fence(jobs: JobTable, given: FromClause) -> ColumnElement[bool]:
    """The one predicate that says: this row is still the claim that I hold."""
    c = jobs.table.c
    return and_(
        c.id == given.c.id,
        c.status == RUNNING,
        c.claims == given.c.claims,
        c.locked_by == given.c.locked_by,
    )


def _lanes(jobs: JobTable) -> CTE:
    """The (queue, type) pairs that have ready rows, served ones or not: a loose scan, one descent of `ready` a pair."""
    c = jobs.table.c
    # Two scalars of one row each, and not a row with LIMIT: a recursive term may have no ORDER BY of its own.
    first = select(c.queue, c.type).where(c.status == READY).order_by(c.queue, c.type).limit(1).subquery("first")
    lane = select(first.c.queue, first.c.type).cte("lane", recursive=True)
    following, row = jobs.table.alias("following"), jobs.table.alias("lane_row")
    next_id = (
        select(following.c.id)
        .where(
            following.c.status == READY,
            tuple_(following.c.queue, following.c.type) > tuple_(lane.c.queue, lane.c.type),
        )
        .order_by(following.c.queue, following.c.type)
        .limit(1)
        .correlate(lane)
        .scalar_subquery()
    )
    return lane.union_all(select(row.c.queue, row.c.type).select_from(lane.join(row, row.c.id == next_id)))


def _served(lane: FromClause, *, every_queue: bool) -> ColumnElement[bool]:
    column: Any = lane.c
    types: ColumnElement[bool] = column.type.in_(bindparam("types", expanding=True))
    queues: ColumnElement[bool] = column.queue.in_(bindparam("queues", expanding=True))
    return types if every_queue else types & queues


@lru_cache(maxsize=256)
def claim(jobs: JobTable, can: Capabilities, *, every_queue: bool) -> Executable:
    """Claim the oldest due rows. Parameters: types, queues, limit, locked_by, lease (seconds).

    Index: `ready`, one descent for each lane, then rows in order. Rows of other types, of other queues, due later
    or finished are never looked at.
    """
    choose = _taken_by_locking if can.has_row_locks else _taken_exclusively
    taken = choose(jobs, every_queue=every_queue)
    c = jobs.table.c
    claimed = (
        update(jobs.table)
        .where(_is_among(c.id, taken, can))
        .values(
            status=RUNNING,
            attempts=c.attempts + 1,
            claims=c.claims + 1,
            locked_by=bindparam("locked_by"),
            locked_until=later(jobs.now, bindparam("lease")),
            started_at=jobs.now,
        )
    )
    columns: list[ColumnElement[Any]] = [*_lease_columns(jobs), epoch(c.run_at).label("due"), durably()]
    return claimed.returning(*columns)


def _is_among(column: ColumnElement[Any], ids: Select[Any], can: Capabilities) -> ColumnElement[bool]:
    """An array where there are arrays: the planner takes it for ten rows and goes by the key, whatever it expects."""
    return column == any_(func.array(ids.scalar_subquery())) if can.has_arrays else column.in_(ids)


def _lease_columns(jobs: JobTable) -> list[ColumnElement[Any]]:
    c = jobs.table.c
    return [
        c.id,
        c.type,
        c.queue,
        c.payload,
        c.attempts,
        c.max_attempts,
        c.refunds,
        c.claims,
        c.locked_by,
        c.started_at,
        # As a number: one row with a slot that the driver can't load would fail the whole batch.
        epoch(c.slot).label("slot"),
        c.errors,
    ]


def _due(jobs: JobTable, table: FromClause, lane: FromClause) -> Any:
    """The due rows of one lane, oldest first."""
    return (
        select(table.c.id, table.c.run_at)
        .where(
            table.c.status == READY,
            table.c.queue == lane.c.queue,
            table.c.type == lane.c.type,
            table.c.run_at <= jobs.now,
        )
        .order_by(table.c.run_at, table.c.id)
        .correlate(lane)
    )


def _taken_by_locking(jobs: JobTable, *, every_queue: bool) -> Select[Any]:
    """Lock the rows to claim: how many of the oldest belong to each lane, then that many of each that nobody holds."""
    lane = _lanes(jobs)
    limit: Any = bindparam("limit", type_=Integer())
    oldest = _due(jobs, jobs.table.alias("candidate"), lane).limit(limit).lateral("oldest")
    head = (
        select(lane.c.queue, lane.c.type)
        .select_from(lane.join(oldest, literal_column("true")))
        .where(_served(lane, every_queue=every_queue))
        .order_by(oldest.c.run_at, oldest.c.id)
        .limit(limit)
        .cte("head")
    )
    share = (
        select(head.c.queue, head.c.type, func.count().label("wanted")).group_by(head.c.queue, head.c.type).cte("share")
    )
    held = (
        _due(jobs, jobs.table.alias("held"), share)
        .limit(share.c.wanted)
        # FOR NO KEY UPDATE: rows of the app that refer to the job by a foreign key lock its key.
        .with_for_update(skip_locked=True, key_share=True)
        .lateral("held")
    )
    # Locked in a CTE of its own: with a sub-select in the UPDATE, a nested loop can lock more rows than the limit.
    locked = select(held.c.id).select_from(share.join(held, literal_column("true")))
    taken = locked.limit(limit).cte("taken").prefix_with("MATERIALIZED")
    return select(taken.c.id)


def _taken_exclusively(jobs: JobTable, *, every_queue: bool) -> Select[Any]:
    """The rows to claim, where the transaction holds the one write lock already."""
    lane = _lanes(jobs)
    limit: Any = bindparam("limit", type_=Integer())
    row = jobs.table.alias("candidate")
    of_lane: Any = _due(jobs, jobs.table.alias("due"), lane).limit(limit).with_only_columns(literal_column("due.id"))
    oldest = (
        select(row.c.id)
        .select_from(lane.join(row, row.c.id.in_(of_lane.scalar_subquery())))
        .where(_served(lane, every_queue=every_queue))
        .order_by(row.c.run_at, row.c.id)
        .limit(limit)
        .subquery("oldest")
    )
    return select(oldest.c.id)


@lru_cache(maxsize=256)
def next_due(jobs: JobTable, *, every_queue: bool) -> Executable:
    """Give the seconds from now until the first ready row is due; negative for how late it is, NULL if there is none.

    Index: `ready`, two descents for each lane. Parameters: types, queues.
    """
    lane = _lanes(jobs)
    row = jobs.table.alias("first_due")
    first = (
        select(row.c.run_at)
        .where(row.c.status == READY, row.c.queue == lane.c.queue, row.c.type == lane.c.type)
        .order_by(row.c.run_at)
        .limit(1)
        .correlate(lane)
        .scalar_subquery()
    )
    due = select(first.label("run_at")).where(_served(lane, every_queue=every_queue)).subquery("due")
    return select(epoch(func.min(due.c.run_at)) - epoch(jobs.now))


@lru_cache(maxsize=256)
def renew(jobs: JobTable, can: Capabilities) -> Executable:
    """Extend leases by `lease` seconds from now, passing over locked rows; returns the claims. Parameters: rows, lease.

    Index: the primary key. `locked_until` is in no index, so on PostgreSQL it is a HOT update.
    """
    given = can.given(_FENCE_COLUMNS)
    c = jobs.table.c
    held = (
        select(c.id)
        .join_from(given, jobs.table, _fence(jobs, given))
        .order_by(c.id)
        .with_for_update(skip_locked=True, key_share=True, of=jobs.table)
        .cte("held")
        .prefix_with("MATERIALIZED")
    )
    return (
        update(jobs.table)
        .where(_is_among(c.id, select(held.c.id), can))
        .values(locked_until=later(jobs.now, bindparam("lease")))
        .returning(c.id, c.claims)
    )


@lru_cache(maxsize=256)
def held(jobs: JobTable, can: Capabilities) -> Executable:
    """Which of the given claims still stand, read without a lock. Index: the primary key. Parameter: rows."""
    given = can.given(_FENCE_COLUMNS)
    return select(jobs.table.c.id, jobs.table.c.claims).join_from(given, jobs.table, _fence(jobs, given))


@lru_cache(maxsize=256)
def settle(jobs: JobTable, can: Capabilities) -> Executable:
    """Write how attempts ended, each behind its fence; returns the claims that matched. Parameter: rows.

    It waits for locks: a commit in flight has ended by the time it answers. Index: `running`, or the primary key.
    """
    given = can.given(_SETTLE_COLUMNS)
    c, g = jobs.table.c, given.c
    is_ready = g.status == READY
    return (
        update(jobs.table)
        .where(_fence(jobs, given))
        .values(
            status=g.status,
            run_at=case((g.delay.is_not(None), later(jobs.now, g.delay)), else_=c.run_at),
            attempts=g.attempts,
            refunds=g.refunds,
            locked_by=case((is_ready, null()), else_=c.locked_by),
            locked_until=null(),
            last_error=func.coalesce(g.error, c.last_error),
            errors=func.coalesce(stored_json(g.errors), c.errors),
            result=stored_json(g.result),
            lease_expirations=c.lease_expirations + g.expired,
            last_lease_expired_at=case((g.expired > 0, jobs.now), else_=c.last_lease_expired_at),
            finished_at=case((is_ready, null()), else_=jobs.now),
        )
        .returning(c.id, c.claims)
    )


@lru_cache(maxsize=256)
def expired(jobs: JobTable) -> Executable:
    """Lock running rows whose lease is over, passing over locked ones. Parameters: limit.

    Index: `running`, whole: it has as many rows as jobs are running.
    """
    c = jobs.table.c
    return (
        select(*_lease_columns(jobs))
        .where(c.status == RUNNING, or_(c.locked_until <= jobs.now, c.locked_until.is_(None)))
        # In the index's order: by id alone, the planner walks over the primary key, and that has all rows.
        .order_by(c.locked_by, c.id)
        .limit(bindparam("limit", type_=Integer()))
        .with_for_update(skip_locked=True, key_share=True)
    )


@lru_cache(maxsize=256)
def strays(jobs: JobTable) -> Executable:
    """Running rows that bear a worker's name. Index: `running`. Parameter: locked_by."""
    c = jobs.table.c
    return (
        select(*_lease_columns(jobs))
        .where(c.status == RUNNING, c.locked_by == bindparam("locked_by"))
        .order_by(c.locked_by, c.id)
        .limit(1000)
    )


@lru_cache(maxsize=256)
def endings(jobs: JobTable, can: Capabilities) -> Executable:
    """The status of rows that no later claim has touched, read without a lock. Index: the primary key."""
    given = can.given(_FENCE_COLUMNS)
    c, g = jobs.table.c, given.c
    is_same_claim = and_(c.id == g.id, c.claims == g.claims, or_(c.locked_by == g.locked_by, c.locked_by.is_(None)))
    return select(c.id, c.claims, c.status).join_from(given, jobs.table, is_same_claim)


def by_key(jobs: JobTable, keys: list[str]) -> Executable:
    """Ids of the jobs that hold *keys*. Index: `key`."""
    c = jobs.table.c
    return select(c.idempotency_key, c.id).where(c.idempotency_key.in_(keys))


def object_by_key(jobs: JobTable, key: str) -> Select[Any]:
    """The job that holds *key*, as an object. Index: `key`."""
    return select(jobs.mapper.class_).where(jobs.table.c.idempotency_key == key)


def ready_of_type(jobs: JobTable, type_: str) -> Select[Any]:
    """The ready jobs of one type, as objects, oldest first. For tests: it reads all of `ready`."""
    c = jobs.table.c
    return select(jobs.mapper.class_).where(c.status == READY, c.type == type_).order_by(c.id)


def current_time(jobs: JobTable) -> Select[Any]:
    """The clock."""
    return select(jobs.now)


def notify(channel: str, queues: list[str]) -> Executable:
    """Tell every listener of *channel*, when the transaction commits, that *queues* have work."""
    return select(*(func.pg_notify(channel, queue) for queue in queues))


def listen(channel: str) -> Executable:
    """Hear what `notify` tells, until the connection ends."""
    return Listen(channel)


@lru_cache(maxsize=1024)
def insert_job(
    jobs: JobTable, can: Capabilities, columns: frozenset[str], *, is_delayed: bool, channel: str | None
) -> Executable:
    """Insert one job and load it as an object; no row where its key is taken. Parameters: `new_` + each column, delay.

    With a channel, the NOTIFY rides in it: one round trip, heard when the transaction commits.
    """
    table = jobs.table
    values: dict[str, Any] = {name: bindparam("new_" + name, type_=table.c[name].type) for name in columns}
    values.setdefault("run_at", later(jobs.now, bindparam("delay")) if is_delayed else jobs.now)
    inserted: Any = can.insert(table).values(values | {"created_at": jobs.now})
    if "idempotency_key" in columns:
        inserted = _or_ignore(inserted, jobs)
    told = () if channel is None else (func.pg_notify(channel, table.c.queue),)
    return select(jobs.mapper.class_).from_statement(inserted.returning(*table.c, *told))


def insert_jobs(jobs: JobTable, can: Capabilities, common: dict[str, Any], *, has_keys: bool) -> Executable:
    """Insert many jobs: *common* columns, and a list of parameters by attribute name. Returns ids (and keys).

    Without keys the ids come in the order of the parameters; with keys, rows whose key is taken are left out.
    """
    c = jobs.table.c
    inserted: Any = can.insert(jobs.mapper.class_).values({"run_at": jobs.now, "created_at": jobs.now} | common)
    if has_keys:
        return cast("Executable", _or_ignore(inserted, jobs).returning(c.id, c.idempotency_key))
    return cast("Executable", inserted.returning(c.id, sort_by_parameter_order=True))


def _or_ignore(inserted: Any, jobs: JobTable) -> Any:
    """Ignore a taken key, and nothing else: the app's own unique columns still raise. Index: `key`."""
    key = jobs.table.c.idempotency_key
    return inserted.on_conflict_do_nothing(index_elements=[key], index_where=key.is_not(None))


def alive() -> Select[Any]:
    """Ask for nothing, to hear whether the connection lives."""
    return select(literal_column("1"))
