"""What happens at three in the morning: streams that are closed, a database that goes away, an app that is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.architecture.sources import ROOT
from tests.cli.calls import Calls, add_jobs, statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine


def shell(words: str) -> subprocess.CompletedProcess[str]:
    """Have the shell run the program with these words."""
    command = f"exec {sys.executable} -m sqla_jobs {words}"
    # Buffered as by default, whatever the machine that runs the tests has set.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )


def test_closed_streams_hinder_nobody(sqlite_office: Engine) -> None:
    """Whoever calls it with all streams closed has its work done, and nothing is written into the database's file."""
    (job_id,) = add_jobs(sqlite_office, {"status": "dead"})

    asked = shell(f"jobs requeue {job_id} <&- 2>&1 >&-")
    done = shell(f"jobs requeue {job_id} --yes <&- >&- 2>&-")

    assert (asked.returncode, asked.stdout[:23]) == (2, "Error: Requeue 1 job (1")
    assert done.returncode == 0
    assert statuses(sqlite_office) == {job_id: "ready"}


def test_answer_that_can_not_be_written_is_told(sqlite_office: Engine) -> None:
    """A full disk under stdout is no trouble of the database's: 1, and one line that says so."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no full device")
    add_jobs(sqlite_office, {})

    ended = shell("jobs list >/dev/full")

    assert ended.returncode == 1
    assert ended.stderr == "Error: the answer can't be written: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300", "0", "-1", "soon"])
def test_pause_that_is_none_is_refused(seconds: str, sqlite_office: Engine, calls: Calls) -> None:
    """A view that is looked at now and then has a pause between a tenth of a second and a day."""
    ended = calls("status", "--watch", "--", seconds)

    assert (ended.code, ended.stdout) == (2, "")
    assert "SECONDS" in ended.stderr


@pytest.mark.parametrize("depth", [400, 900, 5000])
def test_json_that_is_nested_deep_breaks_nothing(depth: int, sqlite_office: Engine, calls: Calls) -> None:
    """What is nested too deep to be written is said to be so, and the rest of the job is shown."""
    (job_id,) = add_jobs(sqlite_office, {"idempotency_key": "k"})
    with sqlite_office.begin() as connection:
        connection.execute(text("UPDATE job SET payload = :deep"), {"deep": "[" * depth + "]" * depth})

    shown, document = calls("jobs", "show", f"{job_id}"), calls("jobs", "show", f"{job_id}", "--json")

    assert (shown.code, document.code) == (0, 0)
    assert "nested too deep" in shown.stdout or depth == 5000
    assert (document.document["payload"], document.document["idempotency_key"]) == (None, "k")


def test_database_that_goes_away_in_the_middle_is_told(postgresql_office: Engine, calls: Calls) -> None:
    """The text says how far the work came for sure; what was done stays done."""
    ids = add_jobs(postgresql_office, *[{"status": "dead"}] * 501)
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = :name"

    with Session(postgresql_office) as other:
        other.execute(text(f"SELECT id FROM job WHERE id = {ids[-1]} FOR UPDATE"))
        with calls.terminal("jobs", "requeue", *map(str, ids), "--yes") as terminal:
            terminal.read_until("500/501")
            while not other.execute(text(kill), {"name": postgresql_office.url.database}).all():
                pass  # it is about to wait for the row
            told = terminal.read_all()
            assert terminal.process.wait() == 3

    assert "stopped: 500 jobs requeued before that, perhaps the next batch, too: look, and run it again" in told
    assert "does not serve us: AdminShutdown: terminating connection" in told
    assert sorted(statuses(postgresql_office).values()) == ["dead"] + ["ready"] * 500


def test_database_that_takes_no_changes_is_told(office_engine: Engine, calls: Calls) -> None:
    """On a standby, and with a file that may not be written, looks work, and moves end with 3 and the reason."""
    (job_id,) = add_jobs(office_engine, {"status": "dead"})
    environment = {"PGOPTIONS": "-c default_transaction_read_only=on"}
    if office_engine.dialect.name == "sqlite":
        environment = {"DATABASE_URL": f"sqlite:///file:{office_engine.url.database}?mode=ro&uri=true"}

    looked = calls("jobs", "list", "--json", **environment)
    moved = calls("jobs", "requeue", f"{job_id}", "--yes", **environment)

    assert (looked.code, [job["id"] for job in looked.document["jobs"]]) == (0, [job_id])
    assert (moved.code, moved.stdout) == (3, "")
    assert "takes no changes: " in moved.stderr
    assert "Is it a standby, or a file that you may not write?" in moved.stderr


def test_value_that_the_database_can_not_hold_is_the_callers(postgresql_office: Engine, calls: Calls) -> None:
    """A number that is too large for its column ends with 2: the database is well."""
    add_jobs(postgresql_office, {"order_id": 7})

    ended = calls("jobs", "list", "--column", "order_id=99999999999")

    assert (ended.code, ended.stdout) == (2, "")
    assert "refuses a value: NumericValueOutOfRange: integer out of range" in ended.stderr


def test_app_that_is_broken_is_no_trouble_of_the_database(
    sqlite_office: Engine, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping that SQLAlchemy can't work with ends with 2, and is named; so does SQL that it can't write."""
    (tmp_path / "broken_office.py").write_text(
        "from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker\n"
        "from sqla_jobs import JobMixin, Jobs, Worker\n"
        "from tests.cli.office import make_engine\n"
        "from sqlalchemy.sql.expression import FunctionElement\n"
        "class Base(DeclarativeBase): ...\n"
        "class Job(JobMixin, Base):\n"
        "    __tablename__ = 'job'\n"
        "    other: Mapped[object] = relationship('Nowhere')\n"
        "jobs = Jobs(Job)\n"
        "@jobs.handler\n"
        "def report(): ...\n"
        "worker = Worker(jobs, sessionmaker(make_engine()))\n"
        "class Plain(DeclarativeBase): ...\n"
        "class Task(JobMixin, Plain):\n"
        "    __tablename__ = 'job'\n"
        "class no_such_function(FunctionElement):\n"
        "    inherit_cache = True\n"
        "clockless = Worker(Jobs(Task, now=no_such_function()), sessionmaker(make_engine()))\n"
    )
    monkeypatch.chdir(tmp_path)

    unmapped = calls("-a", "broken_office:worker", "enqueue", "report")
    unwritten = calls("-a", "broken_office:clockless", "jobs", "list")
    watched = calls("-a", "broken_office:clockless", "status", "--watch")

    for ended, says in (
        (unmapped, "InvalidRequestError: When initializing mapper Mapper[Job(job)], expression 'Nowhere' failed to"),
        (unwritten, "UnsupportedCompilationError: "),
        (watched, "UnsupportedCompilationError: "),
    ):
        assert (ended.code, ended.stdout) == (2, "")
        assert f"SQLAlchemy can't work with the app's models, or with its engine: {says}" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert "Traceback" in calls("-a", "broken_office:clockless", "jobs", "list", "--traceback").stderr
    assert statuses(sqlite_office) == {}
