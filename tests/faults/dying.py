"""Processes that do the work of `tests.faults.failing` and are killed at a failpoint.

`python -m tests.faults.dying URL` forks one for each place on stdin: to start Python for each would take seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.crash.processes import ROOT
from tests.faults.failing import Scene
from tests.runtime.app import PATIENCE


class Killer:
    """A process that forks others, which do the same work and are killed at a place."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.dying", url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def run(self, place: str) -> bool:
        """Do the work, and give whether that ended by SIGKILL."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{place}\n")
        self._process.stdin.flush()
        return self._answer() == str(-signal.SIGKILL)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def main(url: str) -> None:
    """Do the work once, so that all is compiled; then once for each place on stdin, in a fork that dies there."""
    scene = Scene(url)
    scene.run({})
    scene.close()
    say("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            die(scene, line.strip())
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def die(scene: Scene, place: str) -> None:
    """Do the work, and die at *place*."""
    signal.alarm(2 * int(PATIENCE))
    try:
        scene.run({place: "kill"})
    finally:
        os._exit(0)


def say(what: object) -> None:
    """Answer."""
    print(what, flush=True)  # noqa: T201  # the test reads it


if __name__ == "__main__":
    main(sys.argv[1])
