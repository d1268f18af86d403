"""The whole machine: what schedulers and the owners of schedules do, together with all the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from hypothesis import strategies as st
from hypothesis.stateful import initialize
from sqlalchemy import delete, insert, update

from sqla_jobs import pause, resume
from sqla_jobs.operations import scheduling
from sqla_jobs.rules.schedules import slot_key
from tests.model.app import HANDLERS, MINUTE, Schedule, jobs, older_jobs
from tests.model.life import FINISHED, JobRow
from tests.model.people import ORDERS, Order, People
from tests.model.slots import BROKEN, CATCH_UPS, MINUTES, WRONG_CATCH_UP, Plan, ScheduleRow, carry_out, plan
from tests.model.stage import Ending, pick
from tests.model.turns import turn
from tests.model.workers import ENDINGS, NTH

if TYPE_CHECKING:
    from collections import Counter
    from datetime import datetime

    from sqlalchemy.orm import Session

    from sqla_jobs.operations.scheduling import Look, Written
    from tests.model.app import Scene

TABLE: Final[Any] = Schedule.__table__

REGISTRIES: Final = {"s1": jobs, "s2": jobs, "older": older_jobs}

SCHEDULERS: Final = st.sampled_from(["s1", "s1", "s2", "s2", "older"])

WISHES: Final = st.fixed_dictionaries(
    {
        "cron": st.sampled_from(["* * * * *", *MINUTES, BROKEN]),
        "catch_up": st.sampled_from([*CATCH_UPS, *CATCH_UPS, WRONG_CATCH_UP]),
        "overlap": st.sampled_from(["allow", "skip"]),
    }
)
"""What people write into a schedule."""

Change = Literal["add", "cron", "catch_up", "overlap", "pause", "resume", "pause and resume", "delete"]

CHANGES: Final[st.SearchStrategy[Change]] = st.sampled_from(
    ["add", "cron", "catch_up", "catch_up", "overlap", "pause", "resume", "resume", "pause and resume", "delete"]
)

MOST: Final = 2
"""Schedules at a time."""


class Machine(People):
    """All that may happen."""

    def __init__(self, scene: Scene, paths: Counter[str]) -> None:
        super().__init__(scene, paths)
        self._looks: dict[str, tuple[Look, list[Plan]]] = {}

    @initialize(orders=st.lists(ORDERS, min_size=2, max_size=5), wishes=WISHES)
    def begin(self, orders: list[Order], wishes: dict[str, Any]) -> None:
        """There are some jobs and a schedule from the first."""
        self.enqueue_many(orders, is_kept=True)
        self._add_schedule(wishes)
        self.look_over()

    # --- owners of schedules

    @turn(weight=2, nth=NTH, what=CHANGES, wishes=WISHES)
    def change_schedules(self, nth: int, what: Change, wishes: dict[str, Any]) -> None:
        """Somebody adds a schedule, edits one, pauses or resumes it (or both before anybody looks), or deletes it."""
        row = self._unlocked(nth)
        if not self.schedules or (what == "add" and len(self.schedules) < MOST):
            self._add_schedule(wishes)
        elif row is not None and what in wishes:
            self._edit(row, what, wishes[what])
        elif row is not None and what == "delete":
            with self.transaction() as session:
                session.execute(delete(TABLE).where(TABLE.c.id == row.id))
            del self.schedules[row.id]
        elif row is not None and what != "add":
            self._switch(row, what)

    @turn(when=lambda self: self.schedules, nth=NTH, part=st.sampled_from(["cron", "catch_up"]))
    def spoil(self, nth: int, part: Literal["cron", "catch_up"]) -> None:
        """Somebody spoils a schedule, a scheduler finds it so, and some slots later it is mended."""
        if (row := self._unlocked(nth)) is not None:
            was = getattr(row, part)
            self._edit(row, part, {"cron": BROKEN, "catch_up": WRONG_CATCH_UP}[part])
            self.tick("s1", 1)
            self.move_on(5 * MINUTE)
            self._edit(row, part, was)
            self.tick("s2", 1)

    def _edit(self, row: ScheduleRow, part: str, value: str) -> None:
        """By plain SQL: no text is refused."""
        with self.transaction() as session:
            session.execute(update(TABLE).where(TABLE.c.id == row.id).values({part: value}))
        setattr(row, part, value)

    def _add_schedule(self, wishes: dict[str, Any]) -> None:
        taken = {row.name for row in self.schedules.values()}
        name = next(name for name in ("x", "y") if name not in taken)
        row = ScheduleRow(id=0, name=name, created_at=self.now, **wishes)
        values = {name: value for name, value in vars(row).items() if name != "id"}
        with self.transaction() as session:
            row.id = session.execute(insert(TABLE).values(values).returning(TABLE.c.id)).scalar_one()
        self.schedules[row.id] = row

    def _switch(self, row: ScheduleRow, what: Change) -> None:
        with self.transaction() as session:
            if "pause" in what:
                pause(session, jobs, row.name)
                row.enabled = False
            if "resume" in what:
                resume(session, jobs, row.name)
                # What the pause has passed over stays so: it is planned anew.
                row.planned_cron = row.planned_cron if row.enabled else None
                row.enabled = True

    def _unlocked(self, nth: int) -> ScheduleRow | None:
        """Give a schedule that no open transaction has; with a locked one there would be a wait."""
        locked = self.flight.schedules if self.flight is not None else frozenset[int]()
        rows = [row for row in self.schedules.values() if row.id not in locked]
        return pick(rows, nth) if rows else None

    # --- schedulers

    @turn(weight=3, when=lambda self: self.schedules, scheduler=SCHEDULERS, minutes=st.sampled_from([0, 1, 1, 5, 61]))
    def tick(self, scheduler: str, minutes: int) -> None:
        """Time passes, and a scheduler does its work."""
        self.move_on(minutes * MINUTE)
        self.look(scheduler)
        self.write(scheduler, "commit", is_repeated=True)

    @turn(when=lambda self: self.schedules, scheduler=SCHEDULERS)
    def look(self, scheduler: str) -> None:
        """A scheduler looks, and decides; what it does then may come much later."""
        registry = REGISTRIES[scheduler]
        plans = [
            plan(
                row,
                self.now,
                knows_type=row.job_type in registry.handlers.names,
                has_unfinished=any(
                    job.schedule_id == row.id and job.status not in FINISHED for job in self.life.jobs.values()
                ),
            )
            for row in self.schedules.values()
        ]
        wanted = {each.schedule_id: each for each in plans if each is not None}
        with self.transaction() as session:
            found = scheduling.look(session, registry, limit=100)
        assert {row.id for row in found.rows} == wanted.keys()
        self._looks[scheduler] = (found, [wanted[row.id] for row in found.rows])

    @turn(weight=2, when=lambda self: self._looks, scheduler=SCHEDULERS, ending=ENDINGS, is_repeated=st.booleans())
    def write(self, scheduler: str, ending: Ending, *, is_repeated: bool) -> None:
        """A scheduler writes what it has decided on; somebody may have been faster, itself included."""
        name = scheduler if scheduler in self._looks else next(iter(self._looks))
        found, plans = self._looks[name] if is_repeated else self._looks.pop(name)
        counted = [each for each in plans if self._counts(each)]
        session, now = self.open(), self.now
        written = write(session, name, found)
        assert {move.row.id for move in written.moves} == {each.schedule_id for each in counted}
        assert not written.unwritable
        by_name = {self.schedules[each.schedule_id].name: each for each in counted}
        made = [(by_name[fired.name], fired.slot, fired.job_id) for fired in written.fired]
        assert sorted((each.schedule_id, slot) for each, slot, _ in made) == sorted(
            (each.schedule_id, slot) for each in counted for slot in each.slots
        )

        def apply() -> None:
            for each in counted:
                self._carry_out(each)
            for each, slot, job_id in made:
                assert job_id is not None, f"the job of slot {slot} was there already"
                self.life.add(_slot_job(job_id, each.schedule_id, slot, now))

        self.end_transaction(session, ending, apply, schedules=[each.schedule_id for each in counted])

    @turn(when=lambda self: self.schedules, scheduler=SCHEDULERS, nth=NTH, what=CHANGES, wishes=WISHES)
    def overtake(self, scheduler: str, nth: int, what: Change, wishes: dict[str, Any]) -> None:
        """A scheduler looks, somebody changes a schedule, and the scheduler writes."""
        self.move_on(MINUTE)
        self.look(scheduler)
        self.change_schedules(nth, what, wishes)
        self.write(scheduler, "commit", is_repeated=False)

    def _counts(self, decided: Plan) -> bool:
        """Tell whether a write must go through, and take note of why it must not."""
        row = self.schedules.get(decided.schedule_id)
        if row is None:
            self.saw("stale write after its schedule was deleted")
            return False
        if self.flight is not None and row.id in self.flight.schedules:
            self.saw("write passes over a schedule in flight")
            return False
        if row.seen != decided.seen:
            self.saw("stale write after an edit" if row.seen[:3] != decided.seen[:3] else "stale write after another's")
            return False
        return True

    def _carry_out(self, decided: Plan) -> None:
        row = self.schedules[decided.schedule_id]
        facts = {
            "slots of a mended schedule fired": decided.slots and row.last_error is not None,
            "slot fired": decided.slots,
            "several slots fired at once": decided.slots[1:],
            "slots missed": decided.missed,
            "overlap skipped": decided.overlaps,
            "schedule in error": decided.is_broken and decided.is_planned,
            "schedule of an unknown type marked": not decided.is_planned,
            "schedule paused": not row.enabled,
        }
        self.saw(*(path for path, is_so in facts.items() if is_so))
        carry_out(row, decided)


def write(session: Session, scheduler: str, found: Look) -> Written:
    """Write, batch by batch."""
    registry = REGISTRIES[scheduler]
    written = scheduling.Written()
    for batch in scheduling.batches(scheduling.moves(registry, found)):
        more = scheduling.write(session, registry, batch, now=found.now)
        written.moves += more.moves
        written.fired += more.fired
        written.unwritable |= more.unwritable
    return written


def _slot_job(job_id: int, schedule_id: int, slot: datetime, now: datetime) -> JobRow:
    spec = HANDLERS["report"].spec
    return JobRow(
        id=job_id,
        type="report",
        payload={},
        queue=spec.queue,
        run_at=slot,
        created_at=now,
        max_attempts=spec.max_attempts,
        idempotency_key=slot_key(schedule_id, slot),
        schedule_id=schedule_id,
        slot=slot,
    )
