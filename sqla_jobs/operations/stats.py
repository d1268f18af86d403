"""Figures of the tables: how much waits and how long, what runs, what has failed.

.. code-block:: python

    with Session() as session:
        figures = stats(session, jobs)
        if (figures.oldest_ready or timedelta(0)) > timedelta(minutes=5): ...

Each figure has a bounded cost, which hangs on what is unfinished, never on the done rows: a count stops at a cap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Row
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.base import Executable

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.callers import flush
from sqla_jobs.operations.enqueue import capabilities_of, run_on
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stored import instant
from sqla_jobs.rules.registry import check_number
from sqla_jobs.schema import reports
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import Capabilities
from sqla_jobs.schema.schedules import LARGEST

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

_Lane = tuple[str, str]

MOST_LANES = 1000

LONGEST_AGE = timedelta(days=36_525)
"""A hundred years: also what is told of a time that no datetime can hold, such as '-infinity'."""


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One queue and type, with its ready and running jobs.

    :ivar is_known: this registry has a handler of that name
    :ivar due: ready jobs that any worker of the type may claim now
    :ivar later: ready jobs that are not due yet, those that wait for a retry too
    :ivar oldest: how long the oldest due job has been due; None if none is
    :ivar is_due_capped: `due` has reached its cap, and means "at least"; likewise `is_later_capped`
    """

    queue: str
    type: str
    is_known: bool
    due: int = 0
    later: int = 0
    running: int = 0
    oldest: timedelta | None = None
    is_due_capped: bool = False
    is_later_capped: bool = False


@dataclass(frozen=True, slots=True)
class RunningStats:
    """A running job.

    :ivar started_at: when its attempt was claimed; None, as `age`, if somebody has set it running by hand
    """

    job_id: int
    type: str
    queue: str
    started_at: datetime | None
    age: timedelta | None
    locked_by: str | None
    locked_until: datetime | None


@dataclass(frozen=True, slots=True)
class ScheduleStats:
    """The schedules, by what becomes of them.

    :ivar enabled: those that fire, `in_error` too
    :ivar paused: by people
    :ivar retired: their code is gone
    :ivar in_error: enabled, and something keeps them from firing: see `last_error` of the rows
    :ivar slots_missed: of all of them ever, as is `overlaps_skipped`
    :ivar capped: there are as many rows as were looked at, or more; the figures mean "at least"
    """

    enabled: int
    paused: int
    retired: int
    in_error: int
    slots_missed: int
    overlaps_skipped: int
    capped: bool


@dataclass(frozen=True, slots=True)
class Stats:
    """What the tables held at one moment, as far as it was counted.

    :ivar at: by the database's clock
    :ivar cap: where counts stop
    :ivar lanes: at most 1,000, by queue and type; see `lanes_left_out`
    :ivar attempts: how many unfinished jobs have begun so many attempts: of the running ones, and of the oldest ready
        ones of each lane
    :ivar expired_last_hour: jobs in the table whose lease a worker has found run out, in the last hour
    :ivar leases_over: running jobs whose lease is over, and that no worker has given back yet
    :ivar failed: by type, of the newest *cap*; likewise `dead`
    :ivar oldest_running: of the first *cap* running jobs
    :ivar schedules: None if the registry has none
    :ivar oldest_transaction: how long the oldest open transaction of this database keeps vacuum from its work, those of
        other programs and prepared ones too; zero if there is none, None where that can't be told: on SQLite, and for a
        role that may not see other roles' sessions (`GRANT pg_read_all_stats TO …`)
    :ivar capped: the names of the figures that have reached a cap, and mean "at least"
    """

    at: datetime
    cap: int
    lanes: tuple[LaneStats, ...]
    lanes_left_out: bool
    attempts: dict[int, int]
    expired_last_hour: int
    leases_over: int
    failed: dict[str, int]
    dead: dict[str, int]
    oldest_running: RunningStats | None
    schedules: ScheduleStats | None
    oldest_transaction: timedelta | None
    capped: frozenset[str]

    @property
    def due(self) -> int:
        """Ready jobs of known types that workers may claim now."""
        return sum(lane.due for lane in self.lanes if lane.is_known)

    @property
    def later(self) -> int:
        """Ready jobs of known types that are due later."""
        return sum(lane.later for lane in self.lanes if lane.is_known)

    @property
    def unknown(self) -> int:
        """Ready jobs of types that this registry doesn't know, due or later; another release may."""
        return sum(lane.due + lane.later for lane in self.lanes if not lane.is_known)

    @property
    def running(self) -> int:
        """Running jobs, of whatever type."""
        return sum(lane.running for lane in self.lanes)

    @property
    def oldest_ready(self) -> timedelta | None:
        """How long the oldest due job has been due, of whatever type; None if none is."""
        return max((lane.oldest for lane in self.lanes if lane.oldest is not None), default=None)

    @property
    def oldest_by_queue(self) -> dict[str, timedelta]:
        """The same for each queue that has a due job."""
        return _longest((lane.queue, lane.oldest) for lane in self.lanes)

    @property
    def oldest_by_type(self) -> dict[str, timedelta]:
        """The same for each type that has a due job."""
        return _longest((lane.type, lane.oldest) for lane in self.lanes)


def _longest(ages: Iterable[tuple[str, timedelta | None]]) -> dict[str, timedelta]:
    longest: dict[str, timedelta] = {}
    for name, age in ages:
        if age is not None:
            longest[name] = max(age, longest.get(name, age))
    return longest


@overload
def stats(session: Session | scoped_session[Any], jobs: Jobs[Any], /, *, cap: int = 10_000) -> Stats: ...
@overload
def stats(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], /, *, cap: int = 10_000
) -> Coroutine[Any, Any, Stats]: ...
def stats(session: Any, jobs: Jobs[Any], /, *, cap: int = 10_000) -> Any:
    """Count what the tables hold. Reads only, locks nothing; await it for an AsyncSession.

    Five short statements, so figures that change meanwhile may not add up. Cheap enough to be asked every few seconds.

    :param cap: a count stops there, and is then named in `Stats.capped`. Of more than 20 lanes, each is counted to its
        share of 20 caps
    :raises InvalidOption: the cap is less than 1, or an argument is something else
    """
    _check_jobs(jobs)
    check_number("cap", cap, least=1)
    return run_on(session, lambda sync: _read(sync, jobs, cap))


def _check_jobs(jobs: object) -> None:
    if not isinstance(jobs, Jobs):
        raise InvalidOption(f"a Jobs comes second: stats(session, jobs); this is a {type(jobs).__name__}")


def _read(session: Session, jobs: Jobs[Any], cap: int) -> Stats:
    flush(session)
    can = capabilities_of(session, jobs)
    ready = _rows(session, jobs, reports.lane_counts(jobs.table), cap=cap, lanes=MOST_LANES + 1)
    tally = _tallied(_rows(session, jobs, reports.tallies(jobs.table, can), cap=cap, lanes=MOST_LANES + 1))
    (oldest,) = _rows(session, jobs, reports.oldest_running(jobs.table), cap=cap)
    schedules = _schedules(session, jobs, cap)
    lanes = _lanes(jobs, ready, tally.running)
    at = instant(oldest.now)
    assert at is not None  # noqa: S101  # the database's clock is a time
    return Stats(
        at=at,
        cap=cap,
        lanes=tuple(lanes[:MOST_LANES]),
        lanes_left_out=len(lanes) > MOST_LANES,
        attempts=tally.attempts,
        expired_last_hour=tally.expired,
        leases_over=oldest.over,
        failed=tally.failed,
        dead=tally.dead,
        oldest_running=_running(oldest),
        schedules=schedules,
        oldest_transaction=_oldest_transaction(session, jobs, can),
        capped=tally.capped | _capped(lanes, schedules),
    )


def _rows(session: Session, jobs: Jobs[Any], statement: Executable, **parameters: int) -> Sequence[Row[Any]]:
    rows: Sequence[Row[Any]] = session.execute(
        statement, said(parameters), bind_arguments={"mapper": jobs.table.mapper}
    ).all()
    return rows


@dataclass(frozen=True, slots=True)
class _Tally:
    """What `reports.tallies` gave, in the words of `Stats`; running jobs by lane."""

    running: dict[_Lane, int]
    attempts: dict[int, int]
    failed: dict[str, int]
    dead: dict[str, int]
    expired: int
    capped: frozenset[str]


_FIGURES = {
    "ready": ("attempts",),
    "running": ("running", "attempts", "oldest_running", "leases_over"),
    "failed": ("failed",),
    "dead": ("dead",),
    "expired": ("expired_last_hour",),
}
"""The figures that are made of each part."""


def _tallied(rows: Sequence[Row[Any]]) -> _Tally:
    counts: dict[str, Counter[Any]] = {name: Counter() for name in ("running", "attempts", "failed", "dead", "expired")}
    # What was counted together, up to one limit: a part, or one lane's share of it.
    totals: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        totals[row.part, row.most, *((row.queue, row.type) if row.part == "ready" else ())] += row.number
        if row.part in {"ready", "running"}:
            counts["attempts"][row.attempts] += row.number
        if row.part != "ready":
            counts[row.part][(row.queue, row.type) if row.part == "running" else row.type] += row.number
    reached = {part for (part, most, *_), count in totals.items() if count >= most}
    return _Tally(
        running=counts["running"],
        attempts=_sorted(counts["attempts"]),
        failed=_sorted(counts["failed"]),
        dead=_sorted(counts["dead"]),
        expired=counts["expired"].total(),
        capped=frozenset(figure for part in reached for figure in _FIGURES[part]),
    )


def _sorted(counts: Counter[Any]) -> dict[Any, int]:
    return dict(sorted(counts.items()))


def _lanes(jobs: Jobs[Any], ready: Sequence[Row[Any]], running: dict[_Lane, int]) -> list[LaneStats]:
    """Give the lanes of ready jobs and those of running ones, in order."""
    known = frozenset(jobs.handlers.names)
    lanes = {(row.queue, row.type): _ready_lane(row, known) for row in ready}
    for (queue, type_), count in running.items():
        lane = lanes.get((queue, type_), LaneStats(queue, type_, type_ in known))
        lanes[queue, type_] = replace(lane, running=count)
    return [lanes[key] for key in sorted(lanes)]


def _ready_lane(row: Row[Any], known: frozenset[str]) -> LaneStats:
    # On a database that keeps times as text, one that is no time may go before all others: due for ever.
    oldest = LONGEST_AGE if row.age is None else _age(row.age)
    return LaneStats(
        queue=row.queue,
        type=row.type,
        is_known=row.type in known,
        due=row.due,
        later=row.later,
        oldest=oldest if row.due else None,
        is_due_capped=row.due >= row.most,
        is_later_capped=row.later >= row.most,
    )


def _capped(lanes: list[LaneStats], schedules: ScheduleStats | None) -> frozenset[str]:
    """Name what means "at least", of the sums over all lanes and of the schedules."""
    is_partial = len(lanes) > MOST_LANES
    unknown = [lane.is_due_capped or lane.is_later_capped for lane in lanes if not lane.is_known]
    reached = {
        "due": is_partial or any(lane.is_due_capped for lane in lanes if lane.is_known),
        "later": is_partial or any(lane.is_later_capped for lane in lanes if lane.is_known),
        "unknown": is_partial or any(unknown),
        "running": is_partial,
        "schedules": schedules is not None and schedules.capped,
    }
    return frozenset(name for name, is_reached in reached.items() if is_reached)


def _running(row: Row[Any]) -> RunningStats | None:
    if row.id is None:
        return None
    return RunningStats(
        job_id=row.id,
        type=row.type,
        queue=row.queue,
        started_at=instant(row.started_at),
        age=_age(row.age),
        locked_by=row.locked_by,
        locked_until=instant(row.locked_until),
    )


def _schedules(session: Session, jobs: Jobs[Any], cap: int) -> ScheduleStats | None:
    if not jobs.has_schedules:
        return None
    table = jobs.schedules
    rows = session.execute(
        reports.schedule_counts(table), said({"cap": cap}), bind_arguments={"mapper": table.mapper}
    ).all()
    states: Counter[str] = Counter()
    for row in rows:
        states[row.state] += row.number
    return ScheduleStats(
        enabled=states["enabled"],
        paused=states["paused"],
        retired=states["retired"],
        in_error=sum(row.number for row in rows if row.state == "enabled" and row.has_error),
        slots_missed=_slots(row.slots_missed for row in rows),
        overlaps_skipped=_slots(row.overlaps_skipped for row in rows),
        capped=states.total() >= cap,
    )


def _slots(sums: Iterable[float | None]) -> int:
    return int(min(max(sum(each or 0.0 for each in sums), 0.0), LARGEST))


def _oldest_transaction(session: Session, jobs: Jobs[Any], can: Capabilities) -> timedelta | None:
    if not can.is_server:
        return None
    return _age(
        session.execute(reports.oldest_transaction(), bind_arguments={"mapper": jobs.table.mapper}).scalar_one()
    )


def _age(seconds: float | None) -> timedelta | None:
    """Give the age, from zero to the longest; of '-infinity' and of times to come, too."""
    return None if seconds is None else timedelta(seconds=min(max(seconds, 0.0), LONGEST_AGE.total_seconds()))
