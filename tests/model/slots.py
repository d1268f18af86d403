"""What the rows of schedules must hold, and which slots get a job: DESIGN.md's section 7 once more, in plain Python.

All cron texts here mean every so many minutes, so that slots are found by arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from tests.model.app import MINUTE, START

BROKEN: Final = "61 * * * *"

MINUTES: Final = {"* * * * *": 1, "*/5 * * * *": 5, "0 * * * *": 60}
"""Minutes between two slots."""

CATCH_UPS: Final = ("latest", "all", "skip")

WRONG_CATCH_UP: Final = "sometimes"

LIMIT: Final = 3
"""How many slots `catch_up='all'` fires."""

WRONG: Final = "an error"
"""Stands for any text in `last_error`."""


@dataclass(kw_only=True)
class ScheduleRow:
    """A schedule's row; the names are those of the columns."""

    id: int
    name: str
    cron: str
    catch_up: str
    overlap: str
    created_at: datetime
    job_type: str = "report"
    payload: dict[str, Any] = field(default_factory=dict[str, Any])
    queue: str | None = None
    timezone: str = "UTC"
    offset: timedelta | None = timedelta(0)
    enabled: bool = True
    catch_up_limit: int = LIMIT
    declared_by: str | None = None
    retired_at: datetime | None = None
    planned_cron: str | None = None
    planned_timezone: str | None = None
    planned_enabled: bool | None = None
    next_run_at: datetime | None = None
    last_slot: datetime | None = None
    slots_missed: int = 0
    overlaps_skipped: int = 0
    last_error: str | None = None

    @property
    def is_edited(self) -> bool:
        """Whether what people wrote is not what was planned."""
        planned = (self.planned_cron, self.planned_timezone, self.planned_enabled)
        return planned != (self.cron, self.timezone, self.enabled) or self.enabled == (self.next_run_at is None)

    @property
    def seen(self) -> tuple[object, ...]:
        """What a write compares with what its scheduler has read."""
        return (self.cron, self.timezone, self.enabled, self.next_run_at, self.last_slot)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a scheduler has decided on a row that it has read."""

    schedule_id: int
    seen: tuple[object, ...]
    last_slot: datetime | None
    next_run_at: datetime | None = None
    slots: tuple[datetime, ...] = ()
    missed: int = 0
    overlaps: int = 0
    is_broken: bool = False
    is_planned: bool = True


def plan(row: ScheduleRow, now: datetime, *, knows_type: bool, has_unfinished: bool) -> Plan | None:
    """Decide; None if the row is not even looked at."""
    is_due = row.next_run_at is not None and row.next_run_at <= now
    if not knows_type:
        # Marked once, for people to see; whoever knows the type has the slot.
        is_overdue = row.next_run_at is not None and row.next_run_at <= now - MINUTE
        if row.last_error is not None or not (is_overdue or row.is_edited):
            return None
        reached = _decided_until(row, None)
        return Plan(schedule_id=row.id, seen=row.seen, last_slot=reached, is_broken=True, is_planned=False)
    if not (is_due or row.is_edited):
        return None
    if row.enabled and (row.cron not in MINUTES or row.catch_up not in CATCH_UPS):
        later, reached = now + MINUTE, _decided_until(row, now)
        return Plan(schedule_id=row.id, seen=row.seen, last_slot=reached, next_run_at=later, is_broken=True)
    if row.is_edited:
        following = _after(row, now) if row.enabled else None
        return Plan(schedule_id=row.id, seen=row.seen, last_slot=row.last_slot, next_run_at=following)
    return _fired(row, now, has_unfinished=has_unfinished)


def _fired(row: ScheduleRow, now: datetime, *, has_unfinished: bool) -> Plan:
    after = _undecided_from(row)
    undecided: list[datetime] = []
    slot = _after(row, after)
    while slot <= now:
        undecided.append(slot)
        slot = _after(row, slot)
    chosen = _caught_up(row, undecided, now)
    fired = chosen
    if row.overlap == "skip":
        fired = [] if has_unfinished else chosen[:1]
    return Plan(
        schedule_id=row.id,
        seen=row.seen,
        last_slot=undecided[-1] if undecided else row.last_slot,
        next_run_at=slot,
        slots=tuple(fired),
        missed=len(undecided) - len(chosen),
        overlaps=len(chosen) - len(fired),
    )


def _caught_up(row: ScheduleRow, undecided: list[datetime], now: datetime) -> list[datetime]:
    if row.catch_up == "skip":
        return undecided if len(undecided) == 1 and now - undecided[0] <= MINUTE else []
    return undecided[-1:] if row.catch_up == "latest" else undecided[-LIMIT:]


def _undecided_from(row: ScheduleRow) -> datetime:
    assert row.next_run_at is not None
    before = row.next_run_at - timedelta.resolution
    if row.last_slot is None:
        return before
    return row.last_slot if row.last_error is not None else max(row.last_slot, before)


def _decided_until(row: ScheduleRow, now: datetime | None) -> datetime | None:
    """Give the `last_slot` of a row that gets an error: the slots from then on are fired once it is mended."""
    decided: datetime | None = None
    if row.is_edited:
        decided = now
    elif row.last_error is None and row.next_run_at is not None:
        decided = _before(row, row.next_run_at)
    return max(filter(None, (row.last_slot, decided)), default=None)


def _before(row: ScheduleRow, moment: datetime) -> datetime:
    if row.cron not in MINUTES:
        return moment - timedelta(seconds=1)
    period = MINUTES[row.cron] * MINUTE
    return START + (moment - START - timedelta.resolution) // period * period


def _after(row: ScheduleRow, moment: datetime) -> datetime:
    period = MINUTES[row.cron] * MINUTE
    return START + ((moment - START) // period + 1) * period


def carry_out(row: ScheduleRow, decided: Plan) -> None:
    """Write what was decided to a row that is as it was read."""
    if decided.is_planned:
        row.planned_cron, row.planned_timezone, row.planned_enabled = row.cron, row.timezone, row.enabled
        row.next_run_at = decided.next_run_at
    row.last_slot = decided.last_slot
    row.slots_missed += decided.missed
    row.overlaps_skipped += decided.overlaps
    row.last_error = WRONG if decided.is_broken else None
