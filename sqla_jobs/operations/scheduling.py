"""What a scheduler does, in short transactions of its caller: look, decide, write; declare, retire, revive.

Between the look and the write no row is locked. A write changes only rows that are still as they were read, and inserts
the jobs of those, in the same transaction: a scheduler that comes back late changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import Executable

from sqla_jobs.errors import UnknownHandler
from sqla_jobs.operations.enqueue import capabilities_of
from sqla_jobs.operations.enqueue_many import NewRow, by_attribute, insert_keyed, notify
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stored import instant, parsed, truth
from sqla_jobs.rules.failure import reason, start_of
from sqla_jobs.rules.schedules import Declaration, Move, ScheduleRow, broken, decide, slot_key, unserved
from sqla_jobs.schema import schedules as statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import Capabilities, as_rows
from sqla_jobs.schema.tables import ScheduleTable
from sqla_jobs.schema.trouble import is_lock_timeout, is_missing_table, is_outage

JOBS_PER_WRITE = 1000

ERROR_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Look:
    """What a scheduler found.

    :ivar now: the database's clock
    :ivar wait: seconds until the next slot; None if there is none
    :ivar has_revivable: a schedule that this registry declares was retired just now
    """

    now: datetime
    wait: float | None
    rows: list[ScheduleRow]
    has_revivable: bool


@dataclass(frozen=True, slots=True)
class Fired:
    """A job that a scheduler made; `job_id` is None where the slot's job was there already."""

    name: str
    slot: datetime
    job_id: int | None


@dataclass(slots=True)
class Written:
    """What a scheduler has written.

    :ivar moves: those that counted; the others' rows had changed, or were locked
    :ivar unwritable: rows that can't even be marked as broken, by name, with the error
    """

    moves: list[Move] = field(default_factory=list[Move])
    fired: list[Fired] = field(default_factory=list[Fired])
    queues: set[str] = field(default_factory=set[str])
    unwritable: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Declared:
    """What became of declarations.

    :ivar foreign: names whose rows were made at run time, or that another registry has declared; they are left alone
    :ivar failed: those that could not be stored, by name, with the error
    """

    foreign: list[str] = field(default_factory=list[str])
    failed: dict[str, str] = field(default_factory=dict[str, str])


class Recurring(Protocol):
    """What makes the jobs of a schedule, however it was read."""

    @property
    def id(self) -> int: ...
    @property
    def job_type(self) -> str: ...
    @property
    def payload(self) -> object: ...
    @property
    def queue(self) -> str | None: ...


def look(session: Session, jobs: Jobs[Any], *, limit: int, offset: int = 0) -> Look:
    """Read up to *limit* schedules that are due, and as many that were edited, after *offset*. It locks nothing."""
    statement = statements.look(jobs.schedules, jobs.table, capabilities_of(session, jobs))
    parameters = {"types": jobs.handlers.names, "registry": jobs.name, "limit": limit, "offset": offset}
    rows = _execute(session, jobs, statement, parameters).all()
    found = [row for row in rows if row.id is not None]
    now = instant(rows[0].now)
    assert now is not None  # noqa: S101  # the database's clock is a time
    return Look(
        now=now,
        wait=rows[0].wait,
        rows=[_schedule_row(row) for row in found if not row.is_retired],
        has_revivable=any(row.is_retired and row.name in jobs.declarations for row in found),
    )


def moves(jobs: Jobs[Any], found: Look) -> list[Move]:
    """Decide on what was found."""
    return [_decided(jobs, row, found.now) for row in found.rows]


def batches(decided: Sequence[Move]) -> Iterator[list[Move]]:
    """Cut into parts of few jobs: what one transaction writes."""
    batch: list[Move] = []
    size = 0
    for move in decided:
        if batch and size + len(move.firings) > JOBS_PER_WRITE:
            yield batch
            batch, size = [], 0
        batch.append(move)
        size += len(move.firings)
    if batch:
        yield batch


def write(session: Session, jobs: Jobs[Any], batch: Sequence[Move], *, now: datetime) -> Written:
    """Write *batch*, all at once; if a row in it can't be written, each by itself, and mark that row as broken.

    Passes over rows that others have locked, or have changed since they were read.
    """
    try:
        with session.begin_nested():
            return _write(session, jobs, batch)
    except Exception as error:
        # One row's fault, such as an app's column without a default, must not hold up the others.
        if _is_everyones(error):
            raise
        if _is_locked(error):
            _hurry(session, jobs)
    written = Written()
    for move in batch:
        _add(written, _write_alone(session, jobs, move, now))
    return written


def declare(session: Session, jobs: Jobs[Any], declarations: Sequence[Declaration]) -> Declared:
    """Insert or bring up to date the rows of *declarations*, all at once; if one can't be, each by itself."""
    ordered = sorted(declarations, key=lambda declaration: declaration.name)
    try:
        with session.begin_nested():
            return Declared(_declare(session, jobs, ordered))
    except Exception as error:
        if _is_everyones(error):
            raise
        if _is_locked(error):
            _hurry(session, jobs)
    declared = Declared()
    for each in ordered:
        try:
            with session.begin_nested():
                declared.foreign.extend(_declare(session, jobs, [each]))
        except Exception as error:
            if _is_everyones(error):
                raise
            declared.failed[each.name] = _said(jobs, error)
    return declared


def _declare(session: Session, jobs: Jobs[Any], declarations: Sequence[Declaration]) -> list[str]:
    if not declarations:
        return []
    can, table = capabilities_of(session, jobs), jobs.schedules
    rows = [asdict(each) for each in declarations]
    names = as_rows([{"name": row["name"]} for row in rows])
    found = _declared(session, jobs, names)
    if missing := [row for row in rows if row["name"] not in found]:
        mine = {"declared_by": jobs.name} | table.identity
        new = [by_attribute(table, row | mine) for row in missing]
        session.execute(statements.insert_schedules(table, can), new)
        found = _declared(session, jobs, names)
    for row in rows:
        stored = found.get(row["name"])
        if stored is not None and stored.declared_by == jobs.name and _differs(stored, row):
            changed = {"of_id": stored.id, "registry": jobs.name} | {"new_" + name: row[name] for name in row}
            _execute(session, jobs, statements.redeclare(table), changed)
    return [name for name, stored in found.items() if stored.declared_by != jobs.name]


def _hurry(session: Session, jobs: Jobs[Any]) -> None:
    """Wait for each lock no longer than it takes to see that it is held: there may be hundreds."""
    if (hurried := capabilities_of(session, jobs).hurried) is not None:
        session.execute(hurried, bind_arguments={"mapper": jobs.schedules.mapper})


def _said(jobs: Jobs[Any], error: Exception) -> str:
    """Give the first line of an error: those below may show the row."""
    if _is_locked(error):
        return "another transaction has its row locked"
    return start_of(reason(error, redact=jobs.redact).partition("\n")[0], ERROR_BYTES)


def retire(session: Session, jobs: Jobs[Any]) -> list[str]:
    """Retire what this registry has declared and declares no more; gives the names."""
    return _uphold(session, jobs, statements.retire)


def revive(session: Session, jobs: Jobs[Any]) -> list[str]:
    """Undo `retire` for what this registry declares: another release has not got it, or this one has it again."""
    return _uphold(session, jobs, statements.revive)


def _uphold(session: Session, jobs: Jobs[Any], build: Callable[[ScheduleTable, Capabilities], Executable]) -> list[str]:
    statement = build(jobs.schedules, capabilities_of(session, jobs))
    parameters = {"registry": jobs.name, "rows": as_rows([{"name": name} for name in sorted(jobs.declarations)])}
    return sorted(_execute(session, jobs, statement, parameters).scalars())


def _declared(session: Session, jobs: Jobs[Any], names: str) -> dict[str, Row[Any]]:
    statement = statements.declared(jobs.schedules, capabilities_of(session, jobs))
    return {row.name: row for row in _execute(session, jobs, statement, {"rows": names})}


def _differs(stored: Row[Any], row: dict[str, Any]) -> bool:
    offset = None if row["offset"] is None else row["offset"].total_seconds()
    found = {name: getattr(stored, name) for name in row} | {"payload": parsed(stored.payload)}
    return found != row | {"offset": offset}


def _decided(jobs: Jobs[Any], row: ScheduleRow, now: datetime) -> Move:
    try:
        jobs.handlers.find(row.job_type)
    except UnknownHandler as error:
        return unserved(row, f"{error} in registry {jobs.name!r}: a worker that has it will fire this schedule")
    return decide(row, now=now)


def _write_alone(session: Session, jobs: Jobs[Any], move: Move, now: datetime) -> Written:
    try:
        with session.begin_nested():
            return _write(session, jobs, [move])
    except Exception as error:
        if _is_everyones(error):
            raise
        if _is_locked(error):
            # Somebody has an open transaction with this slot's key: the next tick tries again.
            return Written()
        text = _said(jobs, error)
    try:
        with session.begin_nested():
            return _write(session, jobs, [broken(move, text, now=now)])
    except Exception as error:
        if _is_everyones(error):
            raise
        return Written(unwritable={move.row.name: text})


def _is_locked(error: Exception) -> bool:
    return isinstance(error, DBAPIError) and error.orig is not None and is_lock_timeout(error.orig)


def _is_everyones(error: Exception) -> bool:
    """Tell whether it is the database's trouble, and no single row's."""
    if not isinstance(error, DBAPIError) or error.orig is None or _is_locked(error):
        return False
    return error.connection_invalidated or is_outage(error.orig) or is_missing_table(error.orig)


def _write(session: Session, jobs: Jobs[Any], batch: Sequence[Move]) -> Written:
    statement = statements.move(jobs.schedules, capabilities_of(session, jobs))
    rows = as_rows([_move_row(move) for move in batch])
    ids = set(_execute(session, jobs, statement, {"rows": rows}).scalars())
    counted = [move for move in batch if move.row.id in ids]
    new = [slot_row(jobs, move.row, each.slot, each.run_at) for move in counted for each in move.firings]
    stored = dict(insert_keyed(session, jobs, new)) if new else {}
    queues = {row.values["queue"] for row in new}
    notify(session, jobs, queues)
    fired = [
        Fired(move.row.name, firing.slot, stored.get(slot_key(move.row.id, firing.slot)))
        for move in counted
        for firing in move.firings
    ]
    return Written(counted, fired, queues)


def job_columns(jobs: Jobs[Any], schedule: Recurring) -> dict[str, Any]:
    """Give what every job of a schedule has.

    :raises UnknownHandler: the registry doesn't know its type
    """
    spec = jobs.handlers.find(schedule.job_type)
    return {
        "type": schedule.job_type,
        "payload": schedule.payload,
        "queue": schedule.queue if schedule.queue is not None else spec.queue,
        "max_attempts": spec.max_attempts,
        "schedule_id": schedule.id,
    } | jobs.table.identity


def slot_row(jobs: Jobs[Any], schedule: Recurring, slot: datetime, run_at: datetime) -> NewRow:
    """Give the row of a slot's job."""
    key = slot_key(schedule.id, slot)
    columns = job_columns(jobs, schedule) | {"idempotency_key": key, "slot": slot, "run_at": run_at}
    return NewRow(0, key, by_attribute(jobs.table, columns))


def _add(written: Written, more: Written) -> None:
    written.moves += more.moves
    written.fired += more.fired
    written.queues |= more.queues
    written.unwritable |= more.unwritable


def _execute(session: Session, jobs: Jobs[Any], statement: Executable, parameters: dict[str, Any]) -> Any:
    return session.execute(statement, said(parameters), bind_arguments={"mapper": jobs.schedules.mapper})


def _move_row(move: Move) -> dict[str, object]:
    row = move.row
    return row.seen | {
        "id": row.id,
        "cron": row.cron,
        "timezone": row.timezone,
        "is_planned": move.is_planned,
        "next_run_at": _seconds(move.next_run_at),
        "last_slot": _seconds(move.last_slot),
        "missed": move.missed,
        "overlaps": move.overlaps,
        "error": move.error,
    }


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _schedule_row(row: Row[Any]) -> ScheduleRow:
    return ScheduleRow(
        id=row.id,
        name=row.name,
        job_type=row.job_type,
        payload=parsed(row.payload),
        queue=row.queue,
        cron=row.cron,
        timezone=row.timezone,
        offset=row.offset,
        enabled=truth(row.enabled),
        catch_up=row.catch_up,
        catch_up_limit=row.catch_up_limit,
        overlap=row.overlap,
        is_edited=bool(row.is_edited),
        has_unfinished=bool(row.has_unfinished),
        next_run_at=instant(row.next_run_at),
        last_slot=instant(row.last_slot),
        last_error=row.last_error,
        seen={"enabled": row.enabled, "seen_next_run_at": row.seen_next_run_at, "seen_last_slot": row.seen_last_slot},
    )
