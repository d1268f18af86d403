"""The statements of figures: what the tables hold, each count bounded, and none that looks at done rows.

A count is of the first rows that an index has in order. Neither the order nor the limit is for the reader alone: they
are what makes PostgreSQL go by the index, whatever its statistics say, and stop there; see `_first`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    case,
    func,
    literal_column,
    null,
    nulls_last,
    select,
    text,
    true,
    union_all,
)
from sqlalchemy import cast as cast_to
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import TypeEngine

from sqla_jobs.schema.constructs import epoch, later, parameter
from sqla_jobs.schema.dialects import Capabilities
from sqla_jobs.schema.lanes import lanes
from sqla_jobs.schema.mixins import is_finished
from sqla_jobs.schema.statements import READY, RUNNING
from sqla_jobs.schema.tables import JobTable, ScheduleTable

FULL_LANES = 20
"""So many lanes are each counted to the cap; of more lanes, each gets its share of so many caps."""

HOUR = 3600.0
"""Lease expirations are counted for the last hour."""

_CAP: Any = parameter("cap", type_=BigInteger())

_UP_TO_CAP: Any = select(_CAP).scalar_subquery()
"""The same as an expression, for `_first`."""

_ONE: ColumnElement[Any] = literal_column("1")


@lru_cache(maxsize=64)
def lane_counts(jobs: JobTable) -> Executable:
    """Count the due and the later jobs of each lane, and tell how late its oldest is. Parameters: lanes, cap.

    `most` is where the counts stop. Index: `ready`, one descent to find a lane and two ranges to count it.
    """
    lane = _some_lanes(jobs)
    most = _share(lane, caps=FULL_LANES)
    rows = _of_lane(jobs, lane)
    run_at = rows.selected_columns.run_at
    due, not_due = rows.where(run_at <= jobs.now), rows.where(run_at > jobs.now)
    oldest = due.with_only_columns(run_at).limit(_ONE).scalar_subquery()
    return select(
        cast_to(lane.c.queue, Text()).label("queue"),
        cast_to(lane.c.type, Text()).label("type"),
        _count(due, most).label("due"),
        _count(not_due, most).label("later"),
        (epoch(jobs.now) - epoch(oldest)).label("age"),
        most.label("most"),
    )


def _some_lanes(jobs: JobTable) -> CTE:
    """Find the first lanes, up to the parameter `lanes`.

    Without an order: each lane is found from the one before, in the index's order, and past the limit none is looked
    for.
    """
    lane = lanes(jobs)
    return select(lane.c.queue, lane.c.type).limit(parameter("lanes", type_=Integer())).cte("some_lane")


def _share(lane: CTE, *, caps: int) -> ColumnElement[int]:
    """Say how many rows of a lane are looked at, so that all lanes together have about *caps* times the cap."""
    number = select(func.count()).select_from(lane).scalar_subquery()
    return case((number <= caps, _CAP), else_=_CAP * caps // number + 1)


def _of_lane(jobs: JobTable, lane: CTE) -> Any:
    c = jobs.table.alias("ready_row").c
    return (
        select(c.id, c.run_at)
        .where(c.status == READY, c.queue == lane.c.queue, c.type == lane.c.type)
        .order_by(c.run_at, c.id)
        .correlate(lane)
    )


def _count(rows: Select[Any], most: ColumnElement[int]) -> Any:
    return select(func.count()).select_from(_first(rows, most).subquery("some")).scalar_subquery()


def _first(rows: Select[Any], most: ColumnElement[int]) -> Select[Any]:
    """Give the first *most* of the rows, which is an expression, and at most the cap.

    Twice limited: of an expression PostgreSQL doesn't know how much it limits, and expects a tenth. So the index is
    always cheaper than to read and sort the table, or all that the index has; and the statement is never so dear that
    it gets compiled (jit_above_cost), which takes longer than all the counting.
    """
    return select(rows.limit(_CAP).subquery("first_rows")).limit(most)


@lru_cache(maxsize=64)
def tallies(jobs: JobTable, can: Capabilities) -> Executable:
    """Count rows by what they have in common, part by part. Parameters: lanes, cap. `most` is where a count stops.

    Parts: `ready`, the oldest of each lane, with a limit for each (index `ready`, then the primary key); `running`
    (index `running`); `failed` and `dead`, the newest (index `finished`); `expired`, in the last hour (index of that
    name).
    """
    c = jobs.table.c
    running = _seen(c, "queue", "type", "attempts").where(c.status == RUNNING).order_by(c.locked_by, c.id)
    expired_at = c.last_lease_expired_at
    expired = (
        _seen(c)
        .where(expired_at.is_not(None), expired_at > later(jobs.now, -HOUR), expired_at <= jobs.now)
        .order_by(expired_at)
    )
    lane = _some_lanes(jobs)
    most = _share(lane, caps=1)
    return union_all(
        _tally("ready", _sample(jobs, can, lane, most), most),
        _tally("running", _first(running, _UP_TO_CAP), _CAP),
        _tally("failed", _first(_newest(jobs, literal_column("'failed'")), _UP_TO_CAP), _CAP),
        _tally("dead", _first(_newest(jobs, literal_column("'dead'")), _UP_TO_CAP), _CAP),
        _tally("expired", _first(expired, _UP_TO_CAP), _CAP),
    )


def _seen(c: Any, *names: str) -> Select[Any]:
    """What a part tells of its rows; what it doesn't name is NULL. As text: a column may hold anything on some."""
    kinds: dict[str, Any] = {"queue": Text(), "type": Text(), "attempts": Integer()}
    columns = [cast_to(c[name] if name in names else null(), kind).label(name) for name, kind in kinds.items()]
    return select(*columns)


def _sample(jobs: JobTable, can: Capabilities, lane: CTE, most: ColumnElement[int]) -> Select[Any]:
    row = jobs.table.alias("sampled")
    rows = _of_lane(jobs, lane)
    oldest = _first(rows.with_only_columns(rows.selected_columns.id), most)
    return _seen(row.c, "queue", "type", "attempts").select_from(lane.join(row, can.among(row.c.id, oldest)))


def _newest(jobs: JobTable, status: ColumnElement[Any]) -> Select[Any]:
    c = jobs.table.c
    rows = _seen(c, "type").where(is_finished(jobs.table), c.status == status)
    return rows.order_by(c.finished_at.desc(), c.id.desc())


def _tally(part: str, rows: Select[Any], most: ColumnElement[int]) -> Any:
    seen = rows.subquery(f"{part}_rows")
    alike = (seen.c.queue, seen.c.type, seen.c.attempts)
    counted = select(cast_to(part, Text()).label("part"), *alike, func.count().label("number"), most.label("most"))
    return counted.group_by(*alike)


@lru_cache(maxsize=64)
def oldest_running(jobs: JobTable) -> Executable:
    """Tell the time, and of the first `cap` running rows the one that was claimed first; its id is NULL if none runs.

    And how many of these rows have a lease that is over. Index: `running`.
    """
    c = jobs.table.c
    rows = (
        select(
            c.id,
            *(cast_to(c[name], Text()).label(name) for name in ("type", "queue", "locked_by")),
            *(epoch(c[name]).label(name) for name in ("started_at", "locked_until")),
            func.coalesce(c.locked_until <= jobs.now, true()).label("is_over"),
        )
        .where(c.status == RUNNING)
        .order_by(c.locked_by, c.id)
    )
    first = _first(rows, _UP_TO_CAP).cte("running_row")
    oldest = select(first).order_by(nulls_last(first.c.started_at), first.c.id).limit(_ONE).subquery("oldest")
    over = select(func.count()).select_from(first).where(first.c.is_over).scalar_subquery().label("over")
    clock = select(epoch(jobs.now).label("now")).subquery("clock")
    age = (clock.c.now - oldest.c.started_at).label("age")
    return select(clock.c.now, over, age, *oldest.c).select_from(clock.outerjoin(oldest, true()))


_DOUBLE: TypeEngine[float] = Double()


@lru_cache(maxsize=64)
def schedule_counts(schedules: ScheduleTable) -> Executable:
    """Count the first `cap` schedules by what becomes of them, and their slots. Index: the primary key."""
    c = schedules.table.c
    rows = (
        select(
            # As the scheduler reads it: SQLite stores any type anywhere.
            case(
                (c.retired_at.is_not(None), "retired"),
                (func.lower(cast_to(c.enabled, Text())).in_(("0", "f", "false")), "paused"),
                else_="enabled",
            ).label("state"),
            c.last_error.is_not(None).label("has_error"),
            # As floats, which don't overflow.
            *(cast_to(c[name], _DOUBLE).label(name) for name in ("slots_missed", "overlaps_skipped")),
        )
        .order_by(c.id)
        .limit(_CAP)
        .subquery("schedule_row")
    )
    return select(
        rows.c.state,
        rows.c.has_error,
        func.count().label("number"),
        *(func.sum(rows.c[name]).label(name) for name in ("slots_missed", "overlaps_skipped")),
    ).group_by(rows.c.state, rows.c.has_error)


def oldest_transaction() -> Executable:
    """Tell for how many seconds the oldest open transaction of this database has held back vacuum; for servers."""
    # An autovacuum holds up no other. Of other roles' sessions a plain role sees that they are there, and nothing else.
    return text(
        "SELECT CASE WHEN min(seen.began) IS NULL AND bool_or(seen.kind IS NULL) THEN NULL ELSE "
        "coalesce(CAST(EXTRACT(EPOCH FROM statement_timestamp() - min(seen.began)) AS DOUBLE PRECISION), 0) END "
        "FROM (SELECT CASE WHEN coalesce(backend_xid, backend_xmin) IS NOT NULL THEN xact_start END AS began, "
        "backend_type AS kind "
        "FROM pg_catalog.pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "UNION ALL SELECT prepared, '' FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()) AS seen "
        "WHERE seen.kind IS DISTINCT FROM 'autovacuum worker' "
    )
