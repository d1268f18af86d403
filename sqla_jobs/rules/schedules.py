"""What a scheduler does with a schedule: plan it anew, fire its slots, or mark it as broken.

A slot is an instant that the cron text names. Each is decided once: it gets a job, or it is counted as missed or as
overlapping. `last_slot` is the newest that has been decided, and never moves back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast, get_args

from sqla_jobs.errors import LONGEST_DELAY, InvalidOption, InvalidSchedule
from sqla_jobs.rules.cron import check_cron, check_zone, count_slots, next_slot, previous_slot, spread
from sqla_jobs.rules.registry import check_duration, check_number, check_text

CatchUp = Literal["latest", "all", "skip"]
Overlap = Literal["allow", "skip"]

DEFAULT_LIMIT = 100
LARGEST_LIMIT = 10_000

ON_TIME = timedelta(seconds=60)
"""With `catch_up='skip'`, a lone slot that is noticed within this time still fires."""

BROKEN_RETRY = timedelta(minutes=1)
"""How long a row in error is left alone. An edit ends the wait."""

_INSTANT = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)

_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
"""What plain SQL may set before this is taken for it: the years of `rules.options.check_instant`."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule as code declares it; the names are those of the columns."""

    name: str
    job_type: str
    payload: dict[str, Any]
    queue: str | None
    cron: str
    timezone: str
    offset: timedelta | None
    catch_up: CatchUp
    catch_up_limit: int
    overlap: Overlap

    def __post_init__(self) -> None:
        for part in ("name", "cron", "timezone", "offset", "catch_up", "catch_up_limit", "overlap"):
            check_part(part, getattr(self, part))


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as a scheduler read it.

    :ivar enabled: None for what is neither true nor false
    :ivar is_edited: what people wrote differs from what was planned
    :ivar has_unfinished: an earlier job of it is unfinished; looked up only for `overlap='skip'`
    :ivar seen: what the row held when it was read, for the compare-and-set of the write
    """

    id: int
    name: str
    job_type: str
    payload: object
    queue: str | None
    cron: str
    timezone: str
    offset: float | None
    enabled: bool | None
    catch_up: str
    catch_up_limit: int
    overlap: str
    is_edited: bool
    has_unfinished: bool
    next_run_at: datetime | None
    last_slot: datetime | None
    last_error: str | None
    seen: dict[str, object]


@dataclass(frozen=True, slots=True)
class Firing:
    """A job to make: for which slot, and when it is due."""

    slot: datetime
    run_at: datetime


@dataclass(frozen=True, slots=True)
class Move:
    """What to write for one schedule, if its row is still as it was read.

    :ivar is_planned: False where another scheduler may know better: its plan is left alone
    """

    row: ScheduleRow
    firings: tuple[Firing, ...] = ()
    next_run_at: datetime | None = None
    last_slot: datetime | None = None
    missed: int = 0
    overlaps: int = 0
    error: str | None = None
    is_planned: bool = True


def decide(row: ScheduleRow, *, now: datetime) -> Move:
    """Decide on a row that is due or edited. *now* is the database's."""
    try:
        if row.is_edited or not row.enabled or row.next_run_at is None:
            return _planned(row, now)
        return _fired(row, _undecided_from(row, row.next_run_at), now)
    except InvalidOption as error:
        return Move(row, next_run_at=now + BROKEN_RETRY, last_slot=_decided_until(row, now), error=str(error))


def unserved(row: ScheduleRow, error: str) -> Move:
    """Mark a row whose type this registry doesn't know; another's scheduler may, and has its slot."""
    return Move(row, last_slot=_decided_until(row, None), error=error, is_planned=False)


def broken(move: Move, error: str, *, now: datetime) -> Move:
    """Give the move for when *move* can't be written: none of its slots is decided, and all are tried again."""
    row = move.row
    if not move.firings:
        return Move(row, next_run_at=now + BROKEN_RETRY, last_slot=_decided_until(row, now), error=error)
    before = previous_slot(row.cron, row.timezone, move.firings[0].slot)
    decided = before if row.last_slot is None else max(before, row.last_slot)
    return Move(row, next_run_at=now + BROKEN_RETRY, last_slot=decided, missed=move.missed, error=error)


def _planned(row: ScheduleRow, now: datetime) -> Move:
    """Plan from now on: slots that have passed are not fired."""
    if row.enabled is False:
        return Move(row, last_slot=row.last_slot)
    _check(row)
    return Move(row, next_run_at=next_slot(row.cron, row.timezone, now), last_slot=row.last_slot)


def _undecided_from(row: ScheduleRow, next_run_at: datetime) -> datetime:
    """Give the instant after which slots are undecided."""
    if row.last_slot is None:
        return max(next_run_at, _EARLIEST) - _INSTANT
    if row.last_error is not None:
        return row.last_slot  # next_run_at is when the row is tried again
    return max(row.last_slot, max(next_run_at, _EARLIEST) - _INSTANT)


def _decided_until(row: ScheduleRow, now: datetime | None) -> datetime | None:
    """Give the `last_slot` of a row that gets an error: its slots from then on stay undecided, those before don't."""
    if row.is_edited:
        decided = None if now is None else now.replace(microsecond=0)
    elif row.last_error is not None or row.next_run_at is None:
        decided = None
    else:
        decided = _slot_before(row, max(row.next_run_at, _EARLIEST))
    return max(filter(None, (row.last_slot, decided)), default=None)


def _slot_before(row: ScheduleRow, slot: datetime) -> datetime:
    try:
        return previous_slot(row.cron, row.timezone, slot)
    except InvalidOption:  # it is the text that is broken
        return slot - _SECOND


def _fired(row: ScheduleRow, after: datetime, now: datetime) -> Move:
    """Fire what is due by the row's `catch_up` and `overlap`, and count the rest."""
    _check(row)
    newest = previous_slot(row.cron, row.timezone, now + _INSTANT)
    if newest <= after:
        return Move(row, next_run_at=next_slot(row.cron, row.timezone, max(after, now)), last_slot=row.last_slot)
    slots = _CAUGHT_UP[row.catch_up](row, after, newest, now)
    missed, reached = _missed(row, after, slots[0] if slots else newest + _INSTANT)
    if reached is not None:
        # More than is counted at once: the next tick goes on from there.
        return Move(row, next_run_at=next_slot(row.cron, row.timezone, reached), last_slot=reached, missed=missed)
    fired = slots
    if row.overlap == "skip":
        fired = [] if row.has_unfinished else slots[:1]
    offset = offset_of(row.cron, row.name, row.offset)
    return Move(
        row,
        tuple(Firing(slot, slot + offset) for slot in fired),
        next_run_at=next_slot(row.cron, row.timezone, newest),
        last_slot=newest,
        missed=missed,
        overlaps=len(slots) - len(fired),
    )


def _latest(row: ScheduleRow, after: datetime, newest: datetime, now: datetime) -> list[datetime]:
    return [newest]


def _all(row: ScheduleRow, after: datetime, newest: datetime, now: datetime) -> list[datetime]:
    slots = [newest]
    while len(slots) < row.catch_up_limit:
        before = previous_slot(row.cron, row.timezone, slots[-1])
        if before <= after:
            break
        slots.append(before)
    return slots[::-1]


def _on_time(row: ScheduleRow, after: datetime, newest: datetime, now: datetime) -> list[datetime]:
    is_lone = previous_slot(row.cron, row.timezone, newest) <= after
    return [newest] if is_lone and now - newest <= ON_TIME else []


_CAUGHT_UP: dict[str, Callable[[ScheduleRow, datetime, datetime, datetime], list[datetime]]] = {
    "latest": _latest,
    "all": _all,
    "skip": _on_time,
}


def _missed(row: ScheduleRow, after: datetime, before: datetime) -> tuple[int, datetime | None]:
    """Count the slots between; give also how far the count came, if that was not the whole way."""
    until = before - _INSTANT
    missed, reached = count_slots(row.cron, row.timezone, after=after, until=until)
    return missed, None if reached >= until else reached


def offset_of(cron: str, name: str, seconds: float | None) -> timedelta:
    """Give how long after a slot its job is due.

    :raises InvalidSchedule: the stored number is out of range
    """
    if seconds is None:
        return spread(cron, name)
    given = cast("object", seconds)  # SQLite stores any type in any column
    if not (isinstance(given, int | float) and 0 <= given <= LONGEST_DELAY.total_seconds()):
        raise InvalidSchedule(f"the offset of schedule {name!r} is {given!r} seconds: from 0 to {LONGEST_DELAY}")
    return timedelta(seconds=seconds)


def upcoming(cron: str, zone: str, after: datetime, count: int) -> list[datetime]:
    """Give the next *count* slots."""
    slots: list[datetime] = []
    while len(slots) < count:
        slots.append(next_slot(cron, zone, slots[-1] if slots else after))
    return slots


def slots_between(cron: str, zone: str, *, start: datetime, end: datetime, limit: int) -> list[datetime]:
    """Give the slots from *start* to before *end*.

    :raises InvalidSchedule: there are more than *limit*
    """
    slots: list[datetime] = []
    slot = next_slot(cron, zone, start)
    before = previous_slot(cron, zone, slot)
    slot = before if before >= start else slot  # *start* is a slot itself
    while slot < end:
        if len(slots) == limit:
            raise InvalidSchedule(
                f"there are more than {limit} slots from {start} to {end}: take a shorter range, several times"
            )
        slots.append(slot)
        slot = next_slot(cron, zone, slot)
    return slots


def slot_key(schedule_id: int, slot: datetime) -> str:
    """Give the idempotency key of a slot's job."""
    return f"schedule:{schedule_id}:{slot.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _check(row: ScheduleRow) -> None:
    """Look at what plain SQL may have written."""
    if row.enabled is None:
        raise InvalidSchedule(f"enabled of schedule {row.name!r} is neither true nor false: write the one or the other")
    for part in ("cron", "timezone", "catch_up", "catch_up_limit", "overlap"):
        check_part(part, getattr(row, part))
    offset_of(row.cron, row.name, row.offset)
    if not isinstance(row.payload, dict):
        raise InvalidSchedule(f"the payload of schedule {row.name!r} is no JSON object: write the handler's arguments")


def check_part(part: str, value: Any) -> Any:
    """Give the *value* of a schedule's column if it is one that a scheduler can follow.

    :raises InvalidSchedule: cron text, zone, `catch_up`, `overlap`
    :raises InvalidOption: another part
    """
    return _CHECKS[part](value)


def _one_of(what: str, choices: tuple[str, ...]) -> Callable[[object], object]:
    def check(value: object) -> object:
        if value not in choices:
            raise InvalidSchedule(f"{what} is {value!r}: write one of {', '.join(map(repr, choices))}")
        return value

    return check


def _text(what: str) -> Callable[[object], object]:
    return lambda value: check_text(what, value)


def _limit(value: object) -> object:
    if isinstance(value, int) and not 1 <= value <= LARGEST_LIMIT:
        raise InvalidOption(f"catch_up_limit is from 1 to {LARGEST_LIMIT}, and is {value}")
    return check_number("catch_up_limit", value, least=1)


_CHECKS: dict[str, Callable[[Any], object]] = {
    "name": _text("name"),
    "job_type": _text("job_type"),
    "queue": lambda value: None if value is None else check_text("queue", value),
    "cron": check_cron,
    "timezone": check_zone,
    "offset": lambda value: None if value is None else check_duration("offset", value, most=LONGEST_DELAY),
    "catch_up": _one_of("catch_up", get_args(CatchUp)),
    "catch_up_limit": _limit,
    "overlap": _one_of("overlap", get_args(Overlap)),
}
