from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.cli.calls import Calls, add_jobs, statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine

NASTY = "LookupError: no [red]file[/red] \x1b[31m\x9b2J\u202e at :smile: ftp://ann:hush@files/" + "x" * 90


def nasty(engine: Engine) -> int:
    row = {
        "type": "se\x1b]0;title\x07nd",
        "status": "dead",
        "payload": {"api_token": "hush", "note": "\x1b[2J[bold]", "deep": [{"DB_PASSWORD": "hush"}]},
        "result": {"cookie": "hush"},
        "trace": {"authorization": "hush"},
        "last_error": f'Traceback (most recent call last):\n  File "a.py", line 1, in b\n{NASTY}',
        "errors": [{"attempt": 1, "started_at": None, "worker": "w", "error": f"token=hush {NASTY}"}, "odd"],
        "finished_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return add_jobs(engine, row)[0]


def test_what_is_stored_never_commands_the_terminal(postgresql_office: Engine, calls: Calls) -> None:
    """Escape sequences show as codes, markup as it is written, secrets not at all; on a pipe as in a terminal."""
    job_id = nasty(postgresql_office)

    piped = [calls(*words) for words in (("dead", "list"), ("jobs", "show", f"{job_id}"), ("jobs", "why", f"{job_id}"))]
    with calls.terminal("dead", "list") as terminal:
        shown = terminal.read_all()

    for text in (*(each.stdout for each in piped), shown):
        assert "[red]file[/red] \\x1b[31m\\x9b2J\\u202e at :smile: ftp://ann:***@files" in text
        assert not {*text} & {"\x1b", "\x9b", "\x07", "\u202e"}
        assert "hush" not in text
    assert '"note": "\\u001b[2J[bold]"' in piped[1].stdout
    assert '"api_token": "***"' in piped[1].stdout
    assert "attempt 1" in piped[1].stdout


def test_json_is_one_document_that_masks_the_same(sqlite_office: Engine, calls: Calls) -> None:
    """A program reads what was stored, secrets aside, and plain ASCII, whatever the output's encoding."""
    job_id = nasty(sqlite_office)

    ended = calls("--json", "jobs", "show", f"{job_id}", FORCE_COLOR="1")

    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.isascii()
    assert "hush" not in ended.stdout
    document = ended.document
    assert document["type"] == "se\x1b]0;title\x07nd"
    assert document["payload"] == {"api_token": "***", "note": "\x1b[2J[bold]", "deep": [{"DB_PASSWORD": "***"}]}
    assert document["errors"][1] == "odd"


def test_table_on_a_pipe_keeps_every_letter(sqlite_office: Engine, calls: Calls) -> None:
    """A row is one line, however long, also where CI asks for colors; what the encoding lacks is written as a code."""
    job_id = nasty(sqlite_office)

    ended = calls.program("dead", "list", PYTHONIOENCODING="ascii", FORCE_COLOR="1", COLUMNS="40")

    assert ended.code == 0
    assert len(ended.lines) == 2
    assert f"{job_id}" in ended.lines[1]
    assert "ftp://ann:***@files/xxxx" in ended.lines[1]
    assert ended.lines[1].endswith("\\u2026")


def test_remarks_stand_below_their_rows_in_a_narrow_terminal(sqlite_office: Engine, calls: Calls) -> None:
    """Where a table is too wide, its long last column goes below, and no column is cut."""
    add_jobs(sqlite_office, {"status": "dead", "last_error": NASTY}, {"status": "dead", "last_error": "Short: error"})

    with calls.terminal("dead", "list", columns=60) as terminal:
        shown = terminal.read_all().splitlines()

    assert shown[0].split() == ["id", "type", "queue", "status", "when", "attempts"]
    assert [line[:20].strip() for line in shown if "Error: no" in line or "Short" in line] == [
        "Short: error",
        "LookupError: no",
    ]


def test_question_is_asked_before_rows_change(sqlite_office: Engine, calls: Calls) -> None:
    """Whatever is no yes leaves the job as it is, and ends with 1."""
    (job_id,) = add_jobs(sqlite_office, {"status": "dead"})

    with calls.terminal("jobs", "requeue", f"{job_id}", "--json") as terminal:
        terminal.read_until(f"Requeue 1 job ({job_id})? [y/N]")
        terminal.type("\n")
        told = terminal.read_all()

        assert terminal.process.wait() == 1
    assert told.strip() == "nothing was changed"
    assert statuses(sqlite_office) == {job_id: "dead"}


def test_long_bulk_work_shows_its_progress(sqlite_office: Engine, calls: Calls) -> None:
    """A bar in the terminal counts the jobs; on a pipe there is none."""
    add_jobs(sqlite_office, *[{"status": "dead"}] * 1200)

    with calls.terminal("dead", "requeue", "--type", "send") as terminal:
        terminal.read_until("Requeue 1,200 jobs? [y/N]")
        terminal.type("y\n")
        terminal.read_until("1200/1200")
        assert "1,200 jobs requeued" in terminal.read_all()
    piped = calls("jobs", "cancel", "--type", "send", "--yes")

    assert (piped.code, piped.stdout, piped.stderr) == (0, "1,200 jobs cancelled\n", "")
    assert {*statuses(sqlite_office).values()} == {"failed"}
