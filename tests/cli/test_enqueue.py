from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from tests.cli import office
from tests.cli.calls import Calls, statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine


def test_job_is_enqueued_by_the_program(postgresql_office: Engine, calls: Calls) -> None:
    """It is stored as the app's own call would store it, with the options that were given."""
    ended = calls.program(
        *("enqueue", "send", "--payload", '{"to": "ann"}', "--key", "k", "--delay", "2h", "--queue", "slow"),
        *("--max-attempts", "7", "--json"),
    )

    assert (ended.code, ended.stderr) == (0, "")
    document = ended.document
    run_at = datetime.fromisoformat(document.pop("run_at"))
    assert document == {
        "dry_run": False,
        "job_id": 1,
        "type": "send",
        "queue": "slow",
        "status": "ready",
        "is_duplicate": False,
    }
    with Session(postgresql_office) as session:
        job = session.get_one(office.Job, 1)
        assert (job.payload, job.idempotency_key, job.queue, job.max_attempts) == ({"to": "ann"}, "k", "slow", 7)
        assert (job.run_at - job.created_at).total_seconds() == pytest.approx(7200, abs=1)
        assert job.run_at == run_at


def test_job_is_enqueued_for_a_time(office_engine: Engine, calls: Calls) -> None:
    """A time has an offset, and is said again in UTC; a key that is taken leaves the job as it was, and is no error."""
    words = ("enqueue", "report", "--key", "k", "--run-at")

    first = calls(*words, "2027-03-01T06:00+01:00")
    again = calls(*words, "2028-03-01T06:00Z")

    assert (first.code, first.stdout) == (0, "job 1: report in queue default, due at 2027-03-01 05:00:00Z\n")
    assert (again.code, again.stdout) == (0, "job 1 has the key 'k' already, and is ready: nothing is enqueued\n")
    with Session(office_engine) as session:
        assert session.get_one(office.Job, 1).run_at == datetime(2027, 3, 1, 5, tzinfo=UTC)


def test_dry_run_and_taken_key_store_nothing(office_engine: Engine, calls: Calls) -> None:
    """A dry run checks all the same, a key that a job holds gives that job."""
    words = ("enqueue", "send", "-p", '{"to": "ann"}', "--key", "k")

    dry = calls(*words, "--dry-run")
    first, second, dry_second = calls(*words), calls(*words), calls(*words, "--dry-run", "--json")

    assert dry.stdout == "a job send in queue mail would be enqueued\n"
    ids = list(statuses(office_engine))
    assert len(ids) == 1
    assert first.stdout == f"job {ids[0]}: send in queue mail\n"
    assert second.stdout == f"job {ids[0]} has the key 'k' already, and is ready: nothing is enqueued\n"
    assert (dry_second.document["job_id"], dry_second.document["is_duplicate"]) == (ids[0], True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sned"], "no handler named 'sned' (did you mean 'send'?); this app has crash, report, send"),
        (["send"], "argument 'to' of handler 'send' is missing"),
        (["send", "-p", '{"too": "ann"}'], "argument 'too' of handler 'send' does not exist: did you mean 'to'?"),
        (["send", "-p", '{"to": 7}'], "argument 'to' of handler 'send' is an int that its annotation does not allow"),
        (["send", "-p", "to=ann"], "the payload is no JSON (Expecting value"),
        (["send", "-p", '["ann"]'], "the payload is a JSON object of the arguments by name"),
        (["send", "-p", '{"to": "\\u0000"}'], "argument 'to' of handler 'send' holds a NUL character"),
        (["send", "-p", '{"to": "ann"}', "--delay", "soon"], "'soon' is no duration"),
        (["send", "-p", '{"to": "ann"}', "--key", ""], "key is empty"),
        (["report", "--run-at", "2027-03-01T06:00"], "has no offset from UTC: write 2027-03-01T06:00Z for UTC, or"),
        (["report", "--run-at", "tomorrow"], "'tomorrow' is no time: write it like 2026-03-01T06:00+01:00"),
        (["report", "--run-at", "0001-01-01T00:00+23:00"], "run_at is from 1970 to 9998"),
        (["report", "--run-at", "2027-03-01T06:00Z", "--delay", "5m"], "--delay (from now on) or --run-at (a time)"),
        (["report", "--max-attempts", "2147483648"], "less than or equal to 2147483647"),
        (["report", "-p", '{"days": ' + "[" * 5000 + "]" * 5000 + "}"], "is no JSON (it is nested too deep)"),
        (["report", "--key", "a\udcffb"], r"'a\udcffb' has bytes that are no text in this terminal's encoding"),
    ],
)
def test_wrong_call_is_refused_with_the_remedy(
    words: list[str], says: str, sqlite_office: Engine, calls: Calls
) -> None:
    """Nothing is stored that no attempt could run; the text names the argument, and no row that is to be repaired."""
    ended = calls("enqueue", *words)

    assert (ended.code, ended.stdout) == (2, "")
    told = " ".join(ended.stderr.replace("│", " ").split())
    assert says in told
    assert "stored" not in told
    assert statuses(sqlite_office) == {}


def test_payload_is_read_from_stdin(sqlite_office: Engine, calls: Calls) -> None:
    """Secrets stay out of the shell's history and of the list of processes."""
    ended = calls("enqueue", "send", "--payload", "-", stdin='{"to": "ann", "smtp_password": "hush"}')

    assert ended.code == 0
    with Session(sqlite_office) as session:
        assert session.get_one(office.Job, 1).payload == {"to": "ann", "smtp_password": "hush"}
    assert "hush" not in ended.stdout + ended.stderr
