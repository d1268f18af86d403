from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from sqla_jobs.rules.events import JobEvent
from tests.cli import office
from tests.cli.calls import Calls, add_jobs, statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)

VANISHED = {"status": "running", "locked_by": "gone:1", "attempts": 1, "claims": 1, "locked_until": LONG_AGO}


def archived(engine: Engine) -> int:
    with Session(engine) as session:
        return session.query(office.ArchivedJob).count()


def test_jobs_of_vanished_workers_are_given_back(office_engine: Engine, calls: Calls) -> None:
    """What has no lease any more is ready again or dead, more than one batch of it; the app hears of the dead."""
    told: list[int] = []

    @office.jobs.on("dead")
    def remember(event: JobEvent) -> None:
        told.append(event.job_id)

    assert office.jobs.callbacks("dead")[-1] is remember
    ids = add_jobs(office_engine, VANISHED | {"attempts": 3, "max_attempts": 3}, *[VANISHED] * 150, {})

    dry = calls("reap", "--dry-run", "--json")
    before = {*statuses(office_engine).values()}
    done, again = calls("reap", "--json"), calls("reap")

    assert before == {"running", "ready"}
    assert (dry.document["dry_run"], len(dry.document["jobs"]), dry.document["is_capped"]) == (True, 151, False)
    assert {"job_id": ids[0], "type": "send", "queue": "mail", "locked_by": "gone:1", "status": "dead"} in (
        done.document["jobs"]
    )
    assert (done.code, len(done.document["jobs"])) == (0, 151)
    assert sorted(statuses(office_engine).values()) == ["dead"] + ["ready"] * 151
    assert again.stdout == "0 jobs given back\n"
    assert told == ids[:1]


def test_jobs_are_reaped_by_the_program(sqlite_office: Engine, calls: Calls) -> None:
    """Each job is told with the worker that has vanished."""
    add_jobs(sqlite_office, VANISHED)

    dry, done = calls("reap", "--dry-run"), calls.program("reap")

    assert dry.stdout == ("job 1 (send), whose worker gone:1 has vanished\n1 job would be given back\n")
    assert done.stdout == "job 1 (send), whose worker gone:1 has vanished: ready\n1 job given back\n"


def test_finished_jobs_are_archived_by_the_program(postgresql_office: Engine, calls: Calls) -> None:
    """The ages come from the command line or from the worker; dry runs count, and the live stay where they are."""
    old = {"status": "done", "finished_at": LONG_AGO}
    ids = add_jobs(postgresql_office, old, old, old | {"status": "dead"}, {}, {"status": "running"})
    calls.go_to(postgresql_office.url.render_as_string(hide_password=False), "make_tidy_worker")

    dry = calls("archive", "--json", "--dry-run")
    told = calls("archive", "--dead", "30d", "--done", "1h", "--dry-run")
    asked = calls("archive")
    kept = archived(postgresql_office)
    done = calls.program("archive", "--yes", "--json")
    rest = calls("archive", "--dead", "0s", "--archived", "0s", "-y")

    assert dry.document == {"dry_run": True, "counts": [{"status": "done", "count": 2, "is_capped": False}]}
    assert told.lines == ["2 done jobs would be archived", "1 dead job would be archived"]
    assert (asked.code, "2 done jobs to be archived: go on? Nobody is there to ask" in asked.stderr) == (2, True)
    assert kept == 0
    assert done.document == {"dry_run": False, "changed": 2, "skipped": 0}
    assert (rest.code, rest.stdout) == (0, "4 jobs archived\n")
    assert (statuses(postgresql_office), archived(postgresql_office)) == ({ids[3]: "ready", ids[4]: "running"}, 0)


def test_archive_without_a_retention_is_refused(sqlite_office: Engine, calls: Calls) -> None:
    """Nobody can mean all finished jobs of whatever age."""
    add_jobs(sqlite_office, {"status": "done", "finished_at": LONG_AGO})

    ended = calls("archive", "--yes")

    assert (ended.code, ended.stdout) == (2, "")
    assert "The app's worker has no retention: --done 1d" in ended.stderr
    assert calls("archive", "--failed", "1d", "--yes", "--json").document["changed"] == 0
    assert statuses(sqlite_office) == {1: "done"}


def test_doctor_tells_what_is_wrong_by_the_program(sqlite_office: Engine, calls: Calls) -> None:
    """1 if something is an error, each finding with its remedy; tables that are missing are findings, too."""
    healthy = calls("doctor")
    with sqlite_office.begin() as connection:
        connection.execute(text("DROP TABLE schedule"))
    ill, document = calls.program("doctor"), calls("doctor", "--json").document

    assert (healthy.code, healthy.stdout) == (0, "nothing is wrong\n")
    assert (ill.code, ill.stderr) == (1, "")
    assert ill.lines[0] == "error  missing-table: there is no table schedule, for Schedule"
    assert ill.lines[1].startswith("    remedy: alembic revision --autogenerate")
    assert document["errors"] == len(document["findings"]) == 1
    assert document["findings"][0].keys() == {"code", "severity", "what", "remedy"}


@pytest.mark.parametrize("app", ["make_worker", "make_async_worker"])
def test_commands_work_over_either_engine(app: str, office_engine: Engine, calls: Calls) -> None:
    """An app with nothing but an async engine has the same commands."""
    calls.opened(office_engine, app)
    add_jobs(office_engine, {"status": "dead", "finished_at": LONG_AGO}, VANISHED)

    ended = [
        calls(*words.split())
        for words in ("doctor", "dead requeue --all --yes", "reap", "enqueue report", "status", "jobs list --json")
    ]

    assert [each.code for each in ended] == [0] * 6, ended
    assert [job["status"] for job in ended[-1].document["jobs"]] == ["ready"] * 3
