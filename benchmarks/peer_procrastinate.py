"""Procrastinate drains no-op jobs; to be run by a Python that has it. It imports nothing of ours.

    PYTHON -m benchmarks.peer_procrastinate --url postgresql://… --jobs N

An async worker, which is its fastest, with as many jobs at once and connections as helped here. The database must be
empty. Prints its rate, by the database's times: from the first start to the last success.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
from importlib.metadata import version
from typing import Any

import psycopg

# By its name: type checkers run where it is not.
procrastinate: Any = importlib.import_module("procrastinate")

CONCURRENCY = 10

POOL = 12

BATCH = 1000

TIMES = """
SELECT count(*) FILTER (WHERE type = 'succeeded'),
       CAST(extract(epoch FROM max(at) FILTER (WHERE type = 'succeeded')
                               - min(at) FILTER (WHERE type = 'started')) AS float)
FROM procrastinate_events
"""


async def noop() -> None: ...


async def drain(url: str, jobs: int, concurrency: int, pool: int) -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=pool, max_size=pool))
    registered = app.task(name="noop")(noop)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for begin in range(0, jobs, BATCH):
            await registered.batch_defer_async(*({} for _ in range(min(BATCH, jobs - begin))))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
        await app.run_worker_async(concurrency=concurrency, wait=False, install_signal_handlers=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY)
    parser.add_argument("--pool", type=int, default=POOL)
    arguments = parser.parse_args()
    logging.getLogger("procrastinate").setLevel(logging.ERROR)  # it warns of an App in the main module
    asyncio.run(drain(arguments.url, arguments.jobs, arguments.concurrency, arguments.pool))
    with psycopg.connect(arguments.url) as connection:
        [(done, seconds)] = connection.execute(TIMES).fetchall()
    assert done == arguments.jobs, f"{done} of {arguments.jobs} jobs are done"
    settings = {"concurrency": arguments.concurrency, "pool": arguments.pool, "version": version("procrastinate")}
    print(json.dumps({"rate": done / seconds, "settings": settings}))


if __name__ == "__main__":
    main()
