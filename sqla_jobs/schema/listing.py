"""The statements of people: they look at jobs in windows of bounded size, and move them by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
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


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the table that one index has in order.

    :ivar statuses: merged in the order of the key
    :ivar key: the columns that order it, `id` aside
    :ivar is_empty: the column of the key has nothing in it, and `id` alone orders the stretch
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
        rank = ("locked_by", "run_at", "finished_at").index(self.key)
        return (rank, self.queue or "", self.type or "", not self.is_empty)

    @property
    def is_text(self) -> bool:
        """Whether a place in it is no time."""
        return self.is_empty or self.key == "locked_by"

    @property
    def is_descending(self) -> bool:
        """Whether the newest come first."""
        return self.key == "finished_at"


@dataclass(frozen=True, slots=True)
class Condition:
    """What rows of a window are told by. Ages in seconds, since the status began."""

    type: str | None = None
    queue: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    error: str | None = None


def window(jobs: JobTable, stretch: Stretch, condition: Condition, *, after: tuple[str, int] | None) -> Select[Any]:
    """The next `limit` rows of a stretch, in order; `matches` tells those that the condition is true of.

    Index: `finished`, `ready` or `running`, from the key *after* on.
    """
    parts = [_part(jobs, status, stretch, condition, after) for status in stretch.statuses]
    limit: Any = parameter("limit", type_=Integer())
    rows = (
        parts[0].subquery("w") if len(parts) == 1 else union_all(*(select(p.subquery()) for p in parts)).subquery("w")
    )
    order = [rows.c.at, rows.c.id]
    if stretch.is_descending:
        order = [column.desc() for column in order]
    first = select(rows.c.id, rows.c.at).order_by(*order).limit(limit).cte("first_rows")
    c = jobs.table.c
    matches = _matches(jobs, condition)
    at: ColumnElement[Any] = cast_to(first.c.at, Text()) if stretch.is_text else written_instant(first.c.at)
    ordered = [first.c.at, first.c.id]
    return (
        select(
            *found_columns(jobs),
            at.label("at"),
            matches.label("matches"),
            case((matches, cast_to(c.last_error, Text()))).label("last_error"),
        )
        .join_from(first, jobs.table, c.id == first.c.id)
        .order_by(*([column.desc() for column in ordered] if stretch.is_descending else ordered))
    )


def _part(
    jobs: JobTable, status: JobStatus, stretch: Stretch, condition: Condition, after: tuple[str, int] | None
) -> Any:
    c = jobs.table.c
    key = c[stretch.key]
    at: ColumnElement[Any] = null() if stretch.is_empty else key
    rows = select(c.id, at.label("at")).where(c.status == STATUS_LITERALS[status])
    if status in FINISHED:
        rows = rows.where(is_finished(jobs.table))
    if stretch.queue is not None:
        rows = rows.where(c.queue == stretch.queue, c.type == stretch.type)
    if stretch.key != "run_at":
        rows = rows.where(key.is_(None) if stretch.is_empty else key.is_not(None))
    rows = rows.where(*_ages(jobs, status, condition))
    if after is not None:
        rows = rows.where(_behind(stretch, c, after))
    # The key also where it is empty: by id alone, the planner walks over the primary key, and that has all rows.
    order = [key, c.id]
    return rows.order_by(*([each.desc() for each in order] if stretch.is_descending else order)).limit(
        parameter("limit", type_=Integer())
    )


def _behind(stretch: Stretch, c: Any, after: tuple[str, int]) -> ColumnElement[bool]:
    text, id_ = after
    last_id = literal(id_, BigInteger())
    if stretch.is_empty:
        is_behind: ColumnElement[bool] = c.id < last_id if stretch.is_descending else c.id > last_id
        return is_behind
    last = literal(text, Text()) if stretch.key == "locked_by" else read_instant(literal(text, Text()))
    here, there = tuple_(c[stretch.key], c.id), tuple_(last, last_id)
    return here < there if stretch.is_descending else here > there


def _ages(jobs: JobTable, status: JobStatus, condition: Condition) -> list[ColumnElement[bool]]:
    since = jobs.table.c[_SINCE.get(status, "finished_at")]
    ages: list[ColumnElement[bool]] = []
    if condition.older_than is not None:
        ages.append(since <= later(jobs.now, -condition.older_than))
    if condition.newer_than is not None:
        ages.append(since >= later(jobs.now, -condition.newer_than))
    return ages


def _matches(jobs: JobTable, condition: Condition) -> ColumnElement[bool]:
    c = jobs.table.c
    conditions: list[ColumnElement[bool]] = [true()]
    if condition.type is not None:
        conditions.append(c.type == condition.type)
    if condition.queue is not None:
        conditions.append(c.queue == condition.queue)
    if condition.error is not None:
        conditions.append(func.coalesce(c.last_error, "").icontains(condition.error, autoescape=True))
    return and_(*conditions)


def found_columns(jobs: MappedTable) -> list[ColumnElement[Any]]:
    """What a list shows of a job. As text and numbers: no driver loads every value that plain SQL can write."""
    c = jobs.table.c
    texts = ("type", "queue", "status", "locked_by")
    times = ("run_at", "created_at", "started_at", "finished_at", "locked_until")
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
    times = ("last_lease_expired_at", "slot", *(name for name in ("archived_at",) if name in c))
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
