"""The processes of the app: posts that are always manned, until the run is over."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from pathlib import Path
from typing import Any

from benchmarks.chaos import program

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([program.__name__])

HOLDUP = 30.0
"""Seconds that a process may take to end when it is asked to."""

READING = threading.Lock()
"""To be held by who starts a process or asks how one has ended: `multiprocessing` then reads the exit codes of all, and
of two threads that read one at once, the second is told 255."""

START = 120.0
"""Seconds that all may take to start, on a machine that has other things to do."""


class Process:
    """One process.

    :ivar is_serving: it has said so
    :ivar may_end: the exit codes that are no surprise; to be killed never is one
    """

    def __init__(self, post: Post) -> None:
        self.is_serving = threading.Event()
        self.is_frozen = False
        self.is_leaving = False
        self.has_ended = threading.Event()
        self.may_end = {-signal.SIGKILL}
        self._post = post
        self._connection, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=program.main, args=(theirs, post.log, post.role, post.options))
        with READING:
            self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._name = Name(self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it has not ended."""
        self._name.signal(number)

    def ask_to_stop(self) -> None:
        """Ask an enqueuer."""
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send_bytes(b"stop")

    def wait(self) -> int:
        """Hear what it says until it ends, and give its exit code. To be called by one thread."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                line = self._connection.recv_bytes().decode()
                if line == "serves":
                    self.is_serving.set()
                    self._post.has_served.set()
                else:
                    self._post.crew.hear(line)
        multiprocessing.connection.wait([self._process.sentinel])
        with READING:
            code = self._process.exitcode
        self._name.close()
        self._connection.close()
        self.has_ended.set()
        assert code is not None
        return code


class Name:
    """Names a process for good, where the system can: its number may be another's when it has ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        self._is_closed = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if there is no such process any more."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._is_closed:
                return
            if self._descriptor is None:
                os.kill(self._pid, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Let go of it."""
        with self._lock:
            self._is_closed = True
            if self._descriptor is not None:
                os.close(self._descriptor)


class Post:
    """A place for one process; when it ends, the next takes it."""

    def __init__(self, crew: Crew, name: str, role: str, options: dict[str, Any]) -> None:
        self.name = name
        self.role = role
        self.process: Process | None = None
        self.is_closing = False
        self.starts = 0
        self.has_served = threading.Event()
        self.crew = crew
        self.options = options
        self.log = crew.folder / f"{name}.log"
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._man, name=name, daemon=True)
        self.thread.start()

    @property
    def serving(self) -> Process | None:
        """Its process, if that is up, not frozen and not about to end."""
        process = self.process
        if process is None or not process.is_serving.is_set() or process.is_frozen or process.is_leaving:
            return None
        return process

    def close(self) -> Process | None:
        """Start no other process; give the one that is there."""
        with self._lock:
            self.is_closing = True
            return self.process

    def _man(self) -> None:
        while True:
            with self._lock:
                if self.is_closing:
                    return
                process = self.process = Process(self)
                self.starts += 1
            code = process.wait()
            if code not in process.may_end:
                self.crew.surprised(self, process, code)
            self.process = None


class Crew:
    """All processes of the app. Leaving it ends them, frozen or not.

    :ivar surprises: processes that have ended though nobody had asked for it
    :ivar known: the transactions whose end is known: how many entries each has committed; None: rolled back
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.surprises: list[str] = []
        self.known: dict[str, int | None] = {}
        self.workers: list[Post] = []
        self.enqueuers: list[Post] = []

    def start(self, url: str, *, workers: int, enqueuers: int) -> None:
        """Man all posts."""
        self.workers += [Post(self, f"worker{n}", "worker", {"url": url}) for n in range(workers)]
        options = {"url": url, "threads": 2}
        self.enqueuers += [Post(self, f"enqueuer{n}", "enqueuer", options) for n in range(enqueuers)]

    def wait_until_serving(self) -> None:
        """Wait until each post has a process that serves."""
        for post in (*self.workers, *self.enqueuers):
            if not post.has_served.wait(START):
                raise RuntimeError(f"{post.name} does not serve: see {self.folder}")

    def hear(self, line: str) -> None:
        """Take note of what an enqueuer says."""
        match line.split():
            case ["committed", batch, entries]:
                self.known[batch] = int(entries)
            case ["undone", batch]:
                self.known[batch] = None
            case _:
                self.surprises.append(f"a process said {line!r}")

    def surprised(self, post: Post, process: Process, code: int) -> None:
        """Take note of an end that nobody had asked for."""
        last = post.log.read_text(errors="replace").splitlines()[-15:]
        self.surprises.append(f"{post.name}, process {process.pid}, ended with {code}:\n" + "\n".join(last))

    def stop_enqueuers(self) -> None:
        """Have them end what they are at, and wait for it."""
        for post in self.enqueuers:
            if (process := post.close()) is not None and not process.is_serving.is_set():
                process.signal(signal.SIGKILL)  # it is only just starting
            elif process is not None:
                process.may_end.add(0)
                process.ask_to_stop()
                threading.Thread(target=self._see_off, args=(process,), daemon=True).start()
        for post in self.enqueuers:
            post.thread.join()

    def stop(self, process: Process) -> None:
        """Ask a worker to drain; that it does will be seen when the next has its post."""
        process.is_leaving = True
        process.may_end.add(0)
        if not process.is_serving.is_set():
            process.may_end.add(-signal.SIGTERM)  # it has no handler for the signal yet
        process.signal(signal.SIGTERM)
        threading.Thread(target=self._see_off, args=(process,), daemon=True).start()

    def _see_off(self, process: Process) -> None:
        if not process.has_ended.wait(HOLDUP):
            self.surprises.append(f"process {process.pid} has not ended within {HOLDUP} s of SIGTERM")
            process.signal(signal.SIGABRT)  # the stacks of its threads are in its log
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGKILL)

    def stop_workers(self) -> None:
        """Ask all to drain, and wait until they have."""
        for post in self.workers:
            if (process := post.close()) is not None and not process.is_leaving:
                self.stop(process)
        for post in self.workers:
            post.thread.join()

    def close(self) -> None:
        """End whatever is left."""
        for post in (*self.workers, *self.enqueuers):
            if (process := post.close()) is not None:
                process.signal(signal.SIGKILL)
        for post in (*self.workers, *self.enqueuers):
            post.thread.join()
