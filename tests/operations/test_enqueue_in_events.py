from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.orm import Session, object_session

from sqla_jobs import (
    JobFilter,
    archive_batch,
    backfill,
    cancel_batch,
    cancel_jobs,
    count_jobs,
    delete_archived_batch,
    enqueue,
    enqueue_many,
    failure_groups,
    find_jobs,
    list_schedules,
    pause,
    preview,
    resume,
    show_job,
    stats,
    trigger,
    why,
)
from tests.engines import fresh_database
from tests.operations.timetable import HALF_PAST, HOUR, NOON, Base, Job, Report, add_hourly, emptied, jobs, report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(scope="module")
def shared_url(postgresql_server: str) -> Iterator[str]:
    """Give the URL of the one PostgreSQL database of this file."""
    with fresh_database(postgresql_server) as url:
        yield url


@pytest.fixture
def postgresql_url(shared_url: str) -> str:
    """Give it with empty tables."""
    return emptied(shared_url)


def say_everything(session: Session) -> None:
    """Say each operation once. Seven jobs are left, one of them cancelled."""
    job = enqueue(session, report.using(delay=HOUR), title="one")
    keyed = enqueue(session, report.using(key="k"), title="keyed")
    assert enqueue(session, report.using(key="k"), title="again").id == keyed.id
    alike = enqueue_many(session, [report.job(title=title) for title in "ab"])
    mixed = enqueue_many(session, [report.using(key="k").job(title="c"), report.using(delay=HOUR).job(title="d")])
    assert [each.is_duplicate for each in (*alike, *mixed)] == [False, False, True, False]
    assert cancel_jobs(session, jobs, job.id)[0].is_changed
    assert cancel_batch(session, jobs, JobFilter(queue="none")).changed == 0
    assert len(find_jobs(session, jobs).jobs) == count_jobs(session, jobs).count == 5
    assert len(failure_groups(session, jobs).groups) == 1
    assert show_job(session, jobs, keyed.id).idempotency_key == "k"
    assert why(session, jobs, job.id).job_id == job.id
    assert stats(session, jobs).schedules is not None
    assert archive_batch(session, jobs, "dead", HOUR).changed == 0
    assert delete_archived_batch(session, jobs, HOUR).changed == 0
    pause(session, jobs, "hourly")
    resume(session, jobs, "hourly")
    assert len(list_schedules(session, jobs)) == 1
    assert preview(session, jobs, "hourly")
    trigger(session, jobs, "hourly")
    assert len(backfill(session, jobs, "hourly", start=NOON, end=HALF_PAST)) == 1


@pytest.mark.parametrize("name", ["before_flush", "after_flush", "after_flush_postexec", "after_insert"])
def test_operations_when_they_are_called_inside_a_flush(engine: Engine, name: str) -> None:
    """An app may enqueue, and do all the rest, where its own rows are just being written."""
    said: list[str] = []

    def once(session: Session | None) -> None:
        if session is not None and not said:
            said.append(name)
            say_everything(session)

    def flushing(session: Session, *_: object) -> None:
        once(session)

    def inserted(_mapper: object, _connection: object, target: object) -> None:
        once(object_session(target))

    Base.metadata.create_all(engine)
    with Session(engine) as session, ExitStack() as ends:
        add_hourly(session)
        session.commit()
        if name == "after_insert":
            event.listen(Report, name, inserted)
            ends.callback(event.remove, Report, name, inserted)
        else:
            event.listen(session, name, flushing)
        session.add(Report(text="written"))
        session.commit()

        counts = [session.scalars(select(func.count()).select_from(each)).one() for each in (Job, Report)]
    assert (said, counts) == ([name], [7, 1])
