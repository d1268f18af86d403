from __future__ import annotations

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
    assert ended.document == {
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
