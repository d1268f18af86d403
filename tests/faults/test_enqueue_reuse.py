"""What becomes of a key when its job has an end: it is held while the row exists, and free when that is gone."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select

from sqla_jobs import GiveUp, Jobs, cancel_jobs, delete_jobs, enqueue, enqueue_many, requeue_jobs
from sqla_jobs.operations import leases
from sqla_jobs.operations.archive import archive_batch
from sqla_jobs.rules.settlement import Vanished, decide
from sqla_jobs.testing import drain
from tests.operations.leasing import BACKOFF
from tests.operations.operating import HOUR, ArchivedJob, Job, Scene, clock
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

jobs = Jobs(Job, archive=ArchivedJob, now=clock.now)


@jobs.handler(max_attempts=1)
def work(how: str) -> None:
    """End as told."""
    if how == "gives up":
        raise GiveUp
    if how == "fails":
        raise ValueError


@jobs.handler(queue="elsewhere", max_attempts=9)
def other() -> None: ...


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


def run(session: Session, how: str, *, max_attempts: int = 1) -> int:
    """Enqueue a job of the key, and run it."""
    job_id = put(session, how, max_attempts=max_attempts)
    drain(session, jobs)
    return job_id


def put(session: Session, how: str = "returns", *, max_attempts: int = 1) -> int:
    return enqueue(session, work.using(key="k", max_attempts=max_attempts), how).id


def vanish(session: Session, *, max_attempts: int) -> int:
    """Have the job claimed by a worker that is never seen again, and reaped."""
    job_id = put(session, max_attempts=max_attempts)
    demand = leases.Demand(("work",), None)
    leases.claim(session, jobs.table, demand, limit=1, locked_by="gone", lease=HOUR)
    clock.advance(session, 2 * HOUR)
    (settled,) = leases.reap(
        session, jobs.table, lambda lease: decide(lease, Vanished("gone"), backoff=BACKOFF, draw=0), limit=5
    )
    assert settled.lease.id == job_id
    return job_id


def then(session: Session, job_id: int, act: Callable[..., Any], *more: Any) -> int:
    """Do something with the job."""
    act(session, jobs, *(more or [job_id]))
    return job_id


def archive(session: Session, job_id: int, status: str) -> int:
    assert archive_batch(session, jobs, status, timedelta(0)).changed == 1
    return job_id


def roll_back(session: Session) -> int:
    with session.begin_nested() as savepoint:
        job_id = put(session)
        savepoint.rollback()
    return job_id


HELD: dict[str, Callable[[Session], int]] = {
    "ready": put,
    "done": lambda session: run(session, "returns"),
    "waits for a retry": lambda session: run(session, "fails", max_attempts=2),
    "dead": lambda session: run(session, "fails"),
    "failed": lambda session: run(session, "gives up"),
    "cancelled": lambda session: then(session, put(session), cancel_jobs),
    "requeued": lambda session: then(session, run(session, "fails"), requeue_jobs),
    "orphaned and reaped": lambda session: vanish(session, max_attempts=2),
    "orphaned and dead": lambda session: vanish(session, max_attempts=1),
}
"""By what becomes of the first job of a key, where that is still its row's."""

FREE: dict[str, Callable[[Session], int]] = {
    "done and archived": lambda session: archive(session, run(session, "returns"), "done"),
    "dead and archived": lambda session: archive(session, run(session, "fails"), "dead"),
    "cancelled and archived": lambda session: archive(session, then(session, put(session), cancel_jobs), "failed"),
    "deleted": lambda session: then(session, run(session, "returns"), delete_jobs),
    "rolled back": roll_back,
}
"""Where the row is gone from the table, or was never there."""


def row(session: Session, job_id: int) -> dict[str, Any]:
    return dict(session.execute(select(Job.__table__).where(Job.id == job_id)).mappings().one())


@pytest.mark.parametrize("fate", HELD)
def test_f28_key_is_held_while_its_row_exists(scene: Scene, fate: str) -> None:
    """Whatever became of the job, the next of its key is that one, and changes nothing of it."""
    with scene.transaction() as session:
        job_id = HELD[fate](session)
        before = row(session, job_id)

        again = enqueue(session, other.using(key="k"))
        (by_many,) = enqueue_many(session, [other.using(key="k").job()])

        assert (again.id, again.is_duplicate) == (by_many.id, by_many.is_duplicate) == (job_id, True)
        assert row(session, job_id) == before


@pytest.mark.parametrize("fate", FREE)
def test_f28_key_is_free_when_its_row_is_gone(scene: Scene, fate: str) -> None:
    """The next job of a key whose row was archived, deleted or never committed is a new one, as often as one likes."""
    with scene.transaction() as session:
        ids = [FREE[fate](session) for _ in range(2)]

        last = enqueue(session, other.using(key="k"))

        assert not last.is_duplicate
        assert fate == "rolled back" or len({*ids, last.id}) == 3
        archived = session.scalar(select(func.count()).where(ArchivedJob.idempotency_key == "k"))
        assert archived == (2 if "archived" in fate else 0)
