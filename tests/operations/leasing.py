"""What the tests of leases do again and again: claim, end an attempt, look at a row."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import insert, select, update

from sqla_jobs.operations import leases
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.rules.retry import Backoff
from sqla_jobs.rules.settlement import Outcome, Settlement, Vanished, decide
from tests.operations.shop import Job, clock, timed, timed_send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from sqla_jobs.rules.lease import Lease

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)

TABLE: Final = timed.table

BACKOFF: Final = Backoff(base=8 * SECOND, factor=1, jitter=0)


def add(session: Session, *, ago: timedelta = timedelta(0), **values: Any) -> int:
    """Insert a row, due *ago* before now, and give its id."""
    row = {"type": "send", "payload": {"order_id": 1}, "run_at": clock.read(session) - ago} | values
    job_id: int = session.execute(insert(Job.__table__).values(row).returning(Job.id)).scalar_one()  # type: ignore[arg-type]
    return job_id


def take(
    session: Session,
    *,
    limit: int = 10,
    by: str = "w1",
    types: Sequence[str] = ("send", "mail"),
    queues: Sequence[str] | None = None,
    lease: timedelta = MINUTE,
) -> list[Lease]:
    """Claim."""
    demand = leases.Demand(tuple(types), None if queues is None else tuple(queues))
    return leases.claim(session, TABLE, demand, limit=limit, locked_by=by, lease=lease)


def take_one(session: Session, **values: Any) -> Lease:
    """Enqueue a job, claim it, and commit."""
    job = enqueue(session, timed_send.using(max_attempts=values.pop("max_attempts", 5)), order_id=1)
    if values:
        session.execute(update(Job).where(Job.id == job.id).values(values))
    (lease,) = take(session)
    session.commit()
    return lease


def start_of(lease: Lease) -> datetime:
    """Give the time of the claim, which only a row that was set running by hand lacks."""
    assert lease.started_at is not None
    return lease.started_at


def end(session: Session, lease: Lease, outcome: Outcome) -> bool:
    """Settle one attempt, and tell whether the fence held."""
    settlement = decide(lease, outcome, backoff=BACKOFF, draw=0.5)
    return leases.settle(session, TABLE, [settlement]) == frozenset({lease.key})


def vanish(lease: Lease) -> Settlement:
    """Decide as the reaper does."""
    return decide(lease, Vanished("the worker vanished"), backoff=BACKOFF, draw=0.5)


def reap(session: Session, *, limit: int = 100) -> list[Settlement]:
    """Reap."""
    return leases.reap(session, TABLE, vanish, limit=limit)


def row(session: Session, job_id: int) -> dict[str, Any]:
    """Give what the row holds, column by column."""
    session.expire_all()
    return dict(session.execute(select(Job.__table__).where(Job.id == job_id)).mappings().one())


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Give the columns that differ, with their new values."""
    return {name: value for name, value in after.items() if value != before[name]}
