"""Where handlers run: threads for sync ones, one event loop for async ones.

All are daemons: a stuck handler holds up no exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from sqla_jobs.runtime.holdings import Holding

log = logging.getLogger("sqla_jobs.worker")


class ThreadPool:
    """Threads that run jobs; each goes on with what *run* gives back, until that is None."""

    def __init__(self, size: int, run: Callable[[Holding], Holding | None]) -> None:
        self._run = run
        self._size = size
        self._queue: queue.SimpleQueue[Holding | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start the threads. Each job runs in a copy of the calling context: Flask keeps its app there."""
        context = contextvars.copy_context()
        for number in range(self._size):
            threading.Thread(
                target=self._work, args=(context,), name=f"sqla_jobs handler {number}", daemon=True
            ).start()

    def put(self, holding: Holding) -> None:
        """Run a job in the next free thread."""
        self._queue.put(holding)

    def stop(self) -> None:
        """End the threads, each after the job that it runs."""
        for _ in range(self._size):
            self._queue.put(None)

    def _work(self, context: contextvars.Context) -> None:
        while (holding := self._queue.get()) is not None:
            following: Holding | None = holding
            while following is not None:
                following = context.copy().run(self._run, following)


class LoopThread:
    """An event loop in a thread of its own, so that a handler that blocks it stops no heartbeat."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._context = contextvars.copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._main, name="sqla_jobs loop", daemon=True)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine on the loop, in a copy of the context that the worker was started in."""
        if threading.current_thread() is self._thread:
            self._create(work)  # no detour over the loop's own socket
        else:
            self._loop.call_soon_threadsafe(self._create, work)

    def _create(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(work(), context=self._context.copy())
        # The loop itself keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task from another thread."""
        self._loop.call_soon_threadsafe(task.cancel)

    def run(self, work: Coroutine[Any, Any, Any], seconds: float) -> None:
        """Run a coroutine on the loop and wait for it.

        :raises TimeoutError: it took longer; the loop may be blocked
        """
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(seconds)

    def stop(self, seconds: float) -> bool:
        """End the loop, and close it if nothing blocks it; give whether it has ended, with all its threads."""
        self._is_stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _main(self) -> None:
        while not self._is_stopping:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # asyncio lets these two out when a task that a handler has started raises them.
                log.warning("a task on the event loop raised %s; the loop goes on", type(error).__name__)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
