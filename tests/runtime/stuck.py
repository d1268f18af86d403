"""A program whose worker has one slot, and one handler that never ends."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta

from tests.engines import build_engine
from tests.runtime.app import App


def main(url: str) -> None:
    app = App(build_engine(url))

    @app.jobs.handler(timeout=timedelta(milliseconds=100))
    def stuck() -> None:
        threading.Event().wait()

    app.add(stuck)
    app.worker(concurrency=1).run()


if __name__ == "__main__":
    main(sys.argv[1])
