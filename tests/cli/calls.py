"""Calls the command line: in this process, as a program of its own, and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.orm import Session
from typer.testing import CliRunner

from sqla_jobs.cli.program import program
from tests.architecture.sources import ROOT
from tests.cli import office
from tests.examples.programs import LONGEST, run

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest
    from sqlalchemy import Engine

_CODES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Ended:
    """How a call ended."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[str]:
        """The lines of stdout."""
        return self.stdout.splitlines()

    def __repr__(self) -> str:
        return f"ended with {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Calls:
    """Calls `sqla-jobs` on the database that was opened last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def opened(self, engine: Engine, app: str = "make_worker") -> Engine:
        """Make the office's tables, and have the calls go there."""
        office.Base.metadata.create_all(engine)
        self.go_to(engine.url.render_as_string(hide_password=False), app)
        return engine

    def go_to(self, url: str, app: str = "make_worker") -> None:
        """Have the calls go to this database, with this worker of the office's."""
        self._monkeypatch.setenv("DATABASE_URL", url)
        self._monkeypatch.setenv("SQLA_JOBS_APP", f"tests.cli.office:{app}")

    def __call__(self, *arguments: str, stdin: str | None = None, **environment: str) -> Ended:
        """Call it in this process."""
        result = CliRunner().invoke(program, arguments, input=stdin, env=environment, prog_name="sqla-jobs")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout, result.stderr)

    def program(self, *arguments: str, **environment: str) -> Ended:
        """Run `python -m sqla_jobs`."""
        kept = {name: os.environ[name] for name in ("DATABASE_URL", "SQLA_JOBS_APP") if name in os.environ}
        ended = run("-m", "sqla_jobs", *arguments, **(kept | environment))
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    @contextmanager
    def started(self, *arguments: str) -> Generator[subprocess.Popen[str]]:
        """Start `python -m sqla_jobs`; what it says to stderr comes on its stdout, too."""
        command = [sys.executable, "-m", "sqla_jobs", *arguments]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **streams) as process:
            killer = threading.Timer(LONGEST, process.kill)
            killer.start()
            try:
                yield process
            finally:
                killer.cancel()
                process.kill()

    @contextmanager
    def terminal(self, *arguments: str, columns: int = 100) -> Generator[Terminal]:
        """Start `python -m sqla_jobs` in a terminal of that width."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, columns))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "sqla_jobs", *arguments]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            killer = threading.Timer(LONGEST, process.kill)
            killer.start()
            try:
                yield Terminal(process, ours)
            finally:
                killer.cancel()
                process.kill()
                os.close(ours)


class Terminal:
    """A program in a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._shown = ""

    def read_until(self, words: str) -> str:
        """Read until *words* are shown, and give what was shown since the last call; fail at the program's end."""
        while words not in (plain := _CODES.sub("", self._shown)):
            if not (more := self._more()):
                raise AssertionError(f"{words!r} was never shown; this was:\n{plain}")
            self._shown += more
        shown, self._shown = plain[: plain.index(words) + len(words)], plain[plain.index(words) + len(words) :]
        return shown

    def read_all(self) -> str:
        """Read until the program ends."""
        while more := self._more():
            self._shown += more
        shown, self._shown = _CODES.sub("", self._shown), ""
        return shown

    def type(self, text: str) -> None:
        """Type at its keyboard."""
        os.write(self._master, text.encode())

    def _more(self) -> str:
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # Linux's way to say that the other end is closed
            return ""


def add_jobs(engine: Engine, *rows: dict[str, Any]) -> list[int]:
    """Store jobs of these columns, a `send` that is due unless they say otherwise; give their ids."""
    with Session(engine) as session, session.begin():
        stored = [office.Job(**({"type": "send", "queue": "mail", "payload": {"to": "ann"}} | row)) for row in rows]
        session.add_all(stored)
        session.flush()
        return [job.id for job in stored]


def statuses(engine: Engine) -> dict[int, str]:
    """Give the status of each job."""
    with Session(engine) as session:
        return {job.id: job.status for job in session.query(office.Job)}
