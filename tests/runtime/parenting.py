"""A program whose worker was made before a fork, whose handler ends a child, and that is stopped while a thread works.

It says what it finds. The last job waits in a thread that nobody can end, so it is the worker that ends the process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from datetime import timedelta

from tests.engines import build_engine
from tests.runtime.app import LONG, App

GRACE = timedelta(milliseconds=100)


def main(url: str) -> None:
    app = App(build_engine(url))

    @app.jobs.handler
    def rear() -> None:
        say(f"child: {end_child()}")

    @app.jobs.handler
    async def dwell() -> None:
        say("worker: goes on")
        await asyncio.to_thread(stop_us_and_stay)

    worker = app.worker(concurrency=1, grace=GRACE, lease=LONG)
    say_names(app)
    for handler in (rear, dwell):
        app.add(handler)
    worker.run()
    say("run: has returned")
    os._exit(7)


def stop_us_and_stay() -> None:
    """Tell the worker to stop, and never come back."""
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()


def say_names(app: App) -> None:
    """Start a worker that was made here in two children, and have each say its name."""
    made_here = app.worker(queues=["none"])
    say(f"name: {made_here.name}")
    for _ in range(2):
        child = os.fork()
        if child == 0:
            with made_here:
                say(f"name: {made_here.name}")
            os._exit(0)
        os.waitpid(child, 0)


def end_child() -> int | None:
    """Fork a child, end it by SIGTERM, and give how it ended; one that outlives that ends with 0."""
    ready, go_on = os.pipe(), os.pipe()

    def live() -> None:
        os.write(ready[1], b"r")
        os.read(go_on[0], 1)

    child = multiprocessing.get_context("fork").Process(target=live)
    child.start()
    os.read(ready[0], 1)
    child.terminate()
    os.write(go_on[1], b"g")
    child.join()
    return child.exitcode


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # whole, and nothing is left in a buffer for a child to say again


if __name__ == "__main__":
    main(sys.argv[1])
