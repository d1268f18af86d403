"""The statements of people: they look at jobs in windows of bounded size, and move them by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Select,
    Text,
    and_,
    case,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
    update,
)
from sqlalchemy import cast as cast_to
from sqlalchemy.sql.base import Executable

from sqla_jobs.schema.constructs import epoch, later, parameter, read_instant, written_instant
from sqla_jobs.schema.dialects import Capabilities
from sqla_jobs.schema.lanes import lanes
from sqla_jobs.schema.mixins import STATUS_LITERALS, is_finished
from sqla_jobs.schema.statements import READY
from sqla_jobs.schema.tables import JobTable, MappedTable
from sqla_jobs.status import FINISHED, JobStatus

_SINCE = {JobStatus.READY: "run_at", JobStatus.RUNNING: "started_at"}
"""When the status began, where that is not `finished_at`."""

KEYS = ("locked_by", "run_at", "finished_at", "archived_at", "idempotency_key")
"""What orders a stretch, in the order of a list."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the table that one index has in order.

    :ivar statuses: merged in the order of the key; where there are none, the rows are told by the condition's
    :ivar key: the columns that order it, `id` aside
    :ivar is_empty: the column of the key has nothing in it, or the same in all rows: `id` alone orders the stretch
    :ivar queue, type: of one lane
    """

    statuses: tuple[JobStatus, ...]
    key: str
    is_empty: bool = False
    queue: str | None = None
    type: str | None = None

    @property
    def place(self) -> tuple[int, str, str, bool]:
        """Its place among all stretches, which are in the order of this."""
        return (KEYS.index(self.key), self.queue or "", self.type or "", not self.is_empty)

    @property
    def is_text(self) -> bool:
        """Whether a place in it is no time."""
        return self.is_empty or self.key == "locked_by"

    @property
    def is_descending(self) -> bool:
        """Whether the newest come first."""
        return self.key not in {"locked_by", "run_at"}


OF_THE_ARCHIVE = Stretch((), "archived_at")
"""All that was archived, the newest first."""

OF_ONE_KEY = Stretch((), "idempotency_key", is_empty=True)
"""The rows that hold the condition's key: one live job at most, any number of archived ones, the newest first."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What rows of a window are told by. Ages in seconds, since the status began.

    :ivar columns: of the app's own, by their keys in the table, each with its value
    :ivar key, statuses: for stretches that don't say them
    """

    type: str | None = None
    queue: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    error: str | None = None
    columns: tuple[tuple[str, Any], ...] = ()
    key: str | None = None
    statuses: tuple[JobStatus, ...] = ()


def own_columns(table: MappedTable) -> dict[str, Column[Any]]:
    """Give the app's own columns of this very table, by the attributes that are mapped to them."""
    columns: Any = table.mapper.columns
    # A mapper's columns are also expressions, and those of a parent's table.
    return {
        name: column
        for name, column in columns.items()
        if getattr(column, "table", None) is table.table and column.name not in table.needed
    }


def window(table: MappedTable, stretch: Stretch, condition: Condition, *, after: tuple[str, int] | None) -> Select[Any]:
    """The next `limit` rows of a stretch, in order; `matches` tells those that the condition is true of.

    Index: `finished`, `ready` or `running`, from the key *after* on; `key`; or `archived`.
    """
    parts: list[Any] = [_part(table, status, stretch, condition, after) for status in stretch.statuses or (None,)]
    if stretch.key == "idempotency_key":
        parts = [_of_key(table, condition, after)]
    limit: Any = parameter("limit", type_=Integer())
    rows = (
        parts[0].subquery("w") if len(parts) == 1 else union_all(*(select(p.subquery()) for p in parts)).subquery("w")
    )
    order = [rows.c.at, rows.c.id]
    if stretch.is_descending:
        order = [column.desc() for column in order]
    first = select(rows.c.id, rows.c.at).order_by(*order).limit(limit).cte("first_rows")
    c = table.table.c
    matches = _matches(table, stretch, condition)
    at: ColumnElement[Any] = cast_to(first.c.at, Text()) if stretch.is_text else written_instant(first.c.at)
    ordered = [first.c.at, first.c.id]
    return (
        select(
            *found_columns(table),
            at.label("at"),
            matches.label("matches"),
            case((matches, cast_to(c.last_error, Text()))).label("last_error"),
        )
        .join_from(first, table.table, c.id == first.c.id)
        .order_by(*([column.desc() for column in ordered] if stretch.is_descending else ordered))
    )


def _part(
    table: MappedTable,
    status: JobStatus | None,
    stretch: Stretch,
    condition: Condition,
    after: tuple[str, int] | None,
) -> Any:
    c = table.table.c
    key = c[stretch.key]
    at: ColumnElement[Any] = null() if stretch.is_empty else key
    rows = select(c.id, at.label("at"))
    if status is not None:
        rows = rows.where(c.status == STATUS_LITERALS[status])
    if status in FINISHED:
        rows = rows.where(is_finished(table.table))
    if stretch.queue is not None:
        rows = rows.where(c.queue == stretch.queue, c.type == stretch.type)
    if stretch.key != "run_at":
        rows = rows.where(key.is_(None) if stretch.is_empty else key.is_not(None))
    if status is not None:
        rows = rows.where(*_ages(table, status, condition))
    if after is not None:
        rows = rows.where(_behind(stretch, c, after))
    # The key also where it is empty: by id alone, the planner walks over the primary key, and that has all rows.
    order = [key, c.id]
    return rows.order_by(*([each.desc() for each in order] if stretch.is_descending else order)).limit(
        parameter("limit", type_=Integer())
    )


def _of_key(table: MappedTable, condition: Condition, after: tuple[str, int] | None) -> Any:
    c = table.table.c
    # Materialized: in the order of ids, the planner may walk over the primary key, and look for the key in all rows.
    held = select(c.id).where(c.idempotency_key == condition.key).cte("of_key").prefix_with("MATERIALIZED")
    at: ColumnElement[Any] = null()
    rows = select(held.c.id, at.label("at"))
    if after is not None:
        rows = rows.where(held.c.id < literal(after[1], BigInteger()))
    return rows.order_by(held.c.id.desc()).limit(parameter("limit", type_=Integer()))


def _behind(stretch: Stretch, c: Any, after: tuple[str, int]) -> ColumnElement[bool]:
    text, id_ = after
    last_id = literal(id_, BigInteger())
    if stretch.is_empty:
        is_behind: ColumnElement[bool] = c.id < last_id if stretch.is_descending else c.id > last_id
        return is_behind
    last = literal(text, Text()) if stretch.key == "locked_by" else read_instant(literal(text, Text()))
    here, there = tuple_(c[stretch.key], c.id), tuple_(last, last_id)
    return here < there if stretch.is_descending else here > there


def _ages(table: MappedTable, status: JobStatus, condition: Condition) -> list[ColumnElement[bool]]:
    since = table.table.c[_SINCE.get(status, "finished_at")]
    ages: list[ColumnElement[bool]] = []
    if condition.older_than is not None:
        ages.append(since <= later(table.now, -condition.older_than))
    if condition.newer_than is not None:
        ages.append(since >= later(table.now, -condition.newer_than))
    return ages


def _matches(table: MappedTable, stretch: Stretch, condition: Condition) -> ColumnElement[bool]:
    c = table.table.c
    conditions: list[ColumnElement[bool]] = [true()]
    if not stretch.statuses:
        statuses = [
            and_(c.status == STATUS_LITERALS[status], *_ages(table, status, condition)) for status in condition.statuses
        ]
        conditions.append(or_(*statuses))
    if condition.type is not None:
        conditions.append(c.type == condition.type)
    if condition.queue is not None:
        conditions.append(c.queue == condition.queue)
    if condition.error is not None:
        conditions.append(func.coalesce(c.last_error, "").icontains(condition.error, autoescape=True))
    conditions += [c[name] == value for name, value in condition.columns]
    return and_(*conditions)


def found_columns(jobs: MappedTable) -> list[ColumnElement[Any]]:
    """What a list shows of a job. As text and numbers: no driver loads every value that plain SQL can write."""
    c = jobs.table.c
    texts = ("type", "queue", "status", "locked_by")
    times = ["run_at", "created_at", "started_at", "finished_at", "locked_until"]
    times += ["archived_at"] if "archived_at" in c else []
    return [
        *(c.id, c.attempts, c.max_attempts),
        *(cast_to(c[name], Text()).label(name) for name in texts),
        *(epoch(c[name]).label(name) for name in times),
    ]


@lru_cache(maxsize=64)
def lanes_of(jobs: JobTable) -> Executable:
    """The (queue, type) pairs that have ready rows, in order. Index: `ready`, one descent a pair."""
    lane = lanes(jobs)
    return select(lane.c.queue, lane.c.type).order_by(lane.c.queue, lane.c.type)


@lru_cache(maxsize=64)
def details(jobs: MappedTable) -> Executable:
    """All of one job, live or archived, and the clock. Index: the primary key. Parameter: of_id."""
    c = jobs.table.c
    texts = ("payload", "last_error", "errors", "result", "idempotency_key", "trace")
    times = ("last_lease_expired_at", "slot")
    return select(
        *found_columns(jobs),
        *(c.refunds, c.claims, c.lease_expirations, c.schedule_id),
        *(cast_to(c[name], Text()).label(name) for name in texts),
        *(epoch(c[name]).label(name) for name in times),
        epoch(jobs.now).label("now"),
        (c.run_at <= jobs.now).label("is_due"),
        func.coalesce(c.locked_until <= jobs.now, true()).label("is_lease_over"),
    ).where(c.id == parameter("of_id", type_=BigInteger()))


@lru_cache(maxsize=64)
def ahead(jobs: JobTable) -> Executable:
    """How many due jobs of its queue go before a ready job, by type; each count stops at `cap`.

    Index: `ready`, one range a type. Parameters: of_id, of_queue, cap.
    """
    lane, c = lanes(jobs), jobs.table.c
    own, row = jobs.table.alias("own"), jobs.table.alias("earlier")
    its_time = select(own.c.run_at).where(own.c.id == parameter("of_id", type_=BigInteger())).scalar_subquery()
    earlier = (
        select(row.c.id)
        .where(
            *(row.c.status == READY, row.c.queue == lane.c.queue, row.c.type == lane.c.type),
            row.c.run_at <= its_time,
            or_(row.c.run_at < its_time, row.c.id < parameter("of_id", type_=BigInteger())),
        )
        .correlate(lane)
        .limit(parameter("cap", type_=Integer()))
        .subquery("some")
    )
    count = select(func.count()).select_from(earlier).scalar_subquery()
    return select(lane.c.type, count.label("ahead")).where(lane.c.queue == parameter("of_queue", type_=c.queue.type))


_IDS: dict[str, Any] = {"id": BigInteger()}


def _held(
    jobs: JobTable, can: Capabilities, statuses: tuple[JobStatus, ...], *, skip_locked: bool, key_share: bool = True
) -> Any:
    """The given rows that are in these statuses, locked. Index: the primary key. Parameter: rows."""
    given = can.given(_IDS)
    c = jobs.table.c
    is_movable = c.status.in_([STATUS_LITERALS[status] for status in statuses])
    rows = select(c.id).where(can.among(c.id, select(given.c.id)), is_movable).order_by(c.id)
    locked = rows.with_for_update(skip_locked=skip_locked, key_share=key_share, of=jobs.table)
    return locked.cte("held").prefix_with("MATERIALIZED")


@lru_cache(maxsize=64)
def requeue(jobs: JobTable, can: Capabilities, *, statuses: tuple[JobStatus, ...], skip_locked: bool) -> Executable:
    """Make dead letters ready again, from now on; gives ids and queues. Parameters: rows, new_max_attempts."""
    c, held = jobs.table.c, _held(jobs, can, statuses, skip_locked=skip_locked)
    return (
        update(jobs.table)
        .where(can.among(c.id, select(held.c.id)))
        .values(
            status=READY,
            run_at=jobs.now,
            # `claims` goes on: whoever ran it before must not take a new claim for its own.
            attempts=0,
            refunds=0,
            max_attempts=func.coalesce(parameter("new_max_attempts", type_=Integer()), c.max_attempts),
            locked_by=null(),
            locked_until=null(),
            finished_at=null(),
        )
        .returning(c.id, c.queue)
    )


@lru_cache(maxsize=64)
def cancel(jobs: JobTable, can: Capabilities, *, statuses: tuple[JobStatus, ...], skip_locked: bool) -> Executable:
    """End ready and running jobs; gives ids. Whoever runs one finds its fence broken. Parameters: rows, reason."""
    c, held = jobs.table.c, _held(jobs, can, statuses, skip_locked=skip_locked)
    return (
        update(jobs.table)
        .where(can.among(c.id, select(held.c.id)))
        .values(
            status=JobStatus.FAILED.value,
            locked_until=null(),
            last_error=parameter("reason", type_=Text()),
            finished_at=jobs.now,
        )
        .returning(c.id, c.queue)
    )


@lru_cache(maxsize=64)
def remove(jobs: JobTable, can: Capabilities, *, statuses: tuple[JobStatus, ...], skip_locked: bool) -> Executable:
    """Delete finished jobs; gives ids. Parameter: rows."""
    c, held = jobs.table.c, _held(jobs, can, statuses, skip_locked=skip_locked, key_share=False)
    gone = delete(jobs.table).where(can.among(c.id, select(held.c.id)))
    return cast("Executable", gone.returning(c.id, c.queue))


@lru_cache(maxsize=64)
def statuses_of(jobs: MappedTable, can: Capabilities) -> Executable:
    """The status of the given rows. Index: the primary key. Parameter: rows."""
    given = can.given(_IDS)
    c = jobs.table.c
    return select(c.id, cast_to(c.status, Text()).label("status")).where(can.among(c.id, select(given.c.id)))
