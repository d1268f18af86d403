from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.cli import office
from tests.cli.calls import Calls, add_jobs, statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def test_jobs_are_listed_in_pages(office_engine: Engine, calls: Calls) -> None:
    """A page says where the next begins; filters leave out the rest; nothing is written."""
    ids = add_jobs(
        office_engine, {}, {"queue": "other"}, {"status": "done", "finished_at": LONG_AGO}, {"type": "alien"}
    )

    first = calls("jobs", "list", "--limit", "3", "--json")
    rest = calls("jobs", "list", "--json", "--after", first.document["after"])
    some = calls("jobs", "list", "--queue", "mail", "--status", "ready", "--status", "running", "--type", "send")

    found = [job["id"] for page in (first, rest) for job in page.document["jobs"]]
    assert sorted(found) == ids
    assert found[-1] == ids[2]
    assert rest.document["after"] is None
    assert {job["id"]: job["is_known"] for job in first.document["jobs"]}[ids[3]] is False
    assert datetime.fromisoformat(first.document["at"]).utcoffset() == timedelta(0)
    assert [line.split()[0] for line in some.lines] == ["id", f"{ids[0]}"]
    assert "there are more: sqla-jobs jobs list" in calls("jobs", "list", "-n", "3").stderr
    assert "alien (no handler)" in calls("jobs", "list").stdout


def test_ages_in_a_list_go_by_the_databases_clock(sqlite_office: Engine, calls: Calls) -> None:
    """How long ago a status began, or when a job is due, as the database has it."""
    started = {"status": "running", "locked_by": "w", "started_at": office.clock.now, "claims": 1}
    add_jobs(sqlite_office, {}, started)
    with Session(sqlite_office) as session, session.begin():
        office.clock.advance(session, timedelta(hours=2))
    add_jobs(sqlite_office, {"run_at": office.clock.now})
    with Session(sqlite_office) as session, session.begin():
        office.clock.advance(session, -timedelta(minutes=30))

    lines = [" ".join(line.split()) for line in calls("jobs", "list").lines[1:]]

    claimed, due, later = lines
    assert "running claimed 1h 30m ago" in claimed
    assert "ready due 1h 30m ago" in due
    assert "ready due in 29m " in later or "ready due in 30m " in later


def test_job_is_shown_and_explained_by_the_program(postgresql_office: Engine, calls: Calls) -> None:
    """`show` has all of a row, `why` a sentence, and a job that is not there is a clear no."""
    (job_id,) = add_jobs(postgresql_office, {"payload": {"to": "ann", "smtp_password": "hush"}, "queue": "mail"})

    shown, why = calls.program("jobs", "show", f"{job_id}"), calls.program("jobs", "why", f"{job_id}", "--json")
    missing = calls("jobs", "show", "4711")

    assert (shown.code, why.code, missing.code) == (0, 0, 1)
    assert '"smtp_password": "***"' in shown.stdout
    assert ["type", "send"] in [line.split() for line in shown.lines]
    assert why.document.keys() == {"job_id", "status", "reason", "text"}
    assert (why.document["reason"], why.document["status"]) == ("in_backlog", "ready")
    assert (missing.stdout, missing.stderr[:28]) == ("", "Error: there is no job 4711:")
    assert calls("jobs", "why", "4711").code == 1


def test_each_id_has_an_answer(office_engine: Engine, calls: Calls) -> None:
    """Ids that can be moved are; the others say why not, and make the exit code 1. A dry run moves nothing."""
    dead, done = add_jobs(office_engine, {"status": "dead", "attempts": 3, "max_attempts": 3}, {"status": "done"})
    words = ("jobs", "requeue", f"{dead}", f"{done}", "4711", "--max-attempts", "9", "--json")

    rehearsed = calls(*words, "--dry-run")
    before = statuses(office_engine)
    moved = calls(*words, "--yes")

    assert before == {dead: "dead", done: "done"}
    assert statuses(office_engine) == {dead: "ready", done: "done"}
    assert rehearsed.code == moved.code == 1
    for ended, is_dry in ((rehearsed, True), (moved, False)):
        document = ended.document
        assert (document["dry_run"], document["changed"], document["skipped"]) == (is_dry, 1, 2)
        assert [(job["job_id"], job["is_changed"], job["status"]) for job in document["jobs"]] == [
            *((dead, True, "ready"), (done, False, "done"), (4711, False, None))
        ]
    assert rehearsed.document["jobs"][0]["text"] == f"job {dead} would be requeued"
    with Session(office_engine) as session:
        job = session.get_one(office.Job, dead)
        assert (job.attempts, job.max_attempts) == (0, 9)


def test_jobs_are_cancelled_and_deleted_by_the_program(sqlite_office: Engine, calls: Calls) -> None:
    """What has not ended is cancelled with its reason, what has is deleted, and what a filter leaves out stays."""
    first, second, third = add_jobs(sqlite_office, {}, {"queue": "other"}, {"status": "done"})

    cancelled = calls.program("jobs", "cancel", f"{first}", "--reason", "withdrawn", "--yes")
    deleted = calls.program("jobs", "delete", "--status", "done", "--json", "-y")

    assert (cancelled.code, cancelled.stdout) == (0, f"job {first} is cancelled\n")
    assert deleted.document == {"dry_run": False, "changed": 1, "skipped": 0}
    assert statuses(sqlite_office) == {first: "failed", second: "ready"}
    assert third not in statuses(sqlite_office)
    with Session(sqlite_office) as session:
        assert session.get_one(office.Job, first).last_error == "withdrawn"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("requeue", "which jobs? Give ids, or options such as --type, or --all"),
        ("requeue 1 --type send", "name jobs by their ids or by options, not both"),
        ("delete 1 --all", "name jobs by their ids or by options, not both"),
        ("requeue --status done", "jobs that are done are not requeued: only failed and dead jobs are requeued"),
        ("cancel --status dead --all --yes", "only ready and running jobs are cancelled"),
        ("delete --status running --dry-run", "only finished jobs are deleted: cancel it first"),
        ("requeue 1", "Requeue 1 job (1)? Nobody is there to ask: add --yes"),
        ("requeue --all", "Requeue 3 jobs? Nobody is there to ask: add --yes"),
        ("list --status asleep", "status is one of ready, running, done, failed, dead"),
        ("list --after nonsense", "no page of such a list gave that"),
        ("list --older-than 5", "'5' is no duration"),
        ("list --limit 0", "--limit"),
        ("list --limit 99999999999999999999", "--limit"),
        ("list --column tenant", "--column 'tenant' says no value: write --column tenant=acme"),
        ("list --column queue=mail", "Job has no column 'queue' of your own; its own columns: order_id, tenant"),
        ("requeue --column order_id=one", "--column order_id: 'one' is no int"),
        (
            "list --archived --column order_id=1",
            "ArchivedJob has no column 'order_id' of your own",
        ),
        ("requeue 99999999999999999999", "Error: a job's id has 64 bits, and this is 99999999999999999999"),
        ("show 99999999999999999999", "a job's id has 64 bits"),
        ("requeue --all --max-attempts 2147483648", "less than or equal to 2147483647"),
        ("show one", "ID"),
        ("cancel 1 --reason  --yes", "reason is a text"),
    ],
)
def test_wrong_words_change_nothing(words: str, says: str, sqlite_office: Engine, calls: Calls) -> None:
    """What nobody can mean, and what needs a yes that nobody can say, ends with 2 and moves no job."""
    add_jobs(sqlite_office, *[{"status": "dead"}] * 3)

    ended = calls("jobs", *words.split(" "))

    assert (ended.code, ended.stdout) == (2, "")
    assert says in " ".join(ended.stderr.replace("│", " ").split())
    assert {*statuses(sqlite_office).values()} == {"dead"}


def test_filters_are_counted_before_they_move(office_engine: Engine, calls: Calls) -> None:
    """A dry run counts what would be moved; the move itself goes on over more than one batch, and is repeatable."""
    new = {"status": "dead", "last_error": "ValueError: no address", "finished_at": office.clock.now}
    add_jobs(office_engine, *[new] * 1003, new | {"last_error": "KeyError: 1"}, new | {"finished_at": LONG_AGO})
    words = ("jobs", "requeue", "--error", "NO ADDRESS", "--newer-than", "1h", "--json")

    counted = calls(*words, "--dry-run")
    untouched = {*statuses(office_engine).values()}
    moved, again = calls(*words, "--yes"), calls(*words, "--yes")

    assert (counted.code, counted.document) == (0, {"dry_run": True, "count": 1003, "is_capped": False})
    assert untouched == {"dead"}
    assert (moved.code, moved.document) == (0, {"dry_run": False, "changed": 1003, "skipped": 0})
    assert again.document["changed"] == 0
    assert sorted(statuses(office_engine).values()) == ["dead"] * 2 + ["ready"] * 1003


def test_locked_jobs_are_passed_over_and_told(postgresql_office: Engine, calls: Calls) -> None:
    """A bulk form waits for nobody: what somebody has locked stays, and the exit code says that not all is done."""
    first, second = add_jobs(postgresql_office, {"status": "dead"}, {"status": "dead"})

    with Session(postgresql_office) as other:
        other.execute(text(f"SELECT id FROM job WHERE id = {first} FOR UPDATE"))
        ended = calls("jobs", "requeue", "--all", "--yes")

    assert ended.code == 1
    assert ended.stdout.startswith("1 job requeued, 1 passed over: somebody has locked or moved them")
    assert statuses(postgresql_office) == {first: "dead", second: "ready"}


def test_interrupted_work_keeps_what_is_done(postgresql_office: Engine, calls: Calls) -> None:
    """Ctrl-C ends with 130; each batch was a transaction of its own, and the text says how far it came."""
    ids = add_jobs(postgresql_office, *[{"status": "dead"}] * 501)
    words = ("jobs", "requeue", *map(str, ids), "--yes")

    with Session(postgresql_office) as other:
        other.execute(text(f"SELECT id FROM job WHERE id = {ids[-1]} FOR UPDATE"))
        with calls.terminal(*words) as terminal:
            terminal.read_until("500/501")
            terminal.process.send_signal(signal.SIGINT)
            told = terminal.read_all()
            assert terminal.process.wait() == 130

    assert "stopped: 500 jobs requeued before that, the others left as they were" in told
    assert "Traceback" not in told
    assert sorted(statuses(postgresql_office).values()) == ["dead"] + ["ready"] * 500
