"""Sessions that enqueue at once: threads of a process, each a job a transaction.

    python -m benchmarks.enqueuers KIND --url postgresql+psycopg://…

KIND is `loud` (each commit carries a NOTIFY) or `quiet`. Asked `enqueue N` on stdin, each thread enqueues N jobs; the
answer is when the first began and when the last had committed.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.observing import answer
from benchmarks.tables import ship, ship_quietly
from sqla_jobs import enqueue

THREADS: Final = 8

HANDLERS: Final = {"loud": ship, "quiet": ship_quietly}


def run(url: str, kind: str) -> None:
    sessions: sessionmaker[Session] = sessionmaker(create_engine(url, pool_size=THREADS))
    handler = HANDLERS[kind]

    def enqueue_all(count: int) -> None:
        for number in range(count):
            with sessions.begin() as session:
                enqueue(session, handler, order_id=number)

    def asked(count: float) -> tuple[float, float]:
        began = time.monotonic()
        list(threads.map(enqueue_all, [int(count)] * THREADS))
        return began, time.monotonic()

    with ThreadPoolExecutor(THREADS) as threads:
        answer({"enqueue": asked})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=HANDLERS)
    parser.add_argument("--url", required=True)
    arguments = parser.parse_args()
    run(arguments.url, arguments.kind)


if __name__ == "__main__":
    main()
