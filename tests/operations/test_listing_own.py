"""Lists by what an app has put on its jobs: keys, columns of its own; and lists of what is archived."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import String, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations import listing
from sqla_jobs.operations.batches import count_jobs, requeue_batch
from sqla_jobs.operations.groups import failure_groups
from sqla_jobs.operations.listing import JobFilter, JobPage, find_archived_jobs, find_jobs
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

NOW = datetime(2025, 5, 3, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"
    tenant: Mapped[str | None] = mapped_column("owned_by", String(50))
    order_id: Mapped[int | None]


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"
    tenant: Mapped[str | None] = mapped_column("owned_by", String(50))


jobs = Jobs(Job, archive=ArchivedJob, name="shop")

bare = Jobs(Job, name="no archive")


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        yield engine


@pytest.fixture
def session(app_engine: Engine) -> Iterator[Session]:
    """Give a session whose transaction is rolled back."""
    with Session(app_engine) as session:
        yield session


def add(session: Session, number: int, status: str = "dead", **columns: Any) -> int:
    """Insert a job that ended *number* hours ago; with `archived_at`, into the archive."""
    at = NOW - number * HOUR
    usual = {"id": number, "type": "send", "status": status, "run_at": at, "created_at": at, "finished_at": at}
    table: Any = (ArchivedJob if "archived_at" in columns else Job).__table__
    session.execute(insert(table).values(usual | columns))
    return number


def all_of(find: Callable[..., JobPage], session: Session, where: JobFilter, limit: int) -> list[int]:
    """Give the ids of a list, page by page."""
    ids: list[int] = []
    after: str | None = None
    while True:
        page = find(session, jobs, where, limit=limit, after=after)
        ids += [job.id for job in page.jobs]
        if (after := page.after) is None:
            return ids


def test_job_is_found_by_its_key(session: Session) -> None:
    """A key finds the one job that holds it, if the rest of the filter is true of it; the list has no next page."""
    add(session, 1, "ready", idempotency_key="order:1")
    add(session, 2, idempotency_key="order:10", locked_by="w1")

    def found(**where: Any) -> list[int]:
        page = find_jobs(session, jobs, JobFilter(**where))
        assert page.after is None
        assert page.looked_at <= 1
        return [job.id for job in page.jobs]

    assert (found(key="order:1"), found(key="order:10")) == ([1], [2])
    assert (found(key="order"), found(key="ORDER:1")) == ([], [])
    assert (found(key="order:1", status="ready"), found(key="order:1", status=["dead", "done"])) == ([1], [])
    assert (found(key="order:10", newer_than=HOUR), found(key="order:1", type="mail")) == ([], [])
    assert count_jobs(session, jobs, JobFilter(key="order:1")).count == 1
    assert requeue_batch(session, jobs, JobFilter(key="order:10")).changed == 1


def test_jobs_are_found_by_columns_of_the_apps_own(session: Session) -> None:
    """Columns go by their attributes' names, None finds those that have nothing in it, and several must all be true."""
    add(session, 1, owned_by="acme", order_id=7)
    add(session, 2, owned_by="acme", order_id=8)
    add(session, 3, "ready", owned_by="acme", order_id=7)
    add(session, 4, owned_by=None, order_id=None)

    def found(**columns: object) -> list[int]:
        return [job.id for job in find_jobs(session, jobs, JobFilter(columns=columns)).jobs]

    assert found(tenant="acme") == [3, 1, 2]
    assert found(tenant="acme", order_id=7) == [3, 1]
    assert (found(tenant=None), found(tenant="ACME"), found()) == ([4], [], [3, 1, 2, 4])
    where = JobFilter(columns={"tenant": "acme"})
    assert count_jobs(session, jobs, where).count == 3
    assert [group.count for group in failure_groups(session, jobs, where).groups] == [2]
    assert requeue_batch(session, jobs, where).changed == 2


def test_columns_that_are_not_the_apps_are_refused(session: Session) -> None:
    """The error names the columns that there are; those of ours, and those of the other table, are none."""
    for name in ("tenat", "owned_by", "queue", "archived_at"):
        with pytest.raises(
            InvalidOption, match=rf"Job has no column '{name}' of your own; its own .*: order_id, tenant$"
        ):
            find_jobs(session, jobs, JobFilter(columns={name: 1}))
    with pytest.raises(
        InvalidOption, match="ArchivedJob has no column 'order_id' of your own; its own columns: tenant$"
    ):
        find_archived_jobs(session, jobs, JobFilter(columns={"order_id": 7}))
    untyped: Any = JobFilter
    with pytest.raises(InvalidOption, match="columns is a dict of names and values, and is a str"):
        untyped(columns="tenant=acme")


@pytest.mark.parametrize("limit", [1, 2, 50])
def test_archived_jobs_are_listed_newest_first(session: Session, limit: int) -> None:
    """What came in last comes first, whatever its status, with the filters of other lists, and no live ones."""
    add(session, 9, "done")
    add(session, 1, "done", archived_at=NOW - 3 * HOUR, idempotency_key="nightly", owned_by="acme")
    add(session, 2, "dead", archived_at=NOW - HOUR, last_error="OSError: gone")
    add(session, 3, "failed", archived_at=NOW - HOUR, idempotency_key="nightly")
    add(session, 4, "done", archived_at=NOW - 2 * HOUR, idempotency_key="nightly", type="tidy")

    def found(**where: Any) -> list[int]:
        return all_of(find_archived_jobs, session, JobFilter(**where), limit)

    assert found() == [3, 2, 4, 1]
    assert (found(status="done"), found(error="GONE"), found(type="tidy")) == ([4, 1], [2], [4])
    assert (found(key="nightly"), found(key="nightly", status="done"), found(key="night")) == ([4, 3, 1], [4, 1], [])
    assert (found(columns={"tenant": "acme"}), found(group="0" * 8)) == ([1], [])
    assert (found(older_than=HOUR), found(newer_than=HOUR)) == ([3, 2, 4, 1], [])
    (job, *_) = find_archived_jobs(session, jobs).jobs
    assert (job.archived_at, job.status, job.is_known) == (NOW - HOUR, "failed", False)


def test_archive_that_is_not_there_is_told(session: Session) -> None:
    """A registry without an archive has no list of it, and the error says how it gets one."""
    with pytest.raises(InvalidOption, match=r"there is no archive: Jobs\(…, archive=ArchivedJob\)"):
        find_archived_jobs(session, bare)


def token(*parts: object) -> str:
    """Write the place in a list as one is written, with these parts."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def test_place_of_another_list_is_refused(session: Session) -> None:
    """A place goes on in the kind of list that it is of: of live jobs, of archived ones, of one key."""
    live, archived = token(2, "", "", True, f"{NOW:%Y-%m-%d %H:%M:%S+00:00}", 5), token(3, "", "", True, None, None)
    of_key = token(4, "", "", False, "None", 5)
    by_key = JobFilter(key="k")

    for find, where, ours in (
        (find_jobs, JobFilter(), live),
        (find_archived_jobs, JobFilter(), archived),
        (find_archived_jobs, by_key, of_key),
    ):
        untyped: Any = find
        assert untyped(session, jobs, where, after=ours).jobs == ()
        for other in {live, archived, of_key} - {ours}:
            with pytest.raises(InvalidOption, match="no page of such a list gave that"):
                untyped(session, jobs, where, after=other)


@pytest.mark.parametrize("app_engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "at",
    [
        *("yesterday", "2027-05-03", "2027-13-01 00:00:00+00", "2027-05-03 12:00:00", "2027-05-03 12:00:00+23:00"),
        *("999999-01-01 00:00:00+00", "2027-05-03 12:00:00+00 AD", "Infinity and beyond", ""),
    ],
)
def test_time_that_the_server_can_not_read_is_refused(session: Session, at: str) -> None:
    """A garbled place ends no transaction: it is refused before the server stumbles over it."""
    for rank, find in ((2, find_jobs), (1, find_jobs), (3, find_archived_jobs)):
        with pytest.raises(InvalidOption, match="no page of such a list gave that"):
            find(session, jobs, after=token(rank, "", "", True, at, 5))

    assert session.scalar(text("SELECT 1")) == 1


def test_odd_times_have_places_too(session: Session) -> None:
    """Rows that end at no time that Python knows are listed page by page."""
    odd = ["infinity", "-infinity", "12027-01-01 00:00:00+00", "0044-03-15 00:00:00+00 BC", "1800-01-01 00:00:00+00"]
    for number, at in enumerate(odd, 1):
        add(session, number, archived_at=NOW)
        add(session, number)
        for name in ("job", "archived_job"):
            column = "finished_at" if name == "job" else "archived_at"
            session.execute(text(f"UPDATE {name} SET {column} = :at WHERE id = :id"), {"at": at, "id": number})

    for find in (find_jobs, find_archived_jobs):
        untyped: Any = find
        assert sorted(all_of(untyped, session, JobFilter(), 1)) == [1, 2, 3, 4, 5]


def test_search_without_an_index_ends_after_so_many_rows(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a filter that finds nothing has an end, says how far it came, and the next goes on behind it."""
    monkeypatch.setattr(listing, "LONGEST_LOOK", 3000)
    for number in (1, 2):
        add(session, number, owned_by="acme" if number == 1 else None, id=9_000_000 + number)
    session.execute(
        text(
            "INSERT INTO job (type, status, run_at, created_at, finished_at) "
            "SELECT a.type, 'done', a.run_at, a.created_at, :at FROM job a "
            + " ".join(f"CROSS JOIN job {name}" for name in "bcdefghijkl")
        ),
        {"at": f"{NOW:%Y-%m-%d %H:%M:%S.%f}" + ("" if session.get_bind().dialect.name == "sqlite" else "+00")},
    )

    where = JobFilter(columns={"tenant": "acme"})
    first = find_jobs(session, jobs, where)
    second = find_jobs(session, jobs, where, after=first.after)

    assert (first.jobs, first.looked_at, first.after is None) == ((), 3000, False)
    assert ([job.id for job in second.jobs], second.looked_at, second.after) == ([9_000_001], 4096 + 2 - 3000, None)
    assert find_jobs(session, jobs, JobFilter(status="done"), limit=4000).looked_at == 4000
