from __future__ import annotations

import enum
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import JSON, DateTime, Numeric, String, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs.cli.columns import read_columns
from sqla_jobs.cli.stops import Stop
from sqla_jobs.schema.mixins import JobMixin
from sqla_jobs.schema.tables import job_table
from tests.cli.calls import Calls, add_jobs, statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def test_job_is_found_by_its_key(office_engine: Engine, calls: Calls) -> None:
    """The one job that holds the key is listed and moved, and no other; a key that nobody holds is no error."""
    dead = {"status": "dead", "finished_at": LONG_AGO}
    first, second, third = add_jobs(
        office_engine, {"idempotency_key": "o:1"}, dead | {"idempotency_key": "o:11"}, dead | {"idempotency_key": "O:1"}
    )

    listed = calls("jobs", "list", "--key", "o:1", "--json")
    letters = calls("dead", "list", "--key", "o:1")
    moved = calls("jobs", "requeue", "--key", "o:11", "--yes")

    assert ([job["id"] for job in listed.document["jobs"]], listed.document["looked_at"]) == ([first], 1)
    assert listed.document["after"] is None
    assert (letters.code, letters.stdout) == (0, "no such jobs\n")
    assert (moved.code, moved.stdout) == (0, "1 job requeued\n")
    assert statuses(office_engine) == {first: "ready", second: "ready", third: "dead"}


def test_jobs_are_found_by_the_apps_own_columns(office_engine: Engine, calls: Calls) -> None:
    """A column of the app's is compared as its type; several must all be true; lists, groups and moves go by it."""
    dead = {"status": "dead", "finished_at": LONG_AGO, "tenant": "acme=1", "order_id": 7}
    ids = add_jobs(office_engine, dead, dead | {"order_id": 8}, dead | {"tenant": None}, dead | {"tenant": "acme"})
    words = ("--column", "tenant=acme=1", "--column", "order_id=7")

    listed = calls("jobs", "list", *words, "--json")
    groups = calls("dead", "groups", "--column", "tenant=acme=1", "--json")
    moved = calls("dead", "requeue", *words, "--yes")

    assert [job["id"] for job in listed.document["jobs"]] == ids[:1]
    assert [group["count"] for group in groups.document["groups"]] == [2]
    assert (moved.code, moved.stdout) == (0, "1 job requeued\n")
    assert [*statuses(office_engine).values()].count("dead") == 3


def test_archived_jobs_are_listed(office_engine: Engine, calls: Calls) -> None:
    """The archive has a list of its own, in pages and with filters, and each job of it is shown by its id."""
    done = {"status": "done", "finished_at": LONG_AGO, "tenant": "acme", "idempotency_key": "nightly"}
    first, second, live = add_jobs(office_engine, done, done | {"tenant": None, "idempotency_key": None}, {})
    assert calls("archive", "--done", "1d", "--yes").code == 0

    page = calls("jobs", "list", "--archived", "--limit", "1", "--json")
    rest = calls("jobs", "list", "--archived", "--json", "--after", page.document["after"])
    by_key = calls("jobs", "list", "--archived", "--key", "nightly", "--column", "tenant=acme")
    shown = calls("jobs", "show", f"{first}")
    lost = calls("jobs", "list", "--after", page.document["after"])

    jobs = [job for each in (page, rest) for job in each.document["jobs"]]
    assert ([job["id"] for job in jobs], rest.document["after"]) == ([second, first], None)
    assert all(job["archived_at"] for job in jobs)
    assert [line.split()[0] for line in by_key.lines] == ["id", f"{first}"]
    assert "sqla-jobs jobs list --archived … --after" in calls("jobs", "list", "--archived", "-n", "1").stderr
    assert "archived at" in shown.stdout
    assert (lost.code, "no page of such a list gave that" in lost.stderr) == (2, True)
    assert [job["id"] for job in calls("jobs", "list", "--json").document["jobs"]] == [live]


def test_lists_are_told_by_the_program(sqlite_office: Engine, calls: Calls) -> None:
    """The program takes a key, a column and the archive from its command line, and a time for a new job."""
    done = {"status": "done", "finished_at": LONG_AGO, "tenant": "acme", "idempotency_key": "o:1"}
    (job_id,) = add_jobs(sqlite_office, done)

    live = calls.program("jobs", "list", "--key", "o:1", "--column", "tenant=acme", "--json")
    calls("archive", "--done", "1d", "--yes")
    archived = calls.program("jobs", "list", "--archived", "--key", "o:1")
    new = calls.program("enqueue", "report", "--key", "o:1", "--run-at", "2027-03-01T06:00+01:00")

    assert (live.code, [job["id"] for job in live.document["jobs"]]) == (0, [job_id])
    assert (archived.code, [line.split()[0] for line in archived.lines]) == (0, ["id", f"{job_id}"])
    assert (new.code, new.stdout) == (0, f"job {job_id + 1}: report in queue default, due at 2027-03-01 05:00:00Z\n")


def test_archive_that_is_not_there_is_told(sqlite_office: Engine, calls: Calls) -> None:
    """An app without an archive is told how to get one."""
    url = sqlite_office.url.render_as_string(hide_password=False)
    calls.go_to(url, "make_bare_worker")

    ended = calls("jobs", "list", "--archived")

    assert (ended.code, ended.stdout) == (2, "")
    assert "this app keeps no archive: Jobs(…, archive=ArchivedJob)" in ended.stderr


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Shouted(TypeDecorator[str]):
    impl = String(20)
    cache_ok = True


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"
    word: Mapped[str] = mapped_column("stored_word")
    shouted: Mapped[str] = mapped_column(Shouted())
    number: Mapped[int]
    amount: Mapped[Decimal] = mapped_column(Numeric(10, 2))
    ratio: Mapped[float]
    is_big: Mapped[bool]
    size: Mapped[Size]
    token: Mapped[uuid.UUID]
    day: Mapped[date]
    hour: Mapped[time]
    naive: Mapped[datetime]
    aware: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    span: Mapped[timedelta]
    extra: Mapped[dict[str, Any]] = mapped_column(JSON)


TABLE = job_table(Job, None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("word=", ""), ("word=a=b", "a=b"), ("shouted=HEY", "HEY"), ("number=-7", -7), ("ratio=0.5", 0.5)),
        *(("amount=1.50", Decimal("1.5")), ("is_big=yes", True), ("is_big=FALSE", False), ("size=SMALL", Size.SMALL)),
        *(("size=l", Size.LARGE), ("token=12345678123456781234567812345678", uuid.UUID("12345678" * 4))),
        *(("day=2026-03-01", date(2026, 3, 1)), ("hour=06:00", time(6)), ("span=1d", timedelta(days=1))),
        ("naive=2026-03-01T06:00", datetime(2026, 3, 1, 6)),  # as the column has it
        ("aware=2026-03-01T06:00+01:00", datetime(2026, 3, 1, 5, tzinfo=UTC)),
    ],
)
def test_value_is_read_as_its_column_has_it(text: str, value: object) -> None:
    """What people type becomes the Python value that the column compares with."""
    ((_, read),) = read_columns(TABLE, [text]).items()

    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(("number=1.5", "'1.5' is no int"), ("number=99999999999999999999", "is no int"), ("amount=x", "no Decimal")),
        *(("is_big=maybe", "'maybe' is no bool"), ("size=XXL", "'XXL' is none of SMALL, LARGE"), ("token=1", "UUID")),
        *(("day=today", "no date"), ("span=5", "is no duration: write"), ("aware=2026-03-01T06:00", "has no offset")),
        *(("extra={}", "it holds a dict, which can't be compared"), ("number", "says no value")),
    ],
)
def test_value_that_its_column_can_not_have_is_refused(text: str, says: str) -> None:
    """The text names the column and what it takes."""
    with pytest.raises(Stop, match=says):
        read_columns(TABLE, [text])
    with pytest.raises(Stop, match="word is given twice: one column has one value"):
        read_columns(TABLE, ["word=a", "word=b"])
