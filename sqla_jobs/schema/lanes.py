"""Which ready rows are taken: the oldest due ones, found lane by lane. A lane is one queue and one type."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    SelectBase,
    all_,
    func,
    literal_column,
    select,
)

from sqla_jobs.schema.constructs import parameter
from sqla_jobs.schema.dialects import Capabilities
from sqla_jobs.schema.mixins import STATUS_LITERALS
from sqla_jobs.schema.tables import JobTable

_READY = STATUS_LITERALS["ready"]


def lanes(jobs: JobTable) -> CTE:
    """Give the (queue, type) pairs that have ready rows, served or not: a loose scan, one descent of `ready` a pair.

    Each with the `run_at` of its oldest row, where whoever looks for rows begins: before it may be thousands of index
    entries of done rows, that vacuum must keep while somebody's old transaction is open.
    """
    row, lane_row = jobs.table.alias("next_row"), jobs.table.alias("lane_row")
    c = row.c

    def first_of(*conditions: ColumnElement[bool]) -> Any:
        # One, and not a parameter, which would hide from a generic plan that it is one.
        rows = select(c.id).where(c.status == _READY, *conditions).order_by(c.queue, c.type, c.run_at)
        return rows.limit(literal_column("1"))

    # By a condition that is always true: else SQLite, analyzed, may read the table.
    first = first_of(c.queue >= literal_column("''")).with_only_columns(c.queue, c.type, c.run_at).subquery("first")
    lane = select(first.c.queue, first.c.type, first.c.run_at).cte("lane", recursive=True)
    # Two scalars of one row each, and not a row with LIMIT: a recursive term may have no ORDER BY of its own. Two, and
    # not pairs that are compared: SQLite would step over all rows of the lane.
    in_queue = first_of(c.queue == lane.c.queue, c.type > lane.c.type).correlate(lane).scalar_subquery()
    next_id = func.coalesce(in_queue, first_of(c.queue > lane.c.queue).correlate(lane).scalar_subquery())
    following = lane.join(lane_row, lane_row.c.id == next_id)
    return lane.union_all(select(lane_row.c.queue, lane_row.c.type, lane_row.c.run_at).select_from(following))


def served(lane: FromClause, *, every_queue: bool) -> ColumnElement[bool]:
    """Tell whether a worker takes the rows of a lane. Parameters: types, queues."""
    column: Any = lane.c
    types: ColumnElement[bool] = column.type.in_(parameter("types", expanding=True))
    queues: ColumnElement[bool] = column.queue.in_(parameter("queues", expanding=True))
    return types if every_queue else types & queues


def taken(jobs: JobTable, can: Capabilities, *, every_queue: bool, but: SelectBase | None = None) -> SelectBase:
    """Give the ids of the rows that a claim takes, locked where there are row locks. Parameters: types, queues, limit.

    :param but: the ids of rows to pass over
    """
    choose = _taken_by_locking if can.has_row_locks else _taken_exclusively
    return choose(jobs, every_queue=every_queue, but=but)


def ready(table: FromClause, lane: FromClause, *, but: SelectBase | None = None) -> Any:
    """Give the ready rows of one lane, oldest first, but for those of the ids *but*."""
    rows = (
        select(table.c.id, table.c.run_at)
        .where(
            table.c.status == _READY,
            table.c.queue == lane.c.queue,
            table.c.type == lane.c.type,
            table.c.run_at >= lane.c.run_at,
        )
        .order_by(table.c.run_at, table.c.id)
        .correlate(lane)
    )
    return rows if but is None else rows.where(table.c.id.not_in(but))


def _due(jobs: JobTable, table: FromClause, lane: FromClause, but: SelectBase | None) -> Any:
    return ready(table, lane, but=but).where(table.c.run_at <= jobs.now)


def _taken_by_locking(jobs: JobTable, *, every_queue: bool, but: SelectBase | None) -> SelectBase:
    """Lock the rows to claim: how many of the oldest belong to each lane, then that many of each that nobody holds."""
    lane = lanes(jobs)
    limit: Any = parameter("limit", type_=Integer())
    oldest = _due(jobs, jobs.table.alias("candidate"), lane, but).limit(limit).lateral("oldest")
    head = (
        select(lane.c.queue, lane.c.type, lane.c.run_at)
        .select_from(lane.join(oldest, literal_column("true")))
        .where(served(lane, every_queue=every_queue))
        .order_by(oldest.c.run_at, oldest.c.id)
        .limit(limit)
        .cte("head")
    )
    share = (
        select(head.c.queue, head.c.type, head.c.run_at, func.count().label("wanted"))
        .group_by(head.c.queue, head.c.type, head.c.run_at)
        .cte("share")
    )
    first = _locked(_due(jobs, jobs.table.alias("held"), share, but), share, share.c.wanted).limit(limit).cte("first")
    first = first.prefix_with("MATERIALIZED")
    # Rows that others have locked are passed over: when they leave the claim short, any due row will do.
    missing = limit - select(func.count()).select_from(first).scalar_subquery()
    other = jobs.table.alias("other")
    others = _due(jobs, other, lane, but).where(other.c.id != all_(func.array(select(first.c.id).scalar_subquery())))
    rest = _locked(others, lane, missing).where(served(lane, every_queue=every_queue)).limit(missing).cte("rest")
    return select(first.c.id).union_all(select(rest.prefix_with("MATERIALIZED").c.id))


def _locked(due: Any, lane: FromClause, limit: Any) -> Select[Any]:
    """Lock the first *limit* rows of each lane that nobody holds.

    For a CTE of its own: with a sub-select in the UPDATE, a nested loop can lock more rows than the limit.
    """
    # FOR NO KEY UPDATE: rows of the app that refer to the job by a foreign key lock its key.
    row = due.limit(limit).with_for_update(skip_locked=True, key_share=True).lateral()
    return select(row.c.id).select_from(lane.join(row, literal_column("true")))


def _taken_exclusively(jobs: JobTable, *, every_queue: bool, but: SelectBase | None) -> SelectBase:
    """Choose the rows to claim, where the transaction holds the one write lock already."""
    lane = lanes(jobs)
    limit: Any = parameter("limit", type_=Integer())
    row = jobs.table.alias("candidate")
    of_lane: Any = (
        _due(jobs, jobs.table.alias("due"), lane, but).limit(limit).with_only_columns(literal_column("due.id"))
    )
    oldest = (
        select(row.c.id)
        .select_from(lane.join(row, row.c.id.in_(of_lane.scalar_subquery())))
        .where(served(lane, every_queue=every_queue))
        .order_by(row.c.run_at, row.c.id)
        .limit(limit)
        .subquery("oldest")
    )
    return select(oldest.c.id)
