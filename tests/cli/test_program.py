from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import text

from tests.architecture.sources import ROOT
from tests.cli.calls import Calls, add_jobs
from tests.examples.programs import run

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

COMMANDS: Final = ("worker", "status", "jobs", "dead", "schedules", "enqueue", "archive", "reap", "doctor")


def test_help_names_every_command(calls: Calls) -> None:
    """Without an app, and without arguments, the program says what it can do."""
    program = calls.program("--help")

    assert program.code == 0
    assert [name for name in COMMANDS if f" {name} " not in program.stdout] == []
    assert calls().code == 2
    for name in COMMANDS:
        told = calls(name, "--help")
        assert (told.code, told.stderr) == (0, ""), name


def test_missing_extra_is_named_with_its_remedy() -> None:
    """Without what the command line needs it says what to install, in one line, and ends with 2."""
    blocked = "import sys; sys.modules |= {'typer': None, 'rich': None}"
    ended = run("-c", f"{blocked}; from sqla_jobs.__main__ import main; main()", "status")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "sqla-jobs needs typer and rich: pip install 'sqla_jobs[cli]'\n"


def test_database_that_is_away_is_told(calls: Calls) -> None:
    """3, which database it is, what the driver says, no traceback and no password."""
    calls.go_to("postgresql+psycopg://ann:hunter2@127.0.0.1:1/office")

    ended = calls.program("dead", "list", "--json")
    traced = calls("doctor", SQLA_JOBS_TRACEBACK="1")

    assert (ended.code, ended.stdout) == (3, "")
    assert ended.stderr.startswith(
        "Error: the database postgresql+psycopg://ann:***@127.0.0.1:1/office does not serve us: OperationalError: "
    )
    assert "Traceback" not in ended.stderr
    assert (traced.code, "Traceback (most recent call last)" in traced.stderr) == (3, True)
    assert "hunter2" not in ended.stderr + traced.stderr


@pytest.mark.parametrize(
    "words",
    [
        *("status", "jobs list", "jobs show 1", "jobs why 1", "jobs requeue 1 --yes", "jobs cancel --all --yes"),
        *("jobs delete 1 --dry-run", "dead list", "dead groups", "dead requeue --all --dry-run", "schedules list"),
        *("schedules trigger nightly", "enqueue report", "archive --done 1d --dry-run", "reap", "reap --dry-run"),
    ],
)
def test_missing_tables_are_told_with_the_remedy(words: str, calls: Calls, sqlite_url: str) -> None:
    """Every command that needs the tables ends with 3 and names alembic's commands."""
    calls.go_to(sqlite_url)

    ended = calls(*words.split(), "--json")

    assert (ended.code, ended.stdout) == (3, "")
    assert "lacks tables (OperationalError: no such table: " in ended.stderr
    assert "alembic upgrade head; if no revision has them yet, first alembic revision --autogenerate" in ended.stderr


def test_old_tables_and_refused_rows_are_told(postgresql_office: Engine, calls: Calls) -> None:
    """A table of another release is 3, a job that rows of the app's refer to is answered, with 1."""
    add_jobs(postgresql_office, {"status": "done"})
    with postgresql_office.begin() as connection:
        connection.execute(text("CREATE TABLE note (job_id BIGINT REFERENCES job)"))
        connection.execute(text("INSERT INTO note VALUES (1)"))

    refused = calls("jobs", "delete", "1", "--yes")
    with postgresql_office.begin() as connection:
        connection.execute(text("ALTER TABLE job DROP COLUMN refunds"))
    old = calls("jobs", "show", "1")

    assert refused.code == 1
    assert "job 1 is done, and is not deleted: rows of yours refer to it" in refused.stdout
    assert old.code == 3
    assert "are of another release (UndefinedColumn: " in old.stderr
    assert "sqla-jobs doctor names what differs" in old.stderr


@pytest.mark.usefixtures("sqlite_office")
def test_reader_that_has_had_enough_ends_it_quietly() -> None:
    """`sqla-jobs … | head -1` gives no error; 141, as of any program whose pipe is closed."""
    command = [sys.executable, "-m", "sqla_jobs", "jobs", "list"]

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
        code = process.wait()

    assert (code, told) == (141, "")


def test_fault_of_ours_is_one_that_can_be_reported(
    sqlite_office: Engine, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody has foreseen ends with 70 and a traceback, without its secrets."""
    (tmp_path / "odd_office.py").write_text(
        "from tests.cli.office import make_worker as make\n"
        "worker = make()\n"
        "worker.new_connector = lambda: 'ftp://ann:hush@files' / 0\n"
    )
    monkeypatch.chdir(tmp_path)
    add_jobs(sqlite_office, {})

    ended = calls("-a", "odd_office:worker", "jobs", "list")

    assert (ended.code, ended.stdout) == (70, "")
    assert ended.stderr.startswith("Error: a fault of sqla_jobs; please report it:\nTraceback")
    assert ended.stderr.strip().endswith("TypeError: unsupported operand type(s) for /: 'str' and 'int'")
    assert "hush" not in ended.stderr
