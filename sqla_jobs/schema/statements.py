"""Every statement that we say to the database: a builder each, that is called once, and the index that serves it."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    SelectBase,
    String,
    Text,
    Update,
    and_,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy import cast as cast_to
from sqlalchemy.sql.base import Executable

from sqla_jobs.rules.registry import LARGEST_INTEGER
from sqla_jobs.schema.constructs import durably, epoch, later, parameter
from sqla_jobs.schema.dialects import Capabilities, stored_json
from sqla_jobs.schema.lanes import lanes, ready, served, taken
from sqla_jobs.schema.mixins import STATUS_LITERALS
from sqla_jobs.schema.tables import JobTable, MappedTable

READY, RUNNING, DONE = (STATUS_LITERALS[name] for name in ("ready", "running", "done"))

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


def _fence(jobs: JobTable, held: Any) -> ColumnElement[bool]:
    """The one predicate that says: this row is still the claim that I hold. *held* has its id, claims and locked_by."""
    c = jobs.table.c
    return and_(
        c.id == held.id,
        # So that no plan goes by `running`: while an old transaction is open, it is full of entries of done rows.
        c.status.concat(literal_column("''")) == RUNNING,
        c.claims == held.claims,
        # Null-safe: a row that was set running by hand may have no worker, and is reaped all the same.
        c.locked_by.is_not_distinct_from(held.locked_by),
    )


def _given_fence(jobs: JobTable, can: Capabilities, given: FromClause) -> ColumnElement[bool]:
    """The same for each of *given*, found by the primary key, however small the table is."""
    return and_(can.among(jobs.table.c.id, select(given.c.id)), _fence(jobs, given.c))


@lru_cache(maxsize=256)
def claim(jobs: JobTable, can: Capabilities, *, every_queue: bool) -> Executable:
    """Claim the oldest due rows. Parameters: types, queues, limit, locked_by, lease (seconds).

    Index: `ready`, one descent for each lane, then rows in order. Rows of other types, of other queues, due later
    or finished are never looked at.
    """
    return _claimed(jobs, can, taken(jobs, can, every_queue=every_queue))


@lru_cache(maxsize=256)
def due_but(jobs: JobTable, can: Capabilities, *, every_queue: bool) -> Executable:
    """Lock the rows that a claim takes, but for the given ones. Parameters: types, queues, limit, rows.

    Index: as `claim`; it steps over the given rows one by one.
    """
    return cast("Executable", taken(jobs, can, every_queue=every_queue, but=_ids(can)))


@lru_cache(maxsize=256)
def claim_these(jobs: JobTable, can: Capabilities) -> Executable:
    """Claim rows that this transaction has locked. Parameters: rows, locked_by, lease. Index: the primary key."""
    return _claimed(jobs, can, _ids(can))


def _ids(can: Capabilities) -> Select[Any]:
    return select(can.given({"id": BigInteger()}).c.id)


def _claimed(jobs: JobTable, can: Capabilities, ids: SelectBase) -> Executable:
    c = jobs.table.c
    changed = (
        update(jobs.table)
        .where(can.among(c.id, ids))
        .values(
            status=RUNNING,
            attempts=_plus(c.attempts, 1),
            claims=_plus(c.claims, 1),
            locked_by=parameter("locked_by"),
            locked_until=later(jobs.now, parameter("lease")),
            started_at=jobs.now,
        )
    )
    due = func.coalesce(epoch(c.run_at), literal_column("-1e300")).label("due")
    columns: list[ColumnElement[Any]] = [*_lease_columns(jobs), due, durably()]
    return changed.returning(*columns)


def _plus(count: ColumnElement[int], more: Any) -> ColumnElement[int]:
    """Count, up to what the column holds: one row that overflows would fail the whole batch, again and again."""
    return case((count < LARGEST_INTEGER, count + more), else_=count)


def _lease_columns(jobs: JobTable) -> list[ColumnElement[Any]]:
    c = jobs.table.c
    return [
        c.id,
        c.type,
        c.queue,
        # As text: one row whose JSON is none, or that the driver can't load, would fail the whole batch.
        cast_to(c.payload, Text()).label("payload"),
        c.attempts,
        c.max_attempts,
        c.refunds,
        c.claims,
        c.locked_by,
        # As numbers, for the same reason: no driver loads 'infinity'.
        epoch(c.started_at).label("started_at"),
        epoch(c.slot).label("slot"),
        cast_to(c.errors, Text()).label("errors"),
    ]


@lru_cache(maxsize=256)
def next_due(jobs: JobTable, *, every_queue: bool) -> Executable:
    """Give the seconds from now until the first ready row is due; negative for how late it is, NULL if there is none.

    Index: `ready`, one descent for each lane. Parameters: types, queues.
    """
    lane = lanes(jobs)
    due: Any = select(lane.c.run_at).where(served(lane, every_queue=every_queue)).subquery("due")
    return select(epoch(func.min(due.c.run_at)) - epoch(jobs.now))


@lru_cache(maxsize=256)
def next_due_but(jobs: JobTable, can: Capabilities, *, every_queue: bool) -> Executable:
    """The same, but for the given rows. Index: as `due_but`. Parameters: types, queues, rows."""
    lane, row = lanes(jobs), jobs.table.alias("first_row")
    first = ready(row, lane, but=_ids(can)).limit(literal_column("1")).with_only_columns(row.c.run_at)
    run_at = first.scalar_subquery().label("run_at")
    due: Any = select(run_at).select_from(lane).where(served(lane, every_queue=every_queue)).subquery("due")
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
        .join_from(given, jobs.table, _given_fence(jobs, can, given))
        .order_by(c.id)
        .with_for_update(skip_locked=True, key_share=True, of=jobs.table)
        .cte("held")
        .prefix_with("MATERIALIZED")
    )
    return (
        update(jobs.table)
        .where(can.among(c.id, select(held.c.id)))
        .values(locked_until=later(jobs.now, parameter("lease")))
        .returning(c.id, c.claims)
    )


@lru_cache(maxsize=256)
def held(jobs: JobTable, can: Capabilities) -> Executable:
    """Which of the given claims still stand, read without a lock. Index: the primary key. Parameter: rows."""
    given = can.given(_FENCE_COLUMNS)
    return select(jobs.table.c.id, jobs.table.c.claims).join_from(given, jobs.table, _given_fence(jobs, can, given))


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
        .where(_given_fence(jobs, can, given))
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
            lease_expirations=_plus(c.lease_expirations, g.expired),
            last_lease_expired_at=case((g.expired > 0, jobs.now), else_=c.last_lease_expired_at),
            finished_at=case((is_ready, null()), else_=jobs.now),
        )
        .returning(c.id, c.claims)
    )


@lru_cache(maxsize=256)
def complete(jobs: JobTable, can: Capabilities) -> Executable:
    """The same for attempts that ended well and left nothing to store, as most do. Parameter: rows."""
    c = jobs.table.c
    return _completed(jobs, _given_fence(jobs, can, can.given(_FENCE_COLUMNS))).returning(c.id, c.claims)


@lru_cache(maxsize=256)
def complete_one(jobs: JobTable) -> Executable:
    """The same for one of them; matches one row or none. Parameters: held_id, held_claims, held_by."""
    held = SimpleNamespace(
        id=parameter("held_id", type_=BigInteger()),
        claims=parameter("held_claims", type_=Integer()),
        locked_by=parameter("held_by", type_=String()),
    )
    return _completed(jobs, _fence(jobs, held))


def _completed(jobs: JobTable, fence: ColumnElement[bool]) -> Update:
    done = {"status": DONE, "locked_until": null(), "result": null(), "finished_at": jobs.now}
    return update(jobs.table).where(fence).values(done)


@lru_cache(maxsize=256)
def expired(jobs: JobTable) -> Executable:
    """Lock running rows whose lease is over, passing over locked ones. Parameter: limit.

    Index: `running`, whole: it has as many rows as jobs are running.
    """
    c = jobs.table.c
    is_over = or_(c.locked_until <= jobs.now, c.locked_until.is_(None))
    rows = _running(jobs, is_over).limit(parameter("limit", type_=Integer()))
    return cast("Executable", rows.with_for_update(skip_locked=True, key_share=True))


@lru_cache(maxsize=256)
def expired_but(jobs: JobTable, can: Capabilities) -> Executable:
    """The same, but for the given rows. Index: `running`, whole. Parameters: limit, rows."""
    rows: Any = expired(jobs)
    return cast("Executable", rows.where(jobs.table.c.id.not_in(_ids(can))))


@lru_cache(maxsize=256)
def strays(jobs: JobTable, can: Capabilities) -> Executable:
    """Running rows that bear a worker's name, but for given claims. Index: `running`. Parameters: locked_by, rows."""
    c, held = jobs.table.c, can.given({"id": BigInteger(), "claims": Integer()})
    is_held = select(held.c.id).where(held.c.id == c.id, held.c.claims == c.claims).exists()
    return cast("Executable", _running(jobs, and_(c.locked_by == parameter("locked_by"), ~is_held)).limit(1000))


def _running(jobs: JobTable, condition: ColumnElement[bool]) -> Any:
    c = jobs.table.c
    # In the index's order: by id alone, the planner walks over the primary key, and that has all rows.
    return select(*_lease_columns(jobs)).where(c.status == RUNNING, condition).order_by(c.locked_by, c.id)


@lru_cache(maxsize=256)
def endings(jobs: JobTable, can: Capabilities) -> Executable:
    """The status of rows that no later claim has touched, read without a lock. Index: the primary key."""
    given = can.given(_FENCE_COLUMNS)
    c, g = jobs.table.c, given.c
    is_same_claim = and_(c.id == g.id, c.claims == g.claims, or_(c.locked_by == g.locked_by, c.locked_by.is_(None)))
    return select(c.id, c.claims, c.status).join_from(given, jobs.table, is_same_claim)


def by_key(jobs: MappedTable, keys: list[str]) -> Executable:
    """Ids of the jobs, live or archived, that hold *keys*. Index: `key`."""
    c = jobs.table.c
    return select(c.idempotency_key, c.id).where(c.idempotency_key.in_(keys))


def object_by_key(jobs: JobTable, key: str) -> Select[Any]:
    """The job that holds *key*, as an object, of whatever subclass it is. Index: `key`."""
    return select(jobs.mapper.base_mapper.class_).where(jobs.table.c.idempotency_key == key)


def object_behind(jobs: JobTable, key: str) -> Any:
    """The same, past what the app adds to its own selects, such as `with_loader_criteria` for soft deletion."""
    rows = select(jobs.table).where(jobs.table.c.idempotency_key == key)
    return select(jobs.mapper.base_mapper.class_).from_statement(rows)


def ready_of_type(jobs: JobTable, type_: str) -> Select[Any]:
    """The ready jobs of one type, as objects, oldest first. For tests: it reads all of `ready`."""
    c = jobs.table.c
    return select(jobs.mapper.class_).where(c.status == READY, c.type == type_).order_by(c.id)


def current_time(jobs: MappedTable) -> Select[Any]:
    """The clock."""
    return select(jobs.now)


@lru_cache(maxsize=256)
def notify(can: Capabilities, channel: str) -> Executable:
    """Tell every listener of *channel*, when the transaction commits, of the queues that have work. Parameter: rows."""
    return select(func.pg_notify(channel, can.given({"queue": String()}).c.queue))


@lru_cache(maxsize=1024)
def insert_job(
    jobs: JobTable, can: Capabilities, *, has_key: bool, has_time: bool, is_delayed: bool, channel: str | None
) -> Executable:
    """Insert one job and load it as an object; no row where its key is taken.

    Parameters: by column, and delay (seconds). With a channel, the NOTIFY rides in it, and is heard at the commit.
    """
    times = {"created_at": jobs.now} if has_time else {"created_at": jobs.now, "run_at": jobs.now}
    if is_delayed:
        times["run_at"] = later(jobs.now, parameter("delay"))
    model, table = jobs.mapper.class_, jobs.table
    is_joined = jobs.mapper.selectable is not table  # `with_polymorphic`: the ORM's INSERT can't return from a join
    inserted: Any = can.insert(table if is_joined else model).values(times)
    if has_key:
        inserted = _or_ignore(inserted, jobs)
    told = () if channel is None else (func.pg_notify(channel, table.c.queue),)
    if is_joined:
        loaded: Any = select(model).from_statement(inserted.returning(*table.c, *told))
    else:
        loaded = inserted.returning(model, *told).execution_options(dml_strategy="orm")
    # The session may still know an object of this id: SQLite gives an id again that a savepoint's rollback took back.
    return cast("Executable", loaded.execution_options(populate_existing=True))


def insert_jobs(
    jobs: JobTable, can: Capabilities, common: dict[str, Any], *, has_keys: bool, has_times: bool = False
) -> Executable:
    """Insert many jobs: *common* columns, and a list of parameters by attribute name. Returns ids (and keys).

    Without keys the ids rise in the order of the parameters; with keys, rows whose key is taken are left out.
    """
    c = jobs.table.c
    times = {"created_at": jobs.now} if has_times else {"created_at": jobs.now, "run_at": jobs.now}
    # A None that was given is stored, and not the column's default.
    inserted: Any = can.insert(jobs.mapper.class_).values(times | common).execution_options(render_nulls=True)
    if has_keys:
        return cast("Executable", _or_ignore(inserted, jobs).returning(c.id, c.idempotency_key))
    # Where ids rise in the order of the rows there is no need to ask for the order, which would cost a statement a row.
    return cast("Executable", inserted.returning(c.id, sort_by_parameter_order=not can.has_rising_ids))


@lru_cache(maxsize=256)
def insert_payloads(jobs: JobTable, can: Capabilities) -> Executable:
    """Insert jobs that differ by their payloads alone; returns their ids, which rise in the order of the payloads.

    Parameters: of_type, of_queue, of_max_attempts, rows (the payloads).
    """
    given, table = can.listed(), jobs.table
    columns: dict[str, Any] = {
        "payload": given.c.value,
        "type": parameter("of_type", type_=table.c.type.type),
        "queue": parameter("of_queue", type_=table.c.queue.type),
        "max_attempts": parameter("of_max_attempts", type_=table.c.max_attempts.type),
        "created_at": jobs.now,
        "run_at": jobs.now,
    }
    columns |= {name: literal(value, table.c[name].type) for name, value in jobs.identity.items()}
    rows = select(*columns.values()).select_from(given).order_by(given.c.n)
    return cast("Executable", can.insert(table).from_select([*columns], rows).returning(table.c.id))


def _or_ignore(inserted: Any, jobs: JobTable) -> Any:
    """Ignore a taken key, and nothing else: the app's own unique columns still raise. Index: `key`."""
    key = jobs.table.c.idempotency_key
    return inserted.on_conflict_do_nothing(index_elements=[key], index_where=key.is_not(None))
