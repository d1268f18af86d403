"""PgQueuer drains no-op jobs; to be run by a Python that has it. It imports nothing of ours.

    PYTHON -m benchmarks.peer_pgqueuer --url postgresql://… --jobs N

On asyncpg and uvloop, its fastest, with its tables as durable as it makes them. The database must be empty. Prints its
rate, by the database's times: from the first claim to the last success. It deletes jobs that are done, and logs them.
"""

from __future__ import annotations

import argparse
import importlib
import json
from datetime import timedelta
from importlib.metadata import version
from typing import Any

# By their names: type checkers run where they are not.
asyncpg: Any = importlib.import_module("asyncpg")
pgqueuer: Any = importlib.import_module("pgqueuer")
pgqueuer_types: Any = importlib.import_module("pgqueuer.types")
uvloop: Any = importlib.import_module("uvloop")

BATCH = 1000

ENQUEUED = 10_000

TIMES = """
SELECT count(*) FILTER (WHERE status = 'successful'),
       CAST(extract(epoch FROM max(created) FILTER (WHERE status = 'successful')
                               - min(created) FILTER (WHERE status = 'picked')) AS float)
FROM pgqueuer_log
"""


async def noop(job: object) -> None: ...


async def drain(url: str, jobs: int, batch: int) -> tuple[int, float]:
    connection = await asyncpg.connect(url)
    queries = pgqueuer.Queries(pgqueuer.AsyncpgDriver(connection))
    await queries.install()
    for begin in range(0, jobs, ENQUEUED):
        count = min(ENQUEUED, jobs - begin)
        await queries.enqueue(["noop"] * count, [None] * count, [0] * count)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    manager = pgqueuer.QueueManager(queries)
    manager.entrypoint("noop")(noop)
    await manager.run(
        batch_size=batch,
        mode=pgqueuer_types.QueueExecutionMode.drain,
        dequeue_timeout=timedelta(seconds=1),
        log_aggregation_interval=timedelta(0),
    )
    reading = await asyncpg.connect(url)
    done, seconds = await reading.fetchrow(TIMES)
    await reading.close()
    return done, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--batch", type=int, default=BATCH)
    arguments = parser.parse_args()
    done, seconds = uvloop.run(drain(arguments.url, arguments.jobs, arguments.batch))
    assert done == arguments.jobs, f"{done} of {arguments.jobs} jobs are done"
    settings = {"batch": arguments.batch, "version": version("pgqueuer")}
    print(json.dumps({"rate": done / seconds, "settings": settings}))


if __name__ == "__main__":
    main()
