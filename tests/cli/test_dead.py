from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.cli.calls import Calls, add_jobs, statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine


def failure(error: str, line: int = 7) -> dict[str, Any]:
    trace = f'Traceback (most recent call last):\n  File "/srv/office/post.py", line {line}, in send\n{error}'
    return {"status": "dead", "last_error": trace, "finished_at": datetime(2026, 1, 1, tzinfo=UTC)}


def test_groups_are_told_and_requeued_by_the_program(postgresql_office: Engine, calls: Calls) -> None:
    """Failures of one kind at one place are one group, which its key requeues as a whole."""
    ids = add_jobs(
        postgresql_office, failure("KeyError: 1"), failure("KeyError: 2"), failure("KeyError: 3", 9), {"status": "done"}
    )

    told = calls.program("dead", "groups", "--json").document
    largest = told["groups"][0]
    requeued = calls.program("dead", "requeue", "--group", largest["key"], "--yes")

    assert told["is_capped"] is False
    assert [group["count"] for group in told["groups"]] == [2, 1]
    assert largest == {
        "key": largest["key"],
        "place": "post.py:7 in send",
        "types": ["send"],
        "count": 2,
        "first_seen": "2026-01-01T00:00:00+00:00",
        "last_seen": "2026-01-01T00:00:00+00:00",
        "sample_id": largest["sample_id"],
        "error": "KeyError",
    }
    assert largest["sample_id"] in ids[:2]
    assert (requeued.code, requeued.stdout) == (0, "2 jobs requeued\n")
    assert [statuses(postgresql_office)[each] for each in ids] == ["ready", "ready", "dead", "done"]


def test_dead_letters_are_listed_by_the_program(sqlite_office: Engine, calls: Calls) -> None:
    """The failed and the dead, with what went wrong, and nothing else."""
    ids = add_jobs(sqlite_office, failure("KeyError: 1"), {"status": "failed"}, {"status": "done"}, {})

    listed = calls.program("dead", "list")
    nothing = calls("dead", "list", "--error", "sunshine")

    assert listed.code == nothing.code == 0
    assert sorted(int(line.split()[0]) for line in listed.lines[1:]) == ids[:2]
    assert listed.stdout.count("KeyError: 1") == 1
    assert nothing.lines == ["no such jobs"]


def test_capped_groups_say_so(sqlite_office: Engine, calls: Calls) -> None:
    """Where more has failed than was looked at, people and programs are told."""
    add_jobs(sqlite_office, *[failure("KeyError: 1")] * 3)

    ended, document = calls("dead", "groups", "--cap", "2"), calls("dead", "groups", "--cap", "2", "--json").document

    assert "only the newest 2 failures were looked at" in ended.stderr
    assert "KeyError in send, post.py:7 in send" in ended.stdout
    assert (document["is_capped"], document["groups"][0]["count"]) == (True, 2)
    assert calls("dead", "groups", "--type", "other").lines == ["no failures"]
