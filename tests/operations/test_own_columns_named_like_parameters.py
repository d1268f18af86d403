"""An app whose tables have columns that are called like the parameters of our statements, every one of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import String, event, select
from sqlalchemy.orm import DeclarativeBase, Session, mapped_column

from sqla_jobs.operations import archive, leases, schedules, scheduling
from sqla_jobs.operations.batches import cancel_batch, delete_batch, requeue_batch
from sqla_jobs.operations.dead_letters import cancel_jobs, delete_jobs, requeue_jobs
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.operations.listing import JobFilter, find_jobs, show_job
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stats import stats
from sqla_jobs.operations.why import why
from sqla_jobs.rules.retry import Backoff
from sqla_jobs.rules.settlement import (
    Failed,
    GaveUp,
    Interrupted,
    Released,
    Returned,
    Settlement,
    Snoozed,
    Vanished,
    decide,
)
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.testing import Clock, tick
from tests.schema.spoken import ARCHIVE, DIALECTS, JOBS, SCHEDULES, built, parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from sqla_jobs.rules.lease import Lease
    from sqla_jobs.rules.settlement import Outcome
    from sqla_jobs.schema.tables import MappedTable

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
DAY: Final = timedelta(days=1)

PARAMETERS: Final = {
    name: {each for statement in built(dialect).values() for each in parameters(statement, dialect)}
    for name, dialect in DIALECTS.items()
}
"""By database, all that our statements take."""

OWN: Final = sorted({each.removeprefix("sqla_jobs_") for found in PARAMETERS.values() for each in found})


def own_columns(of: MappedTable) -> dict[str, Any]:
    """Give a column of the app's for each name that is none of ours, by attribute: SQLAlchemy keeps one for itself."""
    names = [name for name in OWN if name not in of.table.c]
    return {name.replace("registry", "registry_"): mapped_column(name, String(20), default="own") for name in names}


class Base(DeclarativeBase): ...


Job: Any = type("Job", (JobMixin, Base), {"__tablename__": "job"} | own_columns(JOBS))
ArchivedJob: Any = type(
    "ArchivedJob", (ArchivedJobMixin, Base), {"__tablename__": "archived_job"} | own_columns(ARCHIVE)
)
Schedule: Any = type("Schedule", (ScheduleMixin, Base), {"__tablename__": "schedule"} | own_columns(SCHEDULES))

clock = Clock(Base.metadata)

jobs: Jobs[Any] = Jobs(Job, schedule=Schedule, archive=ArchivedJob, now=clock.now)


@jobs.handler
def send(order_id: int = 1) -> None: ...


jobs.schedule("hourly", send.job(), cron="0 * * * *")

DEMAND: Final = leases.Demand(("send",), ("default",))
EVERY: Final = leases.Demand(("send",), None)


def take(session: Session, demand: leases.Demand = EVERY) -> list[Lease]:
    """Claim all that is due."""
    return leases.claim(session, jobs.table, demand, limit=100, locked_by="w", lease=MINUTE)


def settled(lease: Lease, outcome: Outcome) -> Settlement:
    """Decide how an attempt ended."""
    return decide(lease, outcome, backoff=Backoff(base=SECOND), draw=0.5)


def own_values(session: Session, model: Any, of: MappedTable) -> set[str]:
    """Give what the app's columns hold, of all rows."""
    columns = [getattr(model, name) for name in own_columns(of)]
    return {value for row in session.execute(select(*columns)) for value in row}


def enqueued_and_claimed(session: Session) -> list[Lease]:
    """Store jobs in every way, and claim them."""
    given = dict.fromkeys(own_columns(JOBS), "given")
    enqueue(session, send.using(columns=given), 1)
    enqueue(session, send.using(delay=SECOND), 2)
    enqueue(session, send.using(key="three"), 3)
    enqueue_many(session, [send.job(4), send.job(5)])
    enqueue_many(session, [send.using(columns=given).job(6), send.using(delay=SECOND).job(7)])
    enqueue_many(session, [send.using(key="eight").job(8), send.using(key="three").job(3)])
    clock.advance(session, MINUTE)
    assert leases.seconds_until_due(session, jobs.table, DEMAND) is not None
    (first, *_) = leases.due(session, jobs.table, DEMAND, limit=1, but=[])
    assert leases.seconds_until_due(session, jobs.table, EVERY, but=[first]) is not None
    claimed = leases.claim_these(session, jobs.table, [first], locked_by="w", lease=MINUTE)
    return claimed + take(session, DEMAND)


def jobs_live_and_end(session: Session) -> None:
    """Store, claim, keep, end in every way, reap, archive."""
    held = enqueued_and_claimed(session)
    assert len(held) == 8
    assert leases.renew(session, jobs.table, held, lease=MINUTE).renewed == {lease.key for lease in held}
    assert len(leases.strays(session, jobs.table, locked_by="w", held=frozenset([held[0].key]))) == 7
    outcomes: Sequence[Outcome] = (
        *(Returned(), Returned(), Returned({"a": 1}), Failed("e"), GaveUp("e"), Snoozed(SECOND)),
        *(Interrupted("e"), Released()),
    )
    ends = [settled(lease, outcome) for lease, outcome in zip(held, outcomes, strict=True)]
    assert len(leases.settle(session, jobs.table, ends)) == 8
    assert len(leases.endings(session, jobs.table, held)) == 8

    clock.advance(session, DAY)
    (only, *others) = take(session)
    assert leases.settle(session, jobs.table, [settled(only, Returned())]) == {only.key}
    clock.advance(session, DAY)
    reaped = leases.reap(
        session, jobs.table, lambda lease: settled(lease, Vanished("e")), limit=100, but=[others[0].id]
    )
    assert len(reaped) == len(others) - 1 == 2

    clock.advance(session, DAY)
    assert archive.archive_batch(session, jobs, "done", DAY).changed == 4
    assert own_values(session, Job, JOBS) | own_values(session, ArchivedJob, ARCHIVE) == {"own", "given"}


def people_look_and_act(session: Session) -> None:
    """List, count, requeue, cancel and delete, by id and by filter; archive, and delete from there."""
    ids = [enqueue(session, send, number).id for number in range(4)]

    assert why(session, jobs, ids[3]).reason == "in_backlog"
    assert show_job(session, jobs, ids[0]).id == ids[0]
    assert stats(session, jobs).due == 4
    assert [answer.is_changed for answer in cancel_jobs(session, jobs, ids[:2])] == [True, True]
    assert [answer.is_changed for answer in requeue_jobs(session, jobs, ids[:1])] == [True]
    assert cancel_batch(session, jobs, JobFilter(status="ready")).changed == 3
    assert requeue_batch(session, jobs, JobFilter(status="failed"), max_attempts=3).changed == 4
    assert cancel_batch(session, jobs, JobFilter(status="ready")).changed == 4
    assert [answer.is_changed for answer in delete_jobs(session, jobs, ids[:1])] == [True]
    assert delete_batch(session, jobs, JobFilter(status="failed"), limit=1).changed == 1
    assert len(find_jobs(session, jobs, JobFilter(status="failed")).jobs) == 2

    clock.advance(session, DAY)
    first = archive.archive_batch(session, jobs, "failed", MINUTE, limit=1)
    second = archive.archive_batch(session, jobs, "failed", MINUTE, limit=1, after=first.after)
    clock.advance(session, DAY)
    gone = archive.delete_archived_batch(session, jobs, MINUTE, limit=1)
    last = archive.delete_archived_batch(session, jobs, MINUTE, limit=1, after=gone.after)
    assert [batch.changed for batch in (first, second, gone, last)] == [1, 1, 1, 1]


def schedules_fire(session: Session) -> None:
    """Declare, change, fire, pause, resume, list."""
    assert tick(session, jobs) == []
    (declaration,) = jobs.declarations.values()
    changed = scheduling.declare(session, jobs, [replace(declaration, cron="30 * * * *")])
    assert changed.failed == {}
    clock.advance(session, 2 * DAY)
    assert len(tick(session, jobs)) >= 1

    schedules.pause(session, jobs, "hourly")
    schedules.resume(session, jobs, "hourly")
    assert [each.name for each in schedules.list_schedules(session, jobs)] == ["hourly"]
    assert own_values(session, Schedule, SCHEDULES) == own_values(session, Job, JOBS) == {"own"}


def test_app_with_columns_called_like_parameters_lives_as_any(engine: Engine) -> None:
    """Whatever is done to jobs and schedules, no parameter of ours is taken for a value of a column of the app's."""
    Base.metadata.create_all(engine)
    heard: set[str] = set()

    @event.listens_for(engine, "before_cursor_execute")
    def hear(*call: Any) -> None:
        heard.update(getattr(call[4].compiled, "binds", ()))

    for live in (jobs_live_and_end, people_look_and_act, schedules_fire):
        with Session(engine) as session:
            live(session)

    assert PARAMETERS[engine.dialect.name] - heard == set()
    assert len(OWN) > 20
