"""Processes by fork from one that has imported the app: an interpreter that starts anew takes a second of its CPU.

`python -m tests.crash.nursery` is that one. It has no threads, no engine and no connection. For each message on its
socket it forks a child that runs `tests.crash.program`, and it tells of its children when they stop and when they end,
for only a parent hears of that. It ends with the process at the other end of the socket.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]

PATIENCE: Final = 60.0
"""Seconds until somebody who waits for the nursery fails."""

IMPORTED: Final = (
    *("tests.crash.app", "tests.crash.archivers", "tests.crash.program", "tests.crash.schedulers"),
    *("sqlalchemy.ext.asyncio", "pydantic"),
    *("sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite.aiosqlite", "psycopg", "aiosqlite"),
)


class Child:
    """A process that was forked for us, with the methods of `subprocess.Popen` that we need."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin: IO[str] | None = os.fdopen(stdin, "w")
        self.stdout: IO[str] | None = os.fdopen(stdout)
        self._code: int | None = None
        self._has_ended, self._stands = threading.Event(), threading.Event()

    def hear(self, code: int, status: int) -> None:
        """Take note of what its parent has heard."""
        if code == os.CLD_STOPPED:
            self._stands.set()
        else:
            self._code = status if code == os.CLD_EXITED else -status
            self._has_ended.set()

    def poll(self) -> int | None:
        """Give its exit code if it has ended."""
        return self._code

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end and give its exit code."""
        self._has_ended.wait(timeout)
        assert self._code is not None, f"process {self.pid} has not ended"
        return self._code

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):  # it has ended, and nobody has told us yet
            if self._code is None:
                os.kill(self.pid, sig)

    def freeze(self) -> None:
        """Stop it by SIGSTOP, and come back when it stands still."""
        self._stands.clear()
        self.send_signal(signal.SIGSTOP)
        self.wait_until_frozen()

    def wait_until_frozen(self) -> None:
        """Wait until it stands still, whoever stops it; it has not been stopped before."""
        assert self._stands.wait(PATIENCE), f"process {self.pid} does not stand still"


class Nursery:
    """Starts processes, from any thread."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.crash.nursery"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        theirs.close()
        self._lock = threading.Lock()
        self._unborn: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._born: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._hear, daemon=True)
        self._reader.start()
        atexit.register(self.close)

    def start(self, argument: str) -> Child:
        """Have a child forked that runs the program with this argument."""
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        with self._lock:
            self._unborn.put((in_write, out_read))
            socket.send_fds(self._socket, [argument.encode()], [in_read, out_write])
            child = self._born.get(timeout=PATIENCE)
        os.close(in_read)
        os.close(out_write)
        return child

    def close(self) -> None:
        """End the one that forks; its children end with their stdin."""
        self._socket.shutdown(socket.SHUT_WR)
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._socket.close()

    def _hear(self) -> None:
        children: dict[int, Child] = {}
        while message := self._socket.recv(1024):
            pid, code, status = json.loads(message)
            if code is None:
                children[pid] = Child(pid, *self._unborn.get())
                self._born.put(children[pid])
            elif pid in children:
                children[pid].hear(code, status)


def main() -> None:
    """Fork a child for each message, and tell of them."""
    control = socket.socket(fileno=0)
    for name in IMPORTED:
        importlib.import_module(name)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, nothing)
    while True:
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if control.fileno() in ready:
            argument, pipes, _, _ = socket.recv_fds(control, 65_536, 2)
            if not argument:
                return
            if not (pid := os.fork()):
                become(argument.decode(), pipes, [control.detach(), woken, wakes])
                return
            for pipe in pipes:
                os.close(pipe)
            control.send(json.dumps([pid, None, None]).encode())
        if woken in ready:
            os.read(woken, 1024)
            for told in deaths():
                control.send(json.dumps(told).encode())


def nothing(_number: int, _frame: object) -> None:
    """Be a handler, so that the signal wakes the loop."""


def become(argument: str, pipes: list[int], others: list[int]) -> None:
    """In a child: be the process that the argument says."""
    from tests.crash import program

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for other in others[1:]:
        os.close(other)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    sys.argv[1:] = [argument]
    program.main()


def deaths() -> list[tuple[int, int, int]]:
    """Give what has become of children since the last look."""
    told: list[tuple[int, int, int]] = []
    try:
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOHANG)) is not None:
            told.append((found.si_pid, found.si_code, found.si_status))
    except ChildProcessError:
        return told
    return told


if __name__ == "__main__":
    main()
