from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from sqla_jobs.testing import tick
from tests.cli import office
from tests.cli.calls import Calls, statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine


def plan(engine: Engine) -> Engine:
    """Declare the app's schedules, and plan them."""
    with Session(engine) as session, session.begin():
        tick(session, office.jobs)
    return engine


def add_schedule(engine: Engine, **columns: Any) -> None:
    with Session(engine) as session, session.begin():
        session.add(office.Schedule(**({"job_type": "report", "cron": "0 2 * * *"} | columns)))


def rows(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        kept = connection.execute(
            text("SELECT CAST(schedule.id AS TEXT), name, cron, enabled FROM schedule ORDER BY 1")
        )
        return [tuple(row) for row in kept]


def test_schedules_are_listed_whatever_they_hold(office_engine: Engine, calls: Calls) -> None:
    """Broken, paused, retired and unknown ones stand beside the good ones, and listing writes nothing."""
    planned = plan(office_engine)
    add_schedule(planned, name="alien", job_type="elsewhere", payload={"token": "hush"}, enabled=False)
    add_schedule(planned, name="broken", last_error="cron: password=hush", offset=timedelta(seconds=5))
    add_schedule(planned, name="gone", retired_at=datetime(2026, 1, 1, tzinfo=UTC))
    odd = "'infinity'" if planned.dialect.name == "postgresql" else "'never'"
    with planned.begin() as connection:
        connection.execute(text(f"UPDATE schedule SET next_run_at = {odd}, cron = 'no cron' WHERE name = 'broken'"))
    before = rows(planned)

    listed = calls("schedules", "list", "--json").document["schedules"]
    told = calls("schedules", "list", "-n", "2")

    assert [(each["name"], each["state"], each["is_known"]) for each in listed] == [
        *(("alien", "paused", False), ("broken", "error", True), ("gone", "retired", True)),
        ("nightly", "enabled", True),
    ]
    assert (listed[0]["payload"], listed[1]["last_error"]) == ({"token": "***"}, "cron: password=***")
    assert (listed[1]["next_run_at"], listed[1]["offset"], listed[1]["cron"]) == (None, 5.0, "no cron")
    assert listed[3]["next_run_at"].endswith("+00:00")
    assert ["elsewhere (no handler)" in told.stdout, "nightly" in told.stdout] == [True, False]
    assert "sqla-jobs schedules list --after 'broken'" in told.stderr
    assert [line.split()[0] for line in calls("schedules", "list", "--after", "broken").lines[1:]] == [
        "gone",
        "nightly",
    ]
    assert rows(planned) == before


def test_schedules_are_listed_and_previewed_by_the_program(postgresql_office: Engine, calls: Calls) -> None:
    """The next slots are told in UTC and in the schedule's zone."""
    plan(postgresql_office)
    listed, previewed = calls.program("schedules", "list"), calls.program("schedules", "preview", "nightly", "-n", "3")
    document = calls("schedules", "preview", "nightly", "--json").document

    assert listed.lines[1].split()[:7] == ["nightly", "0", "2", "*", "*", "*", "Europe/Zurich"]
    assert [line.split("  ")[1][15:20] for line in previewed.lines[1:]] == ["02:00"] * 3
    assert document["slots"][0].keys() == {"at", "local", "offset", "run_at"}
    assert [datetime.fromisoformat(slot["local"]).hour for slot in document["slots"]] == [2] * 5
    assert document["slots"][0]["at"].endswith("+00:00")


def test_schedule_is_triggered_paused_and_resumed_by_the_program(sqlite_office: Engine, calls: Calls) -> None:
    """What people do by hand takes effect, and a dry run does not."""
    planned = plan(sqlite_office)
    for words in (("trigger",), ("pause",)):
        assert "would be" in calls("schedules", *words, "nightly", "--dry-run").stdout
    assert (statuses(planned), bool(rows(planned)[0][3])) == ({}, True)

    paused, triggered = calls.program("schedules", "pause", "nightly"), calls.program("schedules", "trigger", "nightly")
    assert (paused.stdout, triggered.stdout) == ("nightly: paused\n", "job 1: report in queue default\n")
    assert not rows(planned)[0][3]
    resumed = calls.program("schedules", "resume", "nightly", "--json")

    assert (statuses(planned), bool(rows(planned)[0][3])) == ({1: "ready"}, True)
    assert resumed.document == {"dry_run": False, "names": ["nightly"], "enabled": True}


def test_past_slots_are_backfilled_by_the_program(postgresql_office: Engine, calls: Calls) -> None:
    """It tells the slots and makes the jobs of those that have none; a second time there is nothing to do."""
    planned = plan(postgresql_office)
    words = ("schedules", "backfill", "nightly", "--from", "2026-01-01T00:00+01:00", "--to", "2026-01-04T00:00+01:00")

    dry = calls(*words, "--dry-run", "--json")
    refused = calls(*words)
    before = statuses(planned)
    done, again = calls.program(*words, "--yes"), calls(*words, "--yes", "--json")

    assert (dry.document["missing"], dry.document["enqueued"], before) == (3, 0, {})
    assert (refused.code, "Enqueue 3 jobs of 'nightly', due at once? Nobody is there" in refused.stderr) == (2, True)
    assert (done.code, done.lines[-1]) == (0, "3 jobs of 3 slots enqueued")
    assert done.lines[1].split() == [
        "2026-01-01",
        "01:00:00Z",
        *("Thu", "2026-01-01", "02:00:00", "+0100", "1", "(new)"),
    ]
    assert (again.document["missing"], [slot["job_id"] for slot in again.document["slots"]]) == (0, [1, 2, 3])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("pause nightly nigtly", 1, "no schedule named 'nigtly' (did you mean 'nightly'?)"),
        ("trigger alien", 1, "no handler named 'elsewhere'"),
        ("preview broken", 1, "'no cron'"),
        ("backfill nightly --from 2026-01-01 --to 2026-01-02T00:00Z", 2, "has no offset from UTC: write"),
        ("backfill nightly --from 2026-01-02T00:00Z --to 2026-01-01T00:00Z", 2, "swap them"),
        ("backfill nightly --from 2026-01-01T00:00Z --to 9000-01-02T00:00Z", 2, "is for slots that have passed"),
        ("backfill nightly --from 2010-01-01T00:00Z --to 2026-01-01T00:00Z --yes", 1, "1000"),
        ("backfill nightly --to 2026-01-01T00:00Z", 2, "--from"),
    ],
)
def test_what_cannot_be_done_is_told(words: str, code: int, says: str, sqlite_office: Engine, calls: Calls) -> None:
    """1 where the table says no, 2 where the command line is wrong; and nothing was done."""
    plan(sqlite_office)
    add_schedule(sqlite_office, name="alien", job_type="elsewhere")
    add_schedule(sqlite_office, name="broken")
    with sqlite_office.begin() as connection:
        connection.execute(text("UPDATE schedule SET cron = 'no cron' WHERE name = 'broken'"))
    before = rows(sqlite_office)

    ended = calls("schedules", *words.split())

    assert (ended.code, ended.stdout) == (code, "")
    assert says in " ".join(ended.stderr.replace("│", " ").split())
    assert (rows(sqlite_office), statuses(sqlite_office)) == (before, {})
