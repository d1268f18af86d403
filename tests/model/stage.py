"""What every part of the machine stands on: the database, the model, one transaction that may stay open, the checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from hypothesis import currently_in_test_context, event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from sqla_jobs.operations import leases
from sqla_jobs.operations.leases import Demand
from sqla_jobs.rules.settlement import Failed, Outcome, Returned, Settlement, decide
from tests.model import checks
from tests.model.app import HANDLERS, MINUTE, START, Scene, clock, jobs
from tests.model.life import BACKOFF, FINISHED, LEASE, JobRow, Life
from tests.model.slots import ScheduleRow
from tests.model.turns import Turn, kinds, next_turn, turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta

    from sqlalchemy.orm import Session

    from sqla_jobs.rules.lease import Lease

Ending = Literal["commit", "rollback", "open"]
"""What becomes of a transaction; *open*: it stays so while others go on, until `land`."""

ALL_TYPES: Final = tuple(HANDLERS)

LONGEST_DRAIN: Final = 6
"""Rounds: no job has more attempts left."""


@dataclass
class Held:
    """A claim as its worker sees it.

    :ivar until: when its lease is over, as far as the worker knows
    :ivar before: the job's row before the claim
    :ivar is_void: the worker has let go of it, or somebody has taken the row from under it
    """

    lease: Lease
    until: datetime
    before: JobRow
    is_void: bool = False


@dataclass
class Worker:
    """A process that runs jobs: what it asks for, and what it believes to hold."""

    name: str
    demand: Demand
    held: list[Held] = field(default_factory=list[Held])


@dataclass(frozen=True)
class Flight:
    """A transaction that has written and not ended: others neither see what it wrote nor get at those rows."""

    session: Session
    apply: Callable[[], None]
    jobs: frozenset[int]
    schedules: frozenset[int]


class Stage(RuleBasedStateMachine):
    """The ground of the machine.

    Each turn does one thing as some process does it, in a transaction of its own, and tells the model. After each, all
    tables are compared with the model.
    """

    def __init__(self, scene: Scene, paths: Counter[str]) -> None:
        super().__init__()
        self.scene = scene
        self.now = START
        self.life = Life()
        self.schedules: dict[int, ScheduleRow] = {}
        self.workers = {
            "w1": Worker("w1", Demand(ALL_TYPES, None)),
            "w2": Worker("w2", Demand(ALL_TYPES, None)),
            "w3": Worker("w3", Demand(("mail",), ("mail",))),
        }
        self.flight: Flight | None = None
        self._history = checks.History()
        self.paths, self._seen = paths, set[str]()
        self._is_sound = True
        self._open: list[Session] = []
        self.kinds = kinds(type(self))
        scene.empty()

    @rule(turn=st.runner().flatmap(next_turn))
    def go_on(self, turn: Turn) -> None:
        """Something happens."""
        getattr(self, turn.name)(**turn.arguments)
        self.look_over()

    def saw(self, *paths: str) -> None:
        """Take note that something worth testing has happened."""
        self._seen.update(paths)

    # --- transactions

    def transaction(self) -> AbstractContextManager[Session]:
        """Give a block with a session, committed at its end."""
        self._is_sound = False
        return self.scene.transaction()

    def open(self) -> Session:
        """Give a session for `end_transaction`."""
        self._is_sound = False
        session = self.scene.session()
        self._open.append(session)
        return session

    def end_transaction(
        self,
        session: Session,
        ending: Ending,
        apply: Callable[[], None],
        *,
        jobs: Iterable[int] = (),
        schedules: Iterable[int] = (),
    ) -> None:
        """End a transaction that has written to these rows; *apply* tells the model, once it is committed."""
        if ending == "open" and self.scene.has_row_locks and self.flight is None:
            self.scene.hold(session)
            self.flight = Flight(session, apply, frozenset(jobs), frozenset(schedules))
            return
        self._is_sound = False
        if ending == "rollback":
            session.rollback()
        else:
            session.commit()
            apply()
        session.close()
        self._open.remove(session)

    @turn(weight=4, when=lambda self: self.flight is not None, is_committed=st.booleans())
    def land(self, *, is_committed: bool) -> None:
        """The transaction that stayed open ends."""
        if self.flight is not None:
            flight, self.flight = self.flight, None
            self.end_transaction(flight.session, "commit" if is_committed else "rollback", flight.apply)

    def is_locked(self, job_id: int) -> bool:
        """Tell whether an open transaction has this job's row."""
        return self.flight is not None and job_id in self.flight.jobs

    def has(self, *statuses: str) -> bool:
        """Tell whether there is a job in one of these."""
        return any(row.status in statuses for row in self.life.jobs.values())

    def revoke(self, job_id: int) -> None:
        """The row is taken from whoever holds it, who can't know."""
        for worker in self.workers.values():
            for held in worker.held:
                if held.lease.id == job_id and self.life.holds(held.lease):
                    held.is_void = True

    # --- the clock

    @turn(minutes=st.sampled_from([1, 2, 3, 4, 11, 61]))
    def step(self, minutes: int) -> None:
        """Time passes."""
        self.move_on(minutes * MINUTE)

    def move_on(self, by: timedelta) -> None:
        """Move the clock."""
        self.now += by
        with self.transaction() as session:
            clock.advance(session, by)

    # --- the checks

    def look_over(self) -> None:
        """Check that the tables hold what the model says, and keep the promises that need no model."""
        if self._is_sound:
            return  # nothing was done
        stored = self.scene.read()
        assert stored.now == self.now, "the machine is too slow for a clock that stands still for a minute"
        checks.one_live_claim(self.workers.values(), stored.now)
        self._history.add(stored)
        checks.compare(stored, self.life, self.schedules)
        self._is_sound = True

    def excuse(self, job_id: int) -> None:
        """Let a job's `claims` fall, this once: its claim was lost with the server that had it."""
        self._history.undone.add(job_id)

    def teardown(self) -> None:
        """Have all that is there run to its end, if nothing has gone wrong yet."""
        try:
            if self._is_sound:
                self._drain()
                self.paths.update(self._seen)
                for path in sorted(self._seen) if currently_in_test_context() else ():
                    event(path)
        finally:
            for session in self._open:
                session.close()

    def _drain(self) -> None:
        self.land(is_committed=True)
        for _ in range(LONGEST_DRAIN):
            if not self._unfinished():
                break
            self.move_on(24 * 60 * MINUTE)
            self.reap_all()
            self._run_all()
        self._history.skip()
        self.look_over()
        assert not self._unfinished(), "jobs are left that never end"
        late = [held.lease for worker in self.workers.values() for held in worker.held]
        with self.transaction() as session:
            assert not leases.settle(session, jobs.table, [settlement(lease, Returned()) for lease in late])
        self.look_over()

    def _unfinished(self) -> list[JobRow]:
        return [row for row in self.life.jobs.values() if row.status not in FINISHED]

    def _run_all(self) -> None:
        with self.transaction() as session:
            claimed = leases.claim(
                session, jobs.table, Demand(ALL_TYPES, None), limit=1000, locked_by="last", lease=LEASE
            )
            ends: dict[int, Outcome] = {
                lease.id: Returned() if lease.id % 2 else Failed("no", delay=MINUTE) for lease in claimed
            }
            written = leases.settle(session, jobs.table, [settlement(lease, ends[lease.id]) for lease in claimed])
        assert [lease.id for lease in claimed] == [row.id for row in self.life.due(ALL_TYPES, None, self.now)]
        assert written == {lease.key for lease in claimed}
        for lease in claimed:
            self.life.claim(self.life.jobs[lease.id], "last", self.now)
            self.life.settle(lease.id, ends[lease.id], self.now)

    def reap_all(self) -> None:
        """Reap."""
        raise NotImplementedError


def settlement(lease: Lease, outcome: Outcome) -> Settlement:
    """Decide as a worker does."""
    return decide(lease, outcome, backoff=BACKOFF, draw=0.0)


def pick(candidates: list[Any], nth: int) -> Any:
    """Give one of them."""
    return candidates[nth % len(candidates)]
