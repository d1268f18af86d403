from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Connection, Engine, insert, select, text

from benchmarks.chaos.judge import CHECKS, Verdict, judge
from benchmarks.chaos.tables import (
    ArchivedJob,
    Effect,
    Entry,
    Job,
    Known,
    OutsideRun,
    Planned,
    Purchase,
    Schedule,
    create_tables,
)
from tests.engines import build_engine, fresh_database

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]

START: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)

SECOND: Final = timedelta(seconds=1)


@pytest.mark.slow
def test_short_run_loses_and_doubles_nothing_and_says_so_in_its_last_line() -> None:
    """A few seconds of chaos end with exit code 0 and one line of JSON that has all figures."""
    command = [sys.executable, "-m", "benchmarks.chaos", "--minutes", "0.08", "--seed", "11", "--workers", "2"]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert {name: figures[name] for name in ("lost", "doubled", "broken", "drained", "seed", "minutes")} == {
        "lost": 0,
        "doubled": 0,
        "broken": 0,
        "drained": True,
        "seed": 11,
        "minutes": 0.08,
    }
    assert min(figures[name] for name in ("jobs", "effects", "outside_runs", "slots", "commits")) > 0
    assert sum(figures["faults"].values()) > 0
    assert isinstance(figures["kills"], int)
    assert figures["recovery_s"] > 0


# --- the judge --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine_of_ended_run(postgresql_server: str) -> Iterator[Engine]:
    """Give a database in which a run has ended well; what tests do to it is to be rolled back."""
    with fresh_database(postgresql_server) as url:
        engine = build_engine(url)
        create_tables(engine)
        with engine.begin() as connection:
            _fill(connection)
        yield engine
        engine.dispose()


@pytest.fixture
def ended(engine_of_ended_run: Engine) -> Iterator[Connection]:
    """Give a connection to that database, in a transaction that is rolled back."""
    with engine_of_ended_run.connect() as connection:
        yield connection
        connection.rollback()


def _fill(connection: Connection) -> None:
    def job(id_: int, type_: str, **columns: Any) -> dict[str, Any]:
        usual = {"status": "done", "attempts": 1, "claims": 1, "max_attempts": 25, "payload": {"token": "kept"}}
        times = {"run_at": START, "created_at": START, "finished_at": START + SECOND}
        return {"id": id_, "type": type_} | usual | times | columns

    early, late = {"schedule_id": 1, "slot": START}, {"schedule_id": 1, "slot": START + SECOND}
    for row in (
        job(1, "write"),
        job(2, "give_up", status="failed"),
        job(3, "hopeless", status="dead", attempts=3, claims=4, max_attempts=3),
        job(4, "call"),
        job(5, "chain"),
        job(6, "write"),
        job(8, "write", idempotency_key="key", created_at=START + 9 * SECOND, finished_at=START + 10 * SECOND),
        job(9, "beat", payload={}, **early),
        job(10, "beat", payload={}, **late),
        job(11, "beat", payload={}, schedule_id=2, slot=START + 2 * SECOND),
        job(12, "snooze", status="failed"),
    ):
        connection.execute(insert(Job), row)
    archived = job(7, "annotate", idempotency_key="key", note="annotated", archived_at=START + 8 * SECOND)
    connection.execute(insert(ArchivedJob), archived)
    connection.execute(insert(Effect), [{"job_id": n, "attempt": 1, "pid": 1} for n in (1, 5, 6, 7, 8, 9, 10, 11)])
    connection.execute(insert(OutsideRun), [{"job_id": 4, "attempt": 1}] * 2)
    entries = [{"batch": "kept", "job_id": n, "is_duplicate": False} for n in (1, 2, 3, 4, 5, 7, 8, 12)]
    connection.execute(insert(Entry), [*entries, {"batch": "kept", "job_id": 7, "is_duplicate": True}])
    connection.execute(insert(Entry), {"job_id": 6, "is_duplicate": False, "parent": 5})
    connection.execute(insert(Purchase), {"batch": "kept"})
    connection.execute(insert(Known), [{"batch": "kept", "entries": 9}, {"batch": "undone", "entries": None}])
    connection.execute(text("INSERT INTO act (job_id, becomes, transaction) VALUES (12, 'failed', 1)"))
    for id_, leaves_out, last in ((1, False, 1), (2, True, 2)):
        schedule = {
            "id": id_,
            "name": f"schedule {id_}",
            "job_type": "beat",
            "cron": "* * * * * *",
            "created_at": START,
        }
        missed = {"last_slot": START + last * SECOND, "slots_missed": 2 if leaves_out else 0}
        connection.execute(insert(Schedule), schedule | missed)
        planned = {"schedule_id": id_, "first_slot": START, "step": 1, "leaves_out": leaves_out}
        connection.execute(insert(Planned), planned)


DAMAGES: Final = {
    "a job whose enqueue was committed is nowhere": "DELETE FROM job WHERE id = 3",
    "a transaction was committed, and not all of it is there": "DELETE FROM entry WHERE job_id = 2",
    "a transaction's jobs are there, and its business row is not": "DELETE FROM purchase",
    "a job has not ended": "UPDATE job SET status = 'running' WHERE id = 3",
    "a job is done, and the effect that it wrote through its session is not there": (
        "DELETE FROM effect WHERE job_id = 1"
    ),
    "a job is done, and what it wrote to its own row is not there": "UPDATE archived_job SET note = NULL",
    "a job is done, and never ran": "DELETE FROM outside_run",
    "a job is done, and the one that it enqueued was not committed with it": "DELETE FROM entry WHERE parent = 5",
    "a slot has no job": "DELETE FROM job WHERE id = 10",
    "slots have no job, and are not counted as missed or overlapping": (
        "UPDATE schedule SET slots_missed = 1 WHERE id = 2"
    ),
    "a schedule has never fired": "UPDATE schedule SET last_slot = NULL WHERE id = 1",
    "a job has more effects than one": "INSERT INTO effect (job_id, attempt, pid) VALUES (1, 1, 2)",
    "the effect of an attempt was committed, and the attempt did not end as done": (
        "INSERT INTO effect (job_id, attempt, pid) VALUES (3, 2, 1)"
    ),
    "the job that an attempt enqueued was committed more than once, or without the attempt": (
        "INSERT INTO entry (job_id, is_duplicate, parent) VALUES (8, false, 5)"
    ),
    "a slot has more than one job": "UPDATE job SET slot = '2026-03-01 12:00Z' WHERE id = 10",
    "slots are accounted for more than once": "UPDATE schedule SET slots_missed = 3 WHERE id = 2",
    "a key had two jobs at a time": "UPDATE job SET created_at = '2026-03-01 12:00Z' WHERE id = 8",
    "a job stands in two places": "UPDATE archived_job SET id = 1",
    "two enqueues say that they have made the same job": (
        "INSERT INTO entry (batch, job_id, is_duplicate) VALUES ('kept', 1, false)"
    ),
    "a job is there, and no committed transaction has enqueued it": "DELETE FROM entry WHERE job_id = 1",
    "a transaction was rolled back, and something of it is there": "INSERT INTO purchase (batch) VALUES ('undone')",
    "a job has more attempts than it may, or than claims": "UPDATE job SET claims = 2 WHERE id = 3",
    "a job is dead, and has attempts left": "UPDATE job SET attempts = 2 WHERE id = 3",
    "a job has not ended as its kind does, and nobody has cancelled it": "DELETE FROM act",
    "a finished job does not say when it ended, or still has a lease": "UPDATE job SET finished_at = NULL WHERE id = 1",
    "something was seen that must not be": "INSERT INTO violation (what) VALUES ('a process ended by itself')",
}


def test_judge_finds_nothing_where_all_ended_well(ended: Connection) -> None:
    """A run in which nothing went wrong is clean, duplicates, dead letters, missed slots and freed keys included."""
    verdict = judge(ended)

    assert verdict.is_clean, verdict.details


@pytest.mark.parametrize("says", [check.says for check in CHECKS])
def test_judge_finds_what_was_lost_or_doubled(ended: Connection, says: str) -> None:
    """Each check fails when what it guards is taken away, and counts it as its sort."""
    ended.execute(text(DAMAGES[says]))

    verdict = judge(ended)

    (sort,) = [check.sort for check in CHECKS if check.says == says]
    assert [line for line in verdict.details if line.startswith(f"{sort.upper()}: {says}: ")]
    assert getattr(verdict, sort) > 0
    assert not verdict.is_clean


def test_judge_counts_each_row_and_tells_the_first_of_them() -> None:
    """The count is that of all violations; a thousand of them are not printed."""
    verdict = Verdict()

    verdict.add("lost", "jobs", [f"job {n}" for n in range(1000)])

    assert (verdict.lost, verdict.doubled) == (1000, 0)
    assert verdict.details == ["LOST: jobs: 1000", *(f"    job {n}" for n in range(5)), "    …"]


# --- the watch --------------------------------------------------------------------------------------------------------

RUNNING: Final = "status = 'running', claims = claims + 1, attempts = attempts + 1, locked_by = 'chaos:host:7:abc'"

LEASED: Final = ", locked_until = statement_timestamp() + interval '1 minute'"

OVER: Final = ", locked_until = statement_timestamp() - interval '1 second'"

DONE: Final = "status = 'done', locked_until = NULL, finished_at = statement_timestamp()"

CLAIMED: Final = ("worker 7", RUNNING + LEASED)

GOOD: Final = {
    "settled by its holder": [CLAIMED, ("worker 7", DONE)],
    "refunded": [CLAIMED, ("worker 7", "status = 'ready', attempts = attempts - 1, locked_by = NULL")],
    "renewed by its holder": [CLAIMED, ("worker 7", "locked_until = statement_timestamp() + interval '2 minutes'")],
    "reaped by another": [("worker 7", RUNNING + OVER), ("worker 8", "status = 'ready', locked_by = NULL")],
    "settled late, and not reaped": [("worker 7", RUNNING + OVER), ("worker 7", DONE)],
    "cancelled by hand": [CLAIMED, ("operator", "status = 'failed'")],
    "requeued by hand": [
        CLAIMED,
        ("worker 7", "status = 'dead'"),
        ("operator", "status = 'ready', attempts = 0, locked_by = NULL"),
    ],
}

BAD: Final = {
    "claims fell": [CLAIMED, ("worker 7", "claims = 0")],
    "too many attempts": [("worker 7", RUNNING + LEASED + ", max_attempts = 0")],
    "claimed while it was running": [CLAIMED, ("worker 8", "claims = 2, locked_by = 'chaos:host:8:abc'")],
    "renewed by somebody else": [CLAIMED, ("worker 8", "locked_until = statement_timestamp()")],
    "claimed and not counted": [("worker 7", "status = 'running'")],
    "claimed before it was due": [("operator", "run_at = 'infinity'"), CLAIMED],
    "settled with the counts of another claim": [CLAIMED, ("worker 7", DONE + ", attempts = 3")],
    "settled by somebody else, its lease not being over": [CLAIMED, ("worker 8", "status = 'ready'")],
    "written to while nobody had it": [CLAIMED, ("worker 7", DONE), ("worker 7", DONE)],
}


@pytest.mark.parametrize(("seen", "moves"), [*((None, moves) for moves in GOOD.values()), *BAD.items()])
def test_watch_notes_what_no_fault_excuses(ended: Connection, seen: str | None, moves: list[tuple[str, str]]) -> None:
    """The trigger knows the moves that are a job's life, and notes any other, and who has made it."""
    ended.execute(insert(Job), {"id": 20, "type": "write", "status": "ready", "run_at": START, "created_at": START})

    for speaker, change in moves:
        ended.execute(text("SELECT set_config('application_name', :speaker, true)"), {"speaker": speaker})
        ended.execute(text(f"UPDATE job SET {change} WHERE id = 20"))

    noted = list(ended.scalars(text("SELECT what FROM violation")))
    assert [what.partition(":")[0] for what in noted] == ([] if seen is None else [f"{seen} by {moves[-1][0]}"])


def test_watch_notes_jobs_that_are_deleted_without_being_archived(ended: Connection) -> None:
    """A row that leaves the table has to stand in the archive as it was, unless somebody deletes it by hand."""
    delete = text("DELETE FROM job WHERE id = :id")
    violations = text("SELECT job_id FROM violation")

    ended.execute(text("SET LOCAL application_name = 'worker 7'"))
    row = dict(ended.execute(select(Job.__table__).where(Job.id == 1)).mappings().one())
    ended.execute(insert(ArchivedJob), row | {"archived_at": START})
    ended.execute(delete, {"id": 1})
    ended.execute(delete, {"id": 2})
    ended.execute(text("SET LOCAL application_name = 'operator'"))
    ended.execute(delete, {"id": 3})

    assert list(ended.scalars(violations)) == [2]
    assert list(ended.scalars(text("SELECT id FROM removed"))) == [3]
