"""Runs the programs of `examples/` as their readers do: in a process of their own, from the root of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from tests.architecture.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Generator

LONGEST: Final = 60.0
"""Seconds after which a program that has not ended is killed; each takes one or two."""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )


@contextmanager
def started(*arguments: str, **environment: str) -> Generator[subprocess.Popen[str]]:
    """Start Python with these arguments. Killed at the end, and after `LONGEST`: its output then ends."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=_environment(environment), stdout=subprocess.PIPE, text=True
    ) as program:
        killer = threading.Timer(LONGEST, program.kill)
        killer.start()
        try:
            yield program
        finally:
            killer.cancel()
            program.kill()


def read_until(output: IO[str] | None, words: str) -> str:
    """Read lines until one has *words* in it; fail with what was said if none has."""
    assert output is not None
    said: list[str] = []
    for line in output:
        said.append(line)
        if words in line:
            return line
    raise AssertionError(f"{words!r} was never said; this was:\n{''.join(said)}")


def _environment(environment: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | environment
