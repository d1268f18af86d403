"""What workers do: claim, beat, settle in time and late, with a session and without, and reap what others have left."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final, Literal

from hypothesis import strategies as st
from sqlalchemy import insert, update

from sqla_jobs.operations import leases
from sqla_jobs.rules.settlement import (
    Failed,
    GaveUp,
    Interrupted,
    Outcome,
    Released,
    Returned,
    Settlement,
    Snoozed,
    Vanished,
)
from tests.model.app import MINUTE, Effect, Job, jobs
from tests.model.life import LEASE
from tests.model.stage import Ending, Held, Stage, Worker, settlement
from tests.model.turns import turn

if TYPE_CHECKING:
    from sqla_jobs.rules.lease import Lease
    from tests.model.life import JobRow

WORKERS: Final = st.sampled_from(["w1", "w1", "w2", "w2", "w3"])

MOSTLY: Final = st.sampled_from([True, True, True, False])

NTH: Final = st.integers(0, 5)
"""Picks one of however many there are."""

OUTCOMES: Final = st.sampled_from(
    [
        Returned({"n": 1}),
        Returned(note="the result was not stored"),
        Failed("boom"),
        Failed("boom"),
        Failed("again, please", delay=MINUTE),
        Failed("too slow", shortest=10 * MINUTE),
        GaveUp("hopeless"),
        Snoozed(5 * MINUTE),
        Interrupted("the database was away"),
        Interrupted("the database was away"),
        Released(),
    ]
)

ENDINGS: Final[st.SearchStrategy[Ending]] = st.sampled_from(["commit", "commit", "commit", "open", "rollback"])

Way = Literal[
    "batch", "batch, no answer", "session", "session, no answer", "session, in flight", "session, crash", "error"
]
"""How a handler's end is written: with others' or in its session; *error*: it had a session, and raised."""

WAYS: Final[st.SearchStrategy[Way]] = st.sampled_from(
    [
        *("batch", "batch", "session", "session", "error"),
        *("batch, no answer", "session, no answer", "session, in flight", "session, crash"),
    ]
)

_ENDINGS: Final[dict[str, Ending]] = {"session, in flight": "open", "session, crash": "rollback"}

ALL: Final = 100
"""More than there ever are."""


class Workers(Stage):
    """The turns of workers."""

    @turn(
        weight=2,
        when=lambda self: self.has("ready"),
        worker=WORKERS,
        limit=st.integers(1, 4),
        ending=ENDINGS,
        is_answered=MOSTLY,
    )
    def claim(self, worker: str, limit: int, ending: Ending, *, is_answered: bool) -> None:
        """A worker claims; it may never hear what it has got."""
        who = self.workers[worker]
        session = self.open()
        claimed = leases.claim(session, jobs.table, who.demand, limit=limit, locked_by=worker, lease=LEASE)
        due = self.life.due(who.demand.types, who.demand.queues, self.now)
        free = [row for row in due if not self.is_locked(row.id)]
        if len(free) < len(due):
            self.saw("claim passes over rows of a claim in flight")
            assert len(claimed) == min(limit, len(free))
            free = [self.life.jobs[lease.id] for lease in claimed if not self.is_locked(lease.id)]
        now, rows = self.now, free[:limit]
        assert claimed == [self.life.claim(copy(row), worker, now) for row in rows]

        def apply() -> None:
            for row, lease in zip(rows, claimed, strict=True):
                self._take(who, row, Held(lease, now + LEASE, copy(row)), is_answered=is_answered)
                self.life.claim(row, worker, now)

        self.end_transaction(session, ending, apply, jobs=[lease.id for lease in claimed])

    def _take(self, who: Worker, row: JobRow, held: Held, *, is_answered: bool) -> None:
        if row.attempts < row.claims:
            self.saw("job claimed again after a refund or a requeue")
        if any(other.lease.id == row.id for worker in self.workers.values() for other in worker.held):
            self.saw("job claimed while somebody still works on it")
        # The same count by the same worker can only be a claim that the database has lost: no fence tells these apart.
        who.held = [other for other in who.held if other.lease.key != held.lease.key]
        if is_answered:
            who.held.append(held)
        else:
            self.saw("claim whose answer was lost")

    @turn(weight=2, when=lambda self: self.is_busy or self.has("running"), worker=WORKERS, is_sweeping=st.booleans())
    def beat(self, worker: str, *, is_sweeping: bool) -> None:
        """A worker's heartbeat: it renews all that it believes to hold, and gives back what bears its name besides."""
        who = self._busy(worker)
        if who.held:
            self._renew(who)
        if is_sweeping:
            self._release_strays(who)

    def _renew(self, who: Worker) -> None:
        ours = {held.lease.key for held in who.held if self.life.holds(held.lease)}
        unknown = {(id_, claims) for id_, claims in ours if self.is_locked(id_)}
        renewed = ours - unknown
        with self.transaction() as session:
            found = leases.renew(session, jobs.table, [held.lease for held in who.held], lease=LEASE)
        assert found.renewed == renewed
        assert found.unknown == unknown
        assert found.lost == {held.lease.key for held in who.held} - ours
        for held in who.held:
            if held.lease.key in renewed:
                self.saw("lease renewed" if held.until > self.now else "expired lease renewed")
                held.until = self.life.jobs[held.lease.id].locked_until = self.now + LEASE
            elif held.lease.key in found.lost:
                self.saw("heartbeat finds a lease lost")
                held.is_void = True
            else:
                self.saw("heartbeat passes over a row in flight")

    def _release_strays(self, who: Worker) -> None:
        known = frozenset(held.lease.key for held in who.held)
        rows = [row for row in self.life.jobs.values() if row.status == "running" and row.locked_by == who.name]
        strays = sorted(row.id for row in rows if (row.id, row.claims) not in known)
        with self.transaction() as session:
            found = leases.strays(session, jobs.table, locked_by=who.name, held=known)
            assert [lease.id for lease in found] == strays
            free = [lease for lease in found if not self.is_locked(lease.id)]
            written = leases.settle(session, jobs.table, [settlement(lease, Released()) for lease in free])
        assert written == {lease.key for lease in free}
        for lease in free:
            self.saw("stray claim released")
            self.life.settle(lease.id, Released(), self.now)

    @turn(
        weight=4,
        when=lambda self: self.is_busy or self.has("ready"),
        worker=WORKERS,
        nth=NTH,
        way=WAYS,
        outcomes=st.lists(OUTCOMES, min_size=1, max_size=3),
    )
    def end(self, worker: str, nth: int, way: Way, outcomes: list[Outcome]) -> None:
        """A worker ends attempts, whether they are still its own or not; if nobody has any, it claims some first."""
        who = self._employed(worker)
        ends, is_answered = self._settleable(who, nth), "no answer" not in way
        if way.startswith("batch"):
            self._settle(who, list(zip(ends, outcomes, strict=False)), is_answered=is_answered)
        for held in ends[:1]:
            if way == "error":
                self._fail(who, held, outcomes[0])
            elif way.startswith("session"):
                self._complete(who, held, _ENDINGS.get(way, "commit"), is_answered=is_answered)

    def _settle(self, who: Worker, ends: list[tuple[Held, Outcome]], *, is_answered: bool) -> None:
        """Handlers without a session have ended; without an answer their ends are written again later."""
        ours = [(held, outcome) for held, outcome in ends if self._is_ours(held)]
        missed = [held.lease for held, _ in ends if not self.life.holds(held.lease)]
        with self.transaction() as session:
            written = leases.settle(session, jobs.table, [settlement(held.lease, outcome) for held, outcome in ends])
            endings = leases.endings(session, jobs.table, missed)
        assert written == {held.lease.key for held, _ in ours}
        assert endings == self.life.endings(missed)
        for held, outcome in ours:
            self.life.settle(held.lease.id, outcome, self.now)
        for held, _ in ends:
            self._let_go(who, held, is_answered=is_answered)

    def _complete(self, who: Worker, held: Held, ending: Ending, *, is_answered: bool) -> None:
        """A handler with a session has returned: its writes and the settle, all or nothing; a crash undoes both."""
        session = self._run(held)
        is_ours, now = self._is_ours(held), self.now
        written = leases.settle(session, jobs.table, [settlement(held.lease, Returned({"n": 2}))])
        assert written == ({held.lease.key} if is_ours else frozenset())
        if not is_ours:
            self.saw("effects of a lost lease rolled back")
            self.end_transaction(session, "rollback", lambda: None)
            who.held.remove(held)
            return

        def apply() -> None:
            self.saw("effects committed with the settle")
            self.life.settle(held.lease.id, Returned({"n": 2}), now)
            self.life.effects.append(held.lease.key)
            self._let_go(who, held, is_answered=is_answered)

        self.end_transaction(session, ending, apply, jobs=[held.lease.id])

    def _let_go(self, who: Worker, held: Held, *, is_answered: bool) -> None:
        held.is_void = True
        if is_answered:
            who.held.remove(held)

    def _fail(self, who: Worker, held: Held, outcome: Outcome) -> None:
        """A handler with a session has raised: its writes are rolled back, another transaction says how it ended."""
        self.end_transaction(self._run(held), "rollback", lambda: None)
        self._settle(who, [(held, Failed("boom") if isinstance(outcome, Returned) else outcome)], is_answered=True)

    @turn(
        when=lambda self: self.is_busy or self.has("ready"),
        worker=WORKERS,
        other=WORKERS,
        way=WAYS,
        outcomes=st.lists(OUTCOMES, min_size=1, max_size=3),
    )
    def freeze(self, worker: str, other: str, way: Way, outcomes: list[Outcome]) -> None:
        """A worker is stopped for so long that others give its jobs back and take them over; then it goes on."""
        who = self._employed(worker)
        # To the very end of its lease, and then over any backoff.
        for time in (LEASE, 11 * MINUTE):
            self.move_on(time)
            self.reap_all()
            self.look_over()
        if self.has("ready"):
            self.claim(other, 4, "commit", is_answered=True)
            self.look_over()
        self.end(who.name, 0, way, outcomes)

    @turn(when=lambda self: self.has("running"), limit=st.sampled_from([1, 2, ALL, ALL]), ending=ENDINGS)
    def reap(self, limit: int, ending: Ending) -> None:
        """A reaper gives back what has expired."""
        expired = self.life.expired(self.now)
        rows = [row for row in expired if not self.is_locked(row.id)][:limit]
        if len(rows) < len(expired) and limit == ALL:
            self.saw("reaper passes over a row in flight")
        session = self.open()
        reaped = leases.reap(session, jobs.table, judge, limit=limit)
        assert [each.lease.id for each in reaped] == [row.id for row in rows]
        now = self.now
        ends = [(row.id, Vanished(f"the worker {row.locked_by} vanished")) for row in rows]

        def apply() -> None:
            for id_, outcome in ends:
                self.life.settle(id_, outcome, now)
                self.saw("job reaped" if self.life.jobs[id_].status == "ready" else "job reaped to death")

        self.end_transaction(session, ending, apply, jobs=[row.id for row in rows])
        if limit == ALL and ending == "commit":
            stored = self.scene.read()
            left = [
                id_ for id_, row in stored.jobs.items() if row["locked_until"] and row["locked_until"] <= stored.now
            ]
            assert all(map(self.is_locked, left)), f"leases of jobs {left} survive a reaper's pass"

    def reap_all(self) -> None:
        """A reaper's pass."""
        self.reap(ALL, "commit")

    @turn(when=lambda self: self.is_busy, worker=WORKERS, nth=NTH)
    def lose_claim(self, worker: str, nth: int) -> None:
        """The database loses a claim that it had confirmed: a standby took over that had not got it."""
        who = self._busy(worker)
        for held in self._settleable(who, nth)[:1]:
            if not self.life.holds(held.lease):
                continue
            self.revoke(held.lease.id)
            self.excuse(held.lease.id)
            names = ("status", "attempts", "claims", "locked_by", "locked_until", "started_at")
            was: dict[str, Any] = {name: getattr(held.before, name) for name in names}
            with self.transaction() as session:
                session.execute(update(Job.__table__).where(Job.id == held.lease.id).values(was))  # type: ignore[arg-type]
            vars(self.life.jobs[held.lease.id]).update(was)

    # --- a worker's part

    @property
    def is_busy(self) -> bool:
        """Whether any worker believes to hold something."""
        return any(worker.held for worker in self.workers.values())

    def _busy(self, name: str) -> Worker:
        """Give the worker, or another if it has nothing."""
        who = self.workers[name]
        return who if who.held else next((worker for worker in self.workers.values() if worker.held), who)

    def _employed(self, name: str) -> Worker:
        """Give a worker that has something, if there is anything to be had."""
        if not self.is_busy and self.has("ready"):
            self.claim(name, 3, "commit", is_answered=True)
            self.look_over()
        return self._busy(name)

    def _settleable(self, who: Worker, nth: int) -> list[Held]:
        """Give what a worker holds, from the nth on. Whoever settles waits for its own commit in flight: not here."""
        held = [each for each in who.held if not (self.is_locked(each.lease.id) and self.life.holds(each.lease))]
        first = nth % len(held) if held else 0
        return held[first:] + held[:first]

    def _run(self, held: Held) -> Any:
        """Let a handler write, and give its session."""
        session = self.open()
        session.execute(insert(Effect).values(job_id=held.lease.id, claims=held.lease.claims))
        return session

    def _is_ours(self, held: Held) -> bool:
        """Tell whether a settle must match, and take note of what it is."""
        row, lease = self.life.jobs.get(held.lease.id), held.lease
        is_ours = self.life.holds(lease)
        if is_ours:
            self.saw("settled in time" if held.until > self.now else "settled after the lease, which nobody had reaped")
        elif row is None:
            self.saw("late settle of a job that is gone")
        elif row.claims == lease.claims and row.status == "running":
            self.saw("late settle with the count of another's claim")
        else:
            self.saw(f"late settle of a job that is {row.status}" + " again" * (row.claims != lease.claims))
        return is_ours


def judge(lease: Lease) -> Settlement:
    """Decide as the reaper does."""
    return settlement(lease, Vanished(f"the worker {lease.locked_by} vanished"))
