"""Processes of our own that answer questions: a line of JSON for each line that they are asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[1]

END_SECONDS: Final = 60.0
"""How long a program may take to end when it is asked nothing more."""


class Observed:
    """A process that runs *module* until it is closed."""

    def __init__(self, module: str, *arguments: str, python: str = sys.executable) -> None:
        self._said = f"{module} {' '.join(arguments)}"
        self._process = subprocess.Popen(  # noqa: S603  # our own programs
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=ROOT,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, question: str, *numbers: float) -> None:
        """Ask without waiting for the answer, which `hear` gives."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question} {' '.join(map(str, numbers))}\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Wait for the answer to the oldest question that has none yet."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._said} ended with {self._process.wait(END_SECONDS)} and no answer; see stderr")
        return json.loads(line)

    def ask(self, question: str, *numbers: float) -> Any:
        """Ask, and wait for the answer."""
        self.tell(question, *numbers)
        return self.hear()

    def close(self) -> None:
        """Have it end; kill it if it doesn't."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_SECONDS)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def several(count: int, module: str, *arguments: str) -> Generator[list[Observed]]:
    """Run some of one kind at once."""
    with ExitStack() as stack:
        yield [stack.enter_context(Observed(module, *arguments)) for _ in range(count)]


def answer(answers: dict[str, Callable[..., Any]]) -> None:
    """Answer the questions on stdin, by name, until it is closed."""
    for line in sys.stdin:
        question, *numbers = line.split()
        found = answers[question](*map(float, numbers))
        print(json.dumps(found), flush=True)
