"""Processes of `benchmarks.workers`: started, let go together, and ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

LONGEST_STOP: Final = 60.0


class Program:
    """One process. It waits at its gate until `go`.

    :ivar pid: of the process itself
    """

    def __init__(self, kind: str, url: str) -> None:
        command = [sys.executable, "-m", "benchmarks.workers", kind, "--url", url]
        self.kind = kind
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
        )
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != "ready\n":
            raise RuntimeError(f"the {self.kind} program ended, or said {line!r}; see above")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    @property
    def has_failed(self) -> bool:
        return self._process.poll() not in {None, 0}

    def stop(self) -> None:
        """End it with SIGTERM if it still runs, and wait."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(LONGEST_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


@contextmanager
def programs(kind: str, url: str, count: int = 1) -> Generator[Sequence[Program]]:
    """Start *count* of a kind; all are ready when this gives them, and have ended when it is left."""
    started: list[Program] = []
    try:
        for _ in range(count):
            started.append(Program(kind, url))  # noqa: PERF401  # those before one that fails are stopped
        for program in started:
            program.wait_until_ready()
        yield started
    finally:
        for program in started:
            program.stop()
