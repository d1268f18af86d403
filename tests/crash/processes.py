"""Processes of the app under test, and what they said, in one order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from tests.crash.nursery import Child, Nursery

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

ROOT: Final = Path(__file__).parents[2]

LONGEST: Final = 60.0
"""Seconds until a wait fails the test: long, since a busy machine is no fault."""


@dataclass(frozen=True, slots=True)
class Said:
    """One line of a process."""

    process: Process
    event: str
    facts: dict[str, Any]

    def is_about(self, event: str, **facts: Any) -> bool:
        """Whether it is such a line."""
        return self.event == event and all(self.facts.get(name) == value for name, value in facts.items())


@cache
def nursery() -> Nursery:
    """Give the one of this process."""
    return Nursery()


def start_program(options: dict[str, Any]) -> Child | subprocess.Popen[str]:
    """Start the program, in an interpreter of its own where it matters which process has imported the app, and when."""
    argument = json.dumps(options)
    if "clock" not in options and options.get("role") != "fork":
        return nursery().start(argument)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.program", argument],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


class Process:
    """One process of the app."""

    def __init__(self, crew: Crew, options: dict[str, Any]) -> None:
        self._crew = crew
        self._process = start_program(options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            facts: dict[str, Any] = json.loads(line)
            self._crew.hear(Said(self, facts.pop("event"), facts))

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def open_gate(self) -> None:
        """Let held handlers go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("o")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop it by SIGSTOP, and come back when it stands still; SIGCONT lets it go on."""
        if isinstance(self._process, Child):
            self._process.freeze()
            return
        self.signal(signal.SIGSTOP)
        self.wait_until_frozen()

    def wait_until_frozen(self) -> None:
        """Wait until it stands still, for the first time, be it by its own doing."""
        if isinstance(self._process, Child):
            self._process.wait_until_frozen()
        else:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """End it by SIGKILL, wherever it is."""
        self.signal(signal.SIGKILL)
        self.ended()

    def ended(self, within: float = LONGEST) -> int:
        """Wait for its end and give its exit code, all that it said having been heard."""
        self._reader.join(within)
        if self._reader.is_alive():
            self._crew.fail(f"process {self.pid} has not ended within {within} s")
        return self._process.wait(within)

    def stopped(self) -> int:
        """Send SIGTERM when it serves, wait for its end, and give its exit code."""
        self.expect_log("serves")
        self.signal(signal.SIGTERM)
        return self.ended()

    def expect(self, event: str, *, within: float = LONGEST, **facts: Any) -> Said:
        """Wait for a line of this process, a past one included."""
        return self._crew.wait(lambda said: said.process is self and said.is_about(event, **facts), within=within)[0]

    def expect_log(self, text: str) -> Said:
        """Wait for a log line of this process that has *text* in it."""
        return self._crew.wait(
            lambda said: said.process is self and said.event == "log" and text in said.facts["message"]
        )[0]

    def said(self, event: str, **facts: Any) -> list[Said]:
        """Give its lines of that kind so far."""
        return [said for said in self._crew.heard() if said.process is self and said.is_about(event, **facts)]

    def warnings(self, text: str) -> list[str]:
        """Give its warnings so far that have *text* in them."""
        messages = [str(said.facts["message"]) for said in self.said("log", level="WARNING")]
        return [message for message in messages if text in message]

    def abort(self) -> None:
        """End it, if it is alive, telling on stderr where each of its threads stood."""
        self._end_group(signal.SIGABRT, signal.SIGCONT)

    def close(self) -> None:
        """End it and what it forked, frozen or not, and let go of its pipes."""
        self._end_group(signal.SIGKILL)
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _end_group(self, *numbers: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ends by itself at this very moment
            for number in numbers:
                if self.is_alive:
                    os.killpg(self.pid, number)
        self._process.wait()


class Crew:
    """All processes of one test; leaving it ends them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: list[Said] = []
        self._processes: list[Process] = []

    def start(self, url: str, **options: Any) -> Process:
        """Start a process; the options are those of its role in `tests.crash.program`."""
        process = Process(self, {"url": url, **options})
        self._processes.append(process)
        return process

    def hear(self, said: Said) -> None:
        """Take note of a line."""
        with self._changed:
            self._lines.append(said)
            self._changed.notify_all()

    def heard(self) -> list[Said]:
        """Give all lines so far."""
        with self._changed:
            return list(self._lines)

    def wait(
        self, matches: Callable[[Said], bool], *, times: int = 1, since: int = 0, within: float = LONGEST
    ) -> list[Said]:
        """Wait for that many such lines, counted from line *since* on, and give them."""
        deadline, position = time.monotonic() + within, since
        found: list[Said] = []
        with self._changed:
            while len(found) < times:
                if position == len(self._lines) and not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
                found += [said for said in self._lines[position:] if matches(said)]
                position = len(self._lines)
        if len(found) < times:
            self.fail(f"heard {len(found)} of {times} such lines within {within} s")
        return found

    def fail(self, what: str) -> NoReturn:
        """Fail the test, telling what was said last."""
        alive = [process.pid for process in self._processes if process.is_alive]
        for process in self._processes:
            process.abort()
        last = "\n".join(f"{said.process.pid} {said.event} {said.facts}" for said in self.heard()[-40:])
        pytest.fail(f"{what}; alive: {alive}, their stacks are on stderr; the last lines:\n{last}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.close()
