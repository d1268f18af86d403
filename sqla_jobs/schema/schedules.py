"""The statements of schedules: what a scheduler's tick reads and writes, and how code declares them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    String,
    Text,
    and_,
    case,
    false,
    func,
    null,
    or_,
    select,
    type_coerce,
    union,
    update,
)
from sqlalchemy import cast as cast_to
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import TypeEngine

from sqla_jobs.schema.constructs import epoch, from_epoch, later, parameter
from sqla_jobs.schema.dialects import Capabilities
from sqla_jobs.schema.mixins import is_edited, is_unfinished
from sqla_jobs.schema.tables import JobTable, ScheduleTable

OVERDUE = 60.0
"""Seconds after which a due row of an unknown type is marked: whoever knows the type would have fired it."""

LARGEST = 2**62
"""A count of slots stops there."""

JUST_RETIRED = 300.0
"""Seconds for which a retired schedule is looked at, in case that the code of this process still has it."""

_DOUBLE: TypeEngine[float] = Double()

_MOVE_COLUMNS: dict[str, Any] = {
    "id": BigInteger(),
    "cron": String(),
    "timezone": String(),
    "enabled": Text(),
    "seen_next_run_at": Text(),
    "seen_last_slot": Text(),
    "is_planned": Boolean(),
    "next_run_at": _DOUBLE,
    "last_slot": _DOUBLE,
    "missed": BigInteger(),
    "overlaps": BigInteger(),
    "error": Text(),
}


@lru_cache(maxsize=64)
def look(schedules: ScheduleTable, jobs: JobTable, can: Capabilities) -> Executable:
    """The seconds until the next slot, and up to `limit` rows each that are due, edited, or just retired.

    One row without an id where there are none. Indexes: `due`, `edited`, `retired`.
    Parameters: types, registry, limit, offset.
    """
    c = schedules.table.c
    later_slots = select(func.min(c.next_run_at)).where(c.retired_at.is_(None), c.next_run_at > schedules.now)
    wait = select((epoch(later_slots.scalar_subquery()) - epoch(schedules.now)).label("wait")).subquery("next")
    ids = union(*(select(each.c.id) for each in _looked_at(schedules)))
    columns = [wait.c.wait, epoch(schedules.now).label("now"), *_row_columns(schedules, jobs)]
    return select(*columns).select_from(wait.outerjoin(schedules.table, can.among(c.id, ids)))


def _looked_at(schedules: ScheduleTable) -> list[FromClause]:
    c = schedules.table.c
    limit: Any = parameter("limit", type_=Integer())
    offset: Any = parameter("offset", value=0, type_=Integer())
    knows = c.job_type.in_(parameter("types", expanding=True))
    # A type that this registry doesn't know: to be marked once, and not where another registry has declared it.
    is_unmarked = and_(c.last_error.is_(None), or_(c.declared_by.is_(None), c.declared_by == parameter("registry")))
    is_overdue = c.next_run_at <= later(schedules.now, -OVERDUE)
    due = (
        select(c.id)
        .where(c.retired_at.is_(None), c.next_run_at <= schedules.now, or_(knows, and_(is_unmarked, is_overdue)))
        .order_by(c.next_run_at, c.id)
        .limit(limit)
        .offset(offset)
    )
    edited = (
        select(c.id)
        .where(c.retired_at.is_(None), is_edited(schedules.table), or_(knows, is_unmarked))
        .order_by(c.id)
        .limit(limit)
        .offset(offset)
    )
    just_retired = (
        select(c.id)
        .where(c.retired_at > later(schedules.now, -JUST_RETIRED), c.declared_by == parameter("registry"))
        .order_by(c.retired_at, c.id)
        .limit(limit)
    )
    return [due.subquery("due"), edited.subquery("edited"), just_retired.subquery("just_retired")]


def _row_columns(schedules: ScheduleTable, jobs: JobTable) -> list[ColumnElement[Any]]:
    c, job = schedules.table.c, jobs.table.c
    unfinished = (
        select(job.id)
        .where(job.schedule_id.is_not(None), is_unfinished(jobs.table), job.schedule_id == c.id)
        .correlate(schedules.table)
        .exists()
    )
    # As text and numbers: no driver loads every row that plain SQL can write, and SQLite stores any type anywhere.
    texts = ("name", "job_type", "queue", "cron", "timezone", "catch_up", "overlap", "last_error", "payload")
    return [
        *(c.id, c.catch_up_limit, cast_to(c.enabled, Text()).label("enabled")),
        *(cast_to(c[name], Text()).label(name) for name in texts),
        type_coerce(c.offset, _DOUBLE).label("offset"),
        epoch(c.next_run_at).label("next_run_at"),
        epoch(c.last_slot).label("last_slot"),
        _seen(c.next_run_at).label("seen_next_run_at"),
        _seen(c.last_slot).label("seen_last_slot"),
        is_edited(schedules.table).label("is_edited"),
        c.retired_at.is_not(None).label("is_retired"),
        # Index of the job table: `schedule`.
        case((c.overlap == "skip", unfinished), else_=false()).label("has_unfinished"),
    ]


@lru_cache(maxsize=64)
def move(schedules: ScheduleTable, can: Capabilities) -> Executable:
    """Write what was decided on rows that are still as they were read; gives their ids. Parameter: rows.

    Passes over locked rows: somebody else is at them. Index: the primary key.
    """
    given = can.given(_MOVE_COLUMNS)
    c, g = schedules.table.c, given.c
    unchanged = (
        select(c.id)
        .join_from(given, schedules.table, _is_as_read(schedules, given))
        # For the primary key: PostgreSQL expects a hundred rows in any JSON.
        .where(can.among(c.id, select(g.id).correlate(None)))
        .order_by(c.id)
        .with_for_update(skip_locked=True, key_share=True, of=schedules.table)
        .cte("unchanged")
        .prefix_with("MATERIALIZED")
    )

    def planned(value: ColumnElement[Any], column: ColumnElement[Any]) -> ColumnElement[Any]:
        return case((g.is_planned, value), else_=column)

    return (
        update(schedules.table)
        .where(c.id == g.id, can.among(c.id, select(unchanged.c.id)))
        .values(
            planned_cron=planned(c.cron, c.planned_cron),
            planned_timezone=planned(c.timezone, c.planned_timezone),
            planned_enabled=planned(c.enabled, c.planned_enabled),
            next_run_at=planned(from_epoch(g.next_run_at), c.next_run_at),
            last_slot=from_epoch(g.last_slot),
            # No overflow, which would be one row's fault for ever.
            slots_missed=case((c.slots_missed < LARGEST, c.slots_missed + g.missed), else_=c.slots_missed),
            overlaps_skipped=c.overlaps_skipped + g.overlaps,
            last_error=g.error,
        )
        .returning(c.id)
    )


def _is_as_read(schedules: ScheduleTable, given: FromClause) -> ColumnElement[bool]:
    """The compare-and-set: nobody has edited, fired or retired the row since it was read."""
    c, g = schedules.table.c, given.c
    return and_(
        c.id == g.id,
        # As text, as they were read: SQLite stores any type anywhere.
        *(cast_to(c[name], Text()) == g[name] for name in ("cron", "timezone", "enabled")),
        c.retired_at.is_(None),
        _seen(c.next_run_at).is_not_distinct_from(g.seen_next_run_at),
        _seen(c.last_slot).is_not_distinct_from(g.seen_last_slot),
    )


def _seen(instant: ColumnElement[Any]) -> ColumnElement[Any]:
    """The instant as text that any session writes alike, also 'infinity': a time's own text hangs on its zone."""
    return cast_to(epoch(instant), Text())


@lru_cache(maxsize=64)
def retire(schedules: ScheduleTable, can: Capabilities) -> Executable:
    """Retire what the registry has declared and its code has no more; gives the names. Parameters: registry, rows.

    It reads the whole table, about once a minute.
    """
    c, given = schedules.table.c, can.given({"name": String()})
    return (
        update(schedules.table)
        .where(c.declared_by == parameter("registry"), c.retired_at.is_(None), c.name.not_in(select(given.c.name)))
        .values(retired_at=schedules.now)
        .returning(c.name)
    )


@lru_cache(maxsize=64)
def revive(schedules: ScheduleTable, can: Capabilities) -> Executable:
    """Undo `retire` for what the code has; gives the names. Parameters: registry, rows.

    What was retired a while ago is planned from now on; what was retired just now, by an older or newer release of the
    same app, goes on as if nothing had been.
    """
    c, given = schedules.table.c, can.given({"name": String()})
    is_old = c.retired_at <= later(schedules.now, -JUST_RETIRED)
    return (
        update(schedules.table)
        .where(c.declared_by == parameter("registry"), c.retired_at.is_not(None), c.name.in_(select(given.c.name)))
        .values(retired_at=null(), planned_cron=case((is_old, null()), else_=c.planned_cron))
        .returning(c.name)
    )


DECLARED = (
    *("name", "job_type", "payload", "queue", "cron", "timezone"),
    *("offset", "catch_up", "catch_up_limit", "overlap"),
)
"""The columns that a declaration in code sets."""


@lru_cache(maxsize=64)
def declared(schedules: ScheduleTable, can: Capabilities) -> Executable:
    """What is declared of these names, and by whom. Index: the unique one of `name`. Parameter: rows."""
    c, given = schedules.table.c, can.given({"name": String()})
    columns: dict[str, Any] = {name: c[name] for name in DECLARED}
    columns["payload"] = cast_to(c.payload, Text())
    columns["offset"] = type_coerce(c.offset, _DOUBLE)
    labelled: list[Any] = [column.label(name) for name, column in columns.items()]
    return select(c.id, c.declared_by, *labelled).where(c.name.in_(select(given.c.name)))


@lru_cache(maxsize=64)
def redeclare(schedules: ScheduleTable) -> Executable:
    """Bring a row up to date with its declaration, by the primary key. Parameters: of_id, registry, `new_` + each."""
    c = schedules.table.c
    new = {name: parameter("new_" + name, type_=c[name].type) for name in DECLARED}
    return update(schedules.table).where(c.id == parameter("of_id"), c.declared_by == parameter("registry")).values(new)


def insert_schedules(schedules: ScheduleTable, can: Capabilities) -> Executable:
    """Insert declared schedules, and leave alone those whose name is taken. Parameters: a list, by attribute name."""
    inserted: Any = can.insert(schedules.mapper.class_).values(created_at=schedules.now)
    return cast("Executable", inserted.on_conflict_do_nothing(index_elements=[schedules.table.c.name]))


def by_name(schedules: ScheduleTable, name: str) -> Executable:
    """What makes the slots and jobs of the schedule of that name. Index: the unique one of `name`."""
    model, texts = schedules.mapper.class_, ("name", "job_type", "queue", "cron", "timezone", "payload")
    columns: list[Any] = [cast_to(getattr(model, name), Text()).label(name) for name in texts]
    return select(model.id, type_coerce(model.offset, _DOUBLE).label("offset"), *columns).where(model.name == name)


def enable(schedules: ScheduleTable, name: str, *, enabled: bool) -> Executable:
    """Pause or resume; gives the id. What a pause has passed over stays so, also if no scheduler has seen the pause."""
    model: Any = schedules.mapper.class_
    values: dict[str, Any] = {"enabled": enabled}
    if enabled:
        values["planned_cron"] = case((model.enabled.is_(False), null()), else_=model.planned_cron)
    return update(model).where(model.name == name).values(values).returning(model.id)


def all_names(schedules: ScheduleTable) -> Select[Any]:
    """The names of all schedules."""
    return select(schedules.table.c.name).order_by(schedules.table.c.name)


@lru_cache(maxsize=64)
def listed(schedules: ScheduleTable) -> Executable:
    """What people want to know of schedules, by name. Index: the unique one of `name`.

    Parameters: after (a name, or None), limit.
    """
    c = schedules.table.c
    after: Any = parameter("after", type_=String())
    texts = ("name", "job_type", "queue", "cron", "timezone", "catch_up", "overlap", "declared_by", "last_error")
    instants = ("next_run_at", "last_slot", "retired_at", "created_at")
    return (
        select(
            *(c.id, cast_to(c.enabled, Text()).label("enabled"), c.catch_up_limit, c.slots_missed, c.overlaps_skipped),
            # As text and numbers: as in `_row_columns`.
            *(cast_to(c[name], Text()).label(name) for name in (*texts, "payload")),
            *(epoch(c[name]).label(name) for name in instants),
            type_coerce(c.offset, _DOUBLE).label("offset"),
        )
        .where(or_(after.is_(None), c.name > after))
        .order_by(c.name)
        .limit(parameter("limit", type_=Integer()))
    )
