"""EXPLAIN of the hot statements over a table full of rows that a claim must not look at.

    python -m benchmarks.plans [--url postgresql+psycopg://…] [--rows 1000000] [--plans]

Prints, for each statement, its time and the pages that it touched: first on a table with due and running rows only,
then with *rows* finished ones, and a tenth of that later-due, of an unknown type in the same queue, and in another
queue. With `--plans` also the plans. It starts a PostgreSQL of its own unless given a URL.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.base import Executable

from sqla_jobs import JobMixin, Jobs
from sqla_jobs.schema import statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import as_rows, capabilities
from tests.servers import PostgresServer


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "plan_job"


JOBS = Jobs(Job).table

INSERT = """
INSERT INTO plan_job (type, queue, status, run_at, created_at, finished_at, locked_by, locked_until, claims, attempts)
SELECT :type, :queue, CAST(:status AS text), now() + :due * interval '1 second' + n * interval '1 microsecond', now(),
       CASE WHEN CAST(:status AS text) = 'done' THEN now() END,
       CASE WHEN CAST(:status AS text) = 'running' THEN 'w' END,
       CASE WHEN CAST(:status AS text) = 'running' THEN now() + :lease * interval '1 second' END,
       CASE WHEN CAST(:status AS text) = 'running' THEN 1 ELSE 0 END, 0
FROM generate_series(1, :rows) AS n
"""


def fill(connection: Connection, rows: int, **columns: Any) -> None:
    row = {"type": "known", "queue": "served", "status": "ready", "due": -60, "lease": 60, "rows": rows}
    connection.execute(text(INSERT), row | columns)


def statements_to_explain(connection: Connection) -> Iterator[tuple[str, Executable, dict[str, Any]]]:
    can = capabilities(connection.dialect)
    demand = {"types": ["known", "other"], "queues": ["served"]}
    running = connection.execute(text("SELECT id FROM plan_job WHERE status = 'running' ORDER BY id LIMIT 100"))
    fences = [{"id": id_, "claims": 1, "locked_by": "w"} for id_ in running.scalars()]
    ends = {"status": "done", "delay": None, "attempts": 1, "refunds": 0, "error": None, "errors": None, "result": None}
    claim = demand | {"limit": 100, "locked_by": "w", "lease": 60.0}
    yield "claim 100", statements.claim(JOBS, can, every_queue=False), claim
    yield "claim 1", statements.claim(JOBS, can, every_queue=False), claim | {"limit": 1}
    yield "claim 100, all queues", statements.claim(JOBS, can, every_queue=True), claim
    yield "next due", statements.next_due(JOBS, every_queue=False), demand
    yield "heartbeat 100", statements.renew(JOBS, can), {"rows": as_rows(fences), "lease": 60.0}
    yield "settle 100", statements.settle(JOBS, can), {"rows": as_rows([row | ends | {"expired": 0} for row in fences])}
    yield "settle 1", statements.settle(JOBS, can), {"rows": as_rows([fences[0] | ends | {"expired": 0}])}
    yield "reap", statements.expired(JOBS), {"limit": 100}
    yield "strays", statements.strays(JOBS, can), {"locked_by": "nobody", "rows": "[]"}


def explain(connection: Connection, statement: Executable, parameters: dict[str, Any]) -> str:
    """Give the plan of a statement that is run and rolled back."""
    with connection.begin_nested() as savepoint:
        connection.execute(statement, said(parameters), execution_options={"explain": True})
        savepoint.rollback()
    return str(connection.info.pop("plan"))


def explaining(engine: Engine) -> Engine:
    """Explain what is executed with the option `explain`, before it is run as it is."""

    @event.listens_for(engine, "before_cursor_execute")
    def put(connection: Any, cursor: Any, *call: Any) -> None:
        sql, parameters, context, _ = call
        if context is not None and context.execution_options.get("explain"):
            cursor.execute("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) " + sql, parameters)
            connection.info["plan"] = "\n".join(line for (line,) in cursor.fetchall())

    return engine


def measure(connection: Connection, title: str, *, plans: bool) -> None:
    """Print time and touched pages of each statement, the middle one of five runs."""
    print(f"\n== {title}")
    for name, statement, parameters in statements_to_explain(connection):
        runs = [explain(connection, statement, parameters) for _ in range(5)]
        times = [float(re.findall(r"Execution Time: ([\d.]+)", run)[0]) for run in runs]
        pages = [sum(map(int, re.findall(r"(?:hit|read)=(\d+)", run.split("\n")[1]))) for run in runs]
        scans = sorted(set(re.findall(r"(Seq Scan|Bitmap Heap Scan|Index (?:Only )?Scan using \w+)", runs[-1])))
        print(f"{name:22} {statistics.median(times):9.3f} ms {statistics.median(pages):7.0f} pages  {', '.join(scans)}")
        if plans:
            print(runs[-1])


def run(engine: Engine, rows: int, *, plans: bool) -> None:
    """Fill and measure, step by step."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with engine.connect() as connection, connection.begin():
        fill(connection, 1000)
        fill(connection, 300, status="running", lease=600)
        fill(connection, 20, status="running", lease=-5)
        connection.execute(text("ANALYZE plan_job"))
        measure(connection, "due and running rows only", plans=False)
        fill(connection, rows, status="done")
        fill(connection, rows // 10, due=86400)
        fill(connection, rows // 10, type="unknown", due=-3600)
        fill(connection, rows // 10, queue="not served", due=-3600)
        measure(connection, f"with {rows} done and {rows // 10} of each other kind, statistics stale", plans=False)
        connection.execute(text("ANALYZE plan_job"))
        measure(connection, "the same, analyzed", plans=plans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--plans", action="store_true")
    arguments = parser.parse_args()
    if arguments.url:
        run(explaining(create_engine(arguments.url)), arguments.rows, plans=arguments.plans)
        return
    with PostgresServer() as server:
        run(explaining(create_engine(server.url)), arguments.rows, plans=arguments.plans)


if __name__ == "__main__":
    main()
