from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidModel, InvalidOption
from sqla_jobs.operations.archive import archive_batch, delete_archived_batch, preview
from sqla_jobs.operations.batches import Batch, Count
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.rules.retention import Retention
from sqla_jobs.status import JobStatus
from tests.operations.archives import (
    DAY,
    HOUR,
    ArchivedJob,
    Job,
    Note,
    add,
    clock,
    columns,
    empty,
    ids,
    jobs,
    made_once,
    no_archive,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def shared(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with made_once(request.param, request) as engine:
        yield engine


@pytest.fixture
def session(shared: Engine) -> Iterator[Session]:
    empty(shared)
    with Session(shared) as session:
        yield session


def test_archive_batch_moves_old_jobs_of_a_status_as_they_were(session: Session) -> None:
    """Every column of ours and the app's own goes along, under whatever name; the row says when it was moved."""
    now = clock.read(session)
    (old,) = add(
        session,
        ago=DAY,
        payload={"order_id": 7, "text": "ü"},
        queue="mail",
        idempotency_key="k",
        attempts=3,
        max_attempts=7,
        refunds=2,
        claims=9,
        locked_by="w",
        last_error="no",
        errors=[{"attempt": 1, "error": "no"}],
        result={"a": [1, None]},
        lease_expirations=1,
        last_lease_expired_at=now - HOUR,
        schedule_id=4,
        slot=now - 2 * DAY,
        trace={"traceparent": "00"},
        started_at=now - DAY - HOUR,
        tenant="ann",
        page=5,
    )
    was = columns(session, Job, old)
    clock.advance(session, HOUR)

    batch = archive_batch(session, jobs, "done", DAY)

    assert batch == Batch(1, 0, None)
    assert ids(session, Job) == []
    found = columns(session, ArchivedJob, old)
    assert found.pop("archived_at") - now >= HOUR
    assert found == was
    assert (was["tenant"], was["page"], was["errors"][0]["attempt"]) == ("ann", 5, 1)


@pytest.mark.parametrize("status", ["done", "failed", "dead"])
def test_archive_batch_touches_nothing_else(session: Session, status: str) -> None:
    """No ready or running job however old, no other status, nothing younger, and nothing without a time of its end."""
    moved = [*add(session, status=status, ago=DAY), *add(session, status=status, ago=50 * DAY)]
    others = {name for name in JobStatus if name != status}
    kept = [job_id for other in sorted(others) for job_id in add(session, status=other, ago=60 * DAY)]
    kept += add(session, status=status, ago=DAY - HOUR)
    kept += add(session, status=status, ago=None)
    kept += add(session, status="ready", ago=None)

    batch = archive_batch(session, jobs, status, DAY)

    assert batch.changed == 2
    assert ids(session, ArchivedJob) == sorted(moved)
    assert ids(session, Job) == sorted(kept)


def test_archive_batch_without_an_archive_deletes(session: Session) -> None:
    """The rows go where there is no model for them; nobody else's archive gets them."""
    add(session, count=3)
    (kept,) = add(session, ago=HOUR)

    batch = archive_batch(session, no_archive, "done", DAY - HOUR)

    assert batch == Batch(3, 0, None)
    assert ids(session, Job) == [kept]
    assert ids(session, ArchivedJob) == []


@pytest.mark.parametrize("same_time", [False, True])
def test_batches_go_on_where_the_one_before_has_ended(session: Session, *, same_time: bool) -> None:
    """Oldest first, each at most the limit, also past rows that stay; the last one says that it is the last."""
    step = timedelta(0) if same_time else timedelta(milliseconds=1)
    now = clock.read(session)
    for number in range(5):
        add(session, ago=2 * DAY, finished_at=now - 2 * DAY + number * step)
    everything = ids(session, Job)

    seen: list[list[int]] = []
    after, batches = None, list[Batch]()
    while not batches or after is not None:
        batches.append(archive_batch(session, jobs, "done", DAY, after=after, limit=2))
        after = batches[-1].after
        seen.append(ids(session, ArchivedJob))
        # As one that could not be moved.
        add(session, finished_at=now - 3 * DAY)

    assert [batch.changed for batch in batches] == [2, 2, 1]
    assert [batch.after is None for batch in batches] == [False, False, True]
    assert seen == [everything[:2], everything[:4], everything]


def test_key_of_an_archived_job_is_free_again(session: Session) -> None:
    """The next job of that key is a new one, and may be archived beside the first."""
    for _ in range(2):
        job = enqueue(session, send.using(key="receipt:7"), order_id=7)
        assert not job.is_duplicate
        job.status, job.finished_at = "done", clock.read(session) - DAY
        session.flush()
        archive_batch(session, jobs, "done", DAY)

    keys = session.scalars(select(ArchivedJob.idempotency_key)).all()
    assert keys == ["receipt:7", "receipt:7"]


def test_archive_batch_when_a_row_of_the_app_refers_to_a_job(session: Session) -> None:
    """It raises, and moves none of the batch: half of it would be in both tables."""
    moved = add(session, count=3)
    session.add(Note(job_id=moved[1]))
    session.commit()

    with pytest.raises(IntegrityError):
        archive_batch(session, jobs, "done", HOUR)
    session.rollback()

    assert ids(session, Job) == moved
    assert ids(session, ArchivedJob) == []


@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)
def test_locked_rows_are_passed_over(shared: Engine, session: Session) -> None:
    """Who has a finished job locked is not waited for, and the others of the batch go."""
    moved = add(session, count=3)
    session.commit()

    with Session(shared) as other:
        other.execute(select(Job.id).where(Job.id == moved[1]).with_for_update(key_share=True, read=True))
        batch = archive_batch(session, jobs, "done", HOUR)

    assert batch.changed == 2
    assert ids(session, Job) == [moved[1]]


def test_rows_that_only_plain_sql_can_write_are_moved_like_others(shared: Engine, session: Session) -> None:
    """Times that no datetime can hold count by their order, and what is no JSON is kept byte for byte."""
    if shared.dialect.name == "postgresql":
        times = {"-infinity": True, "0044-03-15 BC": True, "infinity": False, "12000-01-01": False}
    else:
        times = {"": True, "17": True, "1999": True, "soon": False, "99999-01-01": False}
    moved: list[int] = []
    for at, is_old in times.items():
        (job_id,) = add(session)
        session.execute(text("UPDATE job SET finished_at = :at WHERE id = :id"), {"at": at, "id": job_id})
        moved += [job_id] if is_old else []
    if shared.dialect.name == "sqlite":
        session.execute(text("UPDATE job SET payload = '{no json', errors = '['"))

    after: str | None = None
    for _ in times:
        after = archive_batch(session, jobs, "done", DAY, after=after, limit=1).after

    assert ids(session, ArchivedJob) == moved
    if shared.dialect.name == "sqlite":
        assert set(session.execute(text("SELECT payload, errors FROM archived_job"))) == {("{no json", "[")}


def test_archived_jobs_are_deleted_by_when_they_were_archived(session: Session) -> None:
    """Their age counts from their move, however old the jobs are; batches go on like those of the move."""
    add(session, count=3, ago=60 * DAY)
    archive_batch(session, jobs, "done", DAY)
    clock.advance(session, DAY)
    (young,) = add(session, ago=60 * DAY)
    archive_batch(session, jobs, "done", DAY)

    first = delete_archived_batch(session, jobs, DAY, limit=2)
    second = delete_archived_batch(session, jobs, DAY, limit=2, after=first.after)

    assert (first.changed, second) == (2, Batch(1, 0, None))
    assert ids(session, ArchivedJob) == [young]


def test_preview_counts_what_a_pass_would_move(shared: Engine, session: Session) -> None:
    """By status, up to a bound, and it writes nothing."""
    add(session, count=5)
    add(session, count=2, status="dead")
    add(session, count=4, status="failed")
    add(session, ago=HOUR)
    session.execute(insert(ArchivedJob).values(columns(session, Job, ids(session, Job)[0])).values(id=-1))
    clock.advance(session, 2 * DAY)
    session.commit()
    statements: list[str] = []
    event.listen(shared, "before_cursor_execute", lambda *call: statements.append(call[2]))

    counts = preview(session, jobs, Retention(done=DAY, dead=DAY, archived=DAY), cap=5)

    assert counts == {
        JobStatus.DONE: Count(5, is_capped=True),
        JobStatus.DEAD: Count(2, is_capped=False),
        None: Count(1, is_capped=False),
    }
    assert {statement.split()[0] for statement in statements} <= {"SELECT", "BEGIN"}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"status": "ready"}, InvalidOption, "and not those that are ready"),
        ({"status": "gone"}, InvalidOption, "and not those that are gone"),
        ({"older_than": -DAY}, InvalidOption, "older_than is from 0:00:00"),
        ({"limit": 0}, InvalidOption, "limit"),
        ({"after": "yesterday"}, InvalidOption, "after is what the batch before gave"),
    ],
)
def test_archive_batch_refuses_what_it_can_t_mean(
    session: Session, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    """A live status is an error, and not an empty batch; so is a place that no batch has given."""
    options: dict[str, Any] = {"status": "done", "older_than": DAY} | change

    with pytest.raises(error, match=says):
        archive_batch(session, jobs, options.pop("status"), options.pop("older_than"), **options)


def test_archived_jobs_need_an_archive(session: Session) -> None:
    """The error says how to have one."""
    with pytest.raises(InvalidModel, match="archive=ArchivedJob"):
        delete_archived_batch(session, no_archive, DAY)
    with pytest.raises(InvalidModel, match="archive=ArchivedJob"):
        preview(session, no_archive, Retention(archived=DAY))
