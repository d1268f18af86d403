"""SIGTERM and SIGINT: the first asks to stop, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_STOPPING = (signal.SIGTERM, signal.SIGINT)

_STOP = 0
"""A byte that is the number of no signal."""

_entered: set[Signals] = set()


def _leave_to_parent() -> None:
    """In a child of a fork, such as a handler's `multiprocessing.Pool`: what ends the child must not stop the parent.

    The handlers and the wake-up pipe are inherited, and the pipe leads to the parent.
    """
    for signals in [*_entered]:
        signals.reset()


os.register_at_fork(after_in_child=_leave_to_parent)


class Signals:
    """Handles signals while it is entered, in the main thread; elsewhere it only waits for `stop`.

    A pipe, and not an Event: a signal handler may run while its own thread holds the Event's lock. Python writes the
    signal's number to it at once, whichever thread it hits: the handler itself runs only when the main thread does.
    """

    def __init__(self) -> None:
        self._received = 0
        self._former: dict[int, Any] = {}
        self._former_wakeup = -1
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            for number in _STOPPING:
                self._former[number] = signal.signal(number, self._receive)
            _entered.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reset()
        os.close(self._reader)
        os.close(self._writer)

    def reset(self) -> None:
        """Handle signals no more: as they were handled before."""
        _entered.discard(self)
        for number, former in self._former.items():
            signal.signal(number, signal.SIG_DFL if former is None else former)  # None: it was set from C
        if self._former:
            signal.set_wakeup_fd(self._former_wakeup)
        self._former = {}

    def wait(self) -> None:
        """Wait for a signal, or for `stop`."""
        # Signals that the app handles are written, too.
        while not {_STOP, *_STOPPING} & {*os.read(self._reader, 512)}:
            pass

    def stop(self) -> None:
        """End the wait, from any thread."""
        with contextlib.suppress(BlockingIOError):  # full: the wait is over as it is
            os.write(self._writer, bytes([_STOP]))

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received += 1
        if self._received > 1:
            # At once: no flush, no release. The leases run out, and a reaper gives the jobs back.
            os._exit(128 + number)
        self.stop()
