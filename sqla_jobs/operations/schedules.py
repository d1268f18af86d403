"""What people do with schedules, in a session of theirs: list, trigger, pause, resume, preview, backfill.

Each takes a Session or an AsyncSession (then it is awaited), never commits, and takes effect with the transaction.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload
from zoneinfo import ZoneInfo

from sqlalchemy import Row
from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.errors import InvalidOption, UnknownSchedule
from sqla_jobs.operations.callers import flush
from sqla_jobs.operations.enqueue import insert, run_on, wake_later
from sqla_jobs.operations.enqueue_many import insert_keyed, read_keys, tell
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.scheduling import job_columns, slot_row
from sqla_jobs.operations.stored import instant, parsed, truth
from sqla_jobs.rules.options import check_instant
from sqla_jobs.rules.registry import check_number, check_text
from sqla_jobs.rules.schedules import offset_of, slot_key, slots_between, upcoming
from sqla_jobs.schema import schedules as statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.mixins import JobMixin
from sqla_jobs.schema.statements import current_time

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

J = TypeVar("J", bound=JobMixin)

LONGEST_PREVIEW = 10_000
LONGEST_BACKFILL = 1000
"""Slots in one call."""


LONGEST_LIST = 10_000
"""Schedules in one call."""


@dataclass(frozen=True, slots=True)
class FoundSchedule:
    """A schedule, as its row says.

    :ivar payload: the arguments of its jobs; None also for what is no JSON
    :ivar offset: how long after its slot a job is due; None: by the name, or not to be read
    :ivar next_run_at: the next slot; for a row in error, when it is tried again. None: not planned, or not to be read
    :ivar is_known: whether this registry has a handler for its jobs
    """

    id: int
    name: str
    job_type: str
    payload: object
    queue: str | None
    cron: str
    timezone: str
    offset: timedelta | None
    enabled: bool
    catch_up: str
    catch_up_limit: int
    overlap: str
    declared_by: str | None
    retired_at: datetime | None
    next_run_at: datetime | None
    last_slot: datetime | None
    slots_missed: int
    overlaps_skipped: int
    last_error: str | None
    created_at: datetime | None
    is_known: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """One instant of a schedule.

    :ivar at: in UTC
    :ivar local: the same instant in the schedule's zone
    :ivar offset: how long after it the job is due
    :ivar job_id: the job that stands for it, where `backfill` has found or made one
    :ivar is_archived: that job is in the archive
    :ivar is_new: `backfill` has made it
    """

    at: datetime
    local: datetime
    offset: timedelta
    job_id: int | None = None
    is_archived: bool = False
    is_new: bool = False

    @property
    def run_at(self) -> datetime:
        """When a scheduler has the job due."""
        return self.at + self.offset


@overload
def list_schedules(
    session: Session | scoped_session[Any], jobs: Jobs[Any], /, *, limit: int = 1000, after: str | None = None
) -> list[FoundSchedule]: ...
@overload
def list_schedules(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    /,
    *,
    limit: int = 1000,
    after: str | None = None,
) -> Coroutine[Any, Any, list[FoundSchedule]]: ...
def list_schedules(session: Any, jobs: Jobs[Any], /, *, limit: int = 1000, after: str | None = None) -> Any:
    """Give up to *limit* schedules by name, those after the name *after*, whoever made them. Reads only.

    :raises InvalidModel: the registry has no schedules
    """
    check_number("limit", limit, least=1)
    if limit > LONGEST_LIST:
        raise InvalidOption(f"limit is from 1 to {LONGEST_LIST}, and is {limit}")

    def look(sync: Session) -> list[FoundSchedule]:
        _check_jobs(jobs)
        table = jobs.schedules
        parameters = {"limit": limit, "after": after}
        rows = sync.execute(statements.listed(table), said(parameters), bind_arguments={"mapper": table.mapper})
        return [_found_schedule(row, jobs) for row in rows]

    return run_on(session, look)


@overload
def trigger(session: Session | scoped_session[Any], jobs: Jobs[J], name: str, /) -> J: ...
@overload
def trigger(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[J], name: str, /
) -> Coroutine[Any, Any, J]: ...
def trigger(session: Any, jobs: Jobs[Any], name: str, /) -> Any:
    """Enqueue one job of a schedule now, whatever its slots; also of one that is paused. Gives the job.

    It bears the schedule's id and no slot. For `overlap='skip'` it counts as a job of the schedule.

    :raises UnknownSchedule: there is no schedule of that name
    :raises UnknownHandler: this registry doesn't know its type
    :raises PayloadError: its payload doesn't fit the handler
    """

    def store(sync: Session) -> Any:
        schedule = _found(sync, jobs, name)
        _check_payload(jobs, schedule)
        columns = job_columns(jobs, schedule)
        job = insert(sync, jobs, columns)
        wake_later(sync, jobs, {columns["queue"]})
        return job

    return run_on(session, store)


@overload
def pause(session: Session | scoped_session[Any], jobs: Jobs[Any], name: str, /) -> None: ...
@overload
def pause(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], name: str, /
) -> Coroutine[Any, Any, None]: ...
def pause(session: Any, jobs: Jobs[Any], name: str, /) -> Any:
    """Fire no more slots of a schedule, until `resume`. Jobs that are there already run.

    :raises UnknownSchedule: there is no schedule of that name
    """
    return run_on(session, _enabling(jobs, name, enabled=False))


@overload
def resume(session: Session | scoped_session[Any], jobs: Jobs[Any], name: str, /) -> None: ...
@overload
def resume(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], name: str, /
) -> Coroutine[Any, Any, None]: ...
def resume(session: Any, jobs: Jobs[Any], name: str, /) -> Any:
    """Fire the slots of a schedule again, from now on: those of the pause are not caught up.

    A retired schedule stays retired: its code has to come back.

    :raises UnknownSchedule: there is no schedule of that name
    """
    return run_on(session, _enabling(jobs, name, enabled=True))


@overload
def preview(session: Session | scoped_session[Any], jobs: Jobs[Any], name: str, /, *, count: int = 5) -> list[Slot]: ...
@overload
def preview(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], name: str, /, *, count: int = 5
) -> Coroutine[Any, Any, list[Slot]]: ...
def preview(session: Any, jobs: Jobs[Any], name: str, /, *, count: int = 5) -> Any:
    """Give the next *count* slots of a schedule from now on, as if it were neither paused nor retired. Reads only.

    :raises UnknownSchedule: there is no schedule of that name
    :raises InvalidSchedule: its cron text or zone can't be followed
    """
    check_number("count", count, least=1)
    if count > LONGEST_PREVIEW:
        raise InvalidOption(f"count is from 1 to {LONGEST_PREVIEW}, and is {count}")

    def look(sync: Session) -> list[Slot]:
        schedule = _found(sync, jobs, name)
        return [_slot(schedule, at) for at in upcoming(schedule.cron, schedule.timezone, _now(sync, jobs), count)]

    return run_on(session, look)


@overload
def preview_backfill(
    session: Session | scoped_session[Any], jobs: Jobs[Any], name: str, /, start: datetime, end: datetime
) -> list[Slot]: ...
@overload
def preview_backfill(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], name: str, /, start: datetime, end: datetime
) -> Coroutine[Any, Any, list[Slot]]: ...
def preview_backfill(session: Any, jobs: Jobs[Any], name: str, /, start: datetime, end: datetime) -> Any:
    """Give the slots that `backfill` would look at; those with a `job_id` it would skip. Reads only.

    :raises UnknownSchedule: there is no schedule of that name
    :raises InvalidSchedule: there are more than 1,000 slots, or its cron text or zone can't be followed
    :raises InvalidOption: a time is naive, or the end lies in the future
    """
    return run_on(session, lambda sync: _looked_up(sync, jobs, _found(sync, jobs, name), start, end))


@overload
def backfill(
    session: Session | scoped_session[Any], jobs: Jobs[Any], name: str, /, start: datetime, end: datetime
) -> list[Slot]: ...
@overload
def backfill(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], name: str, /, start: datetime, end: datetime
) -> Coroutine[Any, Any, list[Slot]]: ...
def backfill(session: Any, jobs: Jobs[Any], name: str, /, start: datetime, end: datetime) -> Any:
    """Enqueue the jobs of past slots, from *start* to before *end*, that have none; they are due at once.

    Skips slots whose job exists, whatever its status, or is in the archive. A job that was deleted is made again.
    Gives all the slots, with their jobs; new ones have `is_new`. At most 1,000 slots in one call.

    :raises UnknownSchedule: there is no schedule of that name
    :raises UnknownHandler: this registry doesn't know its type
    :raises PayloadError: its payload doesn't fit the handler
    :raises InvalidSchedule: there are more than 1,000 slots, or its cron text or zone can't be followed
    :raises InvalidOption: a time is naive, or the end lies in the future
    """

    def store(sync: Session) -> list[Slot]:
        schedule = _found(sync, jobs, name)
        _check_payload(jobs, schedule)
        slots = _looked_up(sync, jobs, schedule, start, end)
        now = _now(sync, jobs)
        rows = [slot_row(jobs, schedule, slot.at, now) for slot in slots if slot.job_id is None]
        new = dict(insert_keyed(sync, jobs, rows))
        if rows:
            tell(sync, jobs, {row.values["queue"] for row in rows})
        # What another transaction has stored meanwhile is there, too.
        ids = dict(read_keys(sync, jobs.table, [row.key for row in rows if row.key and row.key not in new])) | new
        return [
            replace(slot, job_id=ids.get(key, slot.job_id), is_new=key in new)
            for slot, key in ((slot, slot_key(schedule.id, slot.at)) for slot in slots)
        ]

    return run_on(session, store)


@dataclass(frozen=True, slots=True)
class _Schedule:
    """A schedule as its row says now, whatever objects the session holds."""

    id: int
    name: str
    job_type: str
    payload: object
    queue: str | None
    cron: str
    timezone: str
    offset: float | None


def _found_schedule(row: Row[Any], jobs: Jobs[Any]) -> FoundSchedule:
    return FoundSchedule(
        id=row.id,
        name=row.name,
        job_type=row.job_type,
        payload=parsed(row.payload),
        queue=row.queue,
        cron=row.cron,
        timezone=row.timezone,
        offset=_span(row.offset),
        enabled=truth(row.enabled) is not False,
        catch_up=row.catch_up,
        catch_up_limit=row.catch_up_limit,
        overlap=row.overlap,
        declared_by=row.declared_by,
        retired_at=instant(row.retired_at),
        next_run_at=instant(row.next_run_at),
        last_slot=instant(row.last_slot),
        slots_missed=row.slots_missed,
        overlaps_skipped=row.overlaps_skipped,
        last_error=row.last_error,
        created_at=instant(row.created_at),
        is_known=row.job_type in jobs.handlers.names,
    )


def _span(seconds: Any) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (TypeError, ValueError, OverflowError):
        return None


def _found(session: Session, jobs: Jobs[Any], name: str) -> _Schedule:
    _check_jobs(jobs)
    flush(session)
    row = session.execute(statements.by_name(jobs.schedules, check_text("name", name))).one_or_none()
    if row is None:
        raise _unknown(session, jobs, name)
    return _Schedule(
        id=row.id,
        name=row.name,
        job_type=row.job_type,
        payload=parsed(row.payload),
        queue=row.queue,
        cron=row.cron,
        timezone=row.timezone,
        offset=row.offset,
    )


def _check_jobs(jobs: object) -> None:
    if not isinstance(jobs, Jobs):
        raise InvalidOption(f"a Jobs comes second, then the schedule's name; this is a {type(jobs).__name__}")


def _unknown(session: Session, jobs: Jobs[Any], name: str) -> UnknownSchedule:
    names = session.scalars(statements.all_names(jobs.schedules), bind_arguments={"mapper": jobs.schedules.mapper})
    near = difflib.get_close_matches(name, names.all(), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UnknownSchedule(
        f"no schedule named {name!r}{hint}; one that code declares has its row once a worker has started"
    )


def _enabling(jobs: Jobs[Any], name: str, *, enabled: bool) -> Callable[[Session], None]:
    def store(session: Session) -> None:
        _check_jobs(jobs)
        flush(session)
        statement = statements.enable(jobs.schedules, check_text("name", name), enabled=enabled)
        if session.execute(statement).one_or_none() is None:
            raise _unknown(session, jobs, name)

    return store


def _check_payload(jobs: Jobs[Any], schedule: _Schedule) -> None:
    """Refuse a payload that no attempt could run: a person is there to hear of it."""
    jobs.handlers.find(schedule.job_type).arguments.load(schedule.payload)


def _slot(schedule: _Schedule, at: datetime) -> Slot:
    offset = offset_of(schedule.cron, schedule.name, schedule.offset)
    return Slot(at, at.astimezone(ZoneInfo(schedule.timezone)), offset)


def _now(session: Session, jobs: Jobs[Any]) -> datetime:
    bind = {"mapper": jobs.schedules.mapper}
    now: datetime = session.scalars(current_time(jobs.schedules), bind_arguments=bind).one()
    return now


def _looked_up(session: Session, jobs: Jobs[Any], schedule: _Schedule, start: datetime, end: datetime) -> list[Slot]:
    """Give the slots of a range, with the jobs that are there."""
    check_instant("start", start)
    check_instant("end", end)
    if start > end:
        raise InvalidOption(f"backfill goes from start to end, and {start} is after {end}: swap them")
    if end > (now := _now(session, jobs)):
        raise InvalidOption(f"backfill is for slots that have passed, and end is {end}: it is {now} now")
    ats = slots_between(schedule.cron, schedule.timezone, start=start, end=end, limit=LONGEST_BACKFILL)
    keys = [slot_key(schedule.id, at) for at in ats]
    live = dict(read_keys(session, jobs.table, keys))
    archived = {} if jobs.archive is None else dict(read_keys(session, jobs.archive, keys))
    return [
        replace(
            _slot(schedule, at),
            job_id=live.get(key, archived.get(key)),
            is_archived=key not in live and key in archived,
        )
        for at, key in zip(ats, keys, strict=True)
    ]
