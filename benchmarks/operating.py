"""What a person on call asks of a big table: figures, lists, and an archiver beside the claims.

    python -m benchmarks.operating [--url postgresql+psycopg://… | --sqlite] [--rows 1000000] [--plans]

Two tables hold the same due, running, later-due (a tenth of *rows*) and dead jobs (a hundredth); one has *rows* done
jobs besides, and the dead lie scattered among them. Each question is put to both in turn, and the medians are printed;
with `--plans` also what EXPLAIN says of its statements. It starts a PostgreSQL of its own unless told otherwise.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Integer, String, cast, create_engine, event, insert, literal, select, text
from sqlalchemy.orm import DeclarativeBase, Session

from sqla_jobs import JobMixin, Jobs, ScheduleMixin
from sqla_jobs.operations.stats import stats
from sqla_jobs.schema.dialects import db_now, later
from tests.engines import build_engine
from tests.servers import PostgresServer

ROUNDS = 21

TYPES, QUEUES = 20, 5

TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/app/shop/orders.py", line {line}, in place_order\n    total = price_of(order, currency="CHF")\n'
    for line in range(100, 110)
)


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "operating_job"


class LeanJob(JobMixin, Base):
    """The same without done rows."""

    __tablename__ = "operating_lean_job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "operating_schedule"


FULL = Jobs(Job, schedule=Schedule)
LEAN = Jobs(LeanJob, schedule=Schedule)


def work(order_id: int) -> None: ...


for registry in (FULL, LEAN):
    for number in range(TYPES - 1):  # one type stays unknown
        registry.handler(name=f"type{number}")(work)


# --- filling ----------------------------------------------------------------------------------------------------------


def fill(connection: Connection, model: type[Any], rows: int, *, begins: int, **columns: Any) -> None:
    """Insert rows of *columns*, a tenth of a second apart from *begins* seconds after now, of all types in turn."""
    first = select(literal(1, Integer()).label("n")).cte("number", recursive=True)
    number = first.union_all(select(first.c.n + 1).where(first.c.n < rows))
    at = later(db_now(), begins + number.c.n / 10.0)
    values: dict[str, Any] = {
        "type": literal("type").concat(cast(number.c.n % TYPES, String())),
        "queue": literal("queue").concat(cast(number.c.n % QUEUES, String())),
        "payload": text("""'{"order_id": 17, "currency": "CHF"}'"""),
        "run_at": at,
        "created_at": at,
    }
    # What a column is to hold: a value, or "at" for the row's time.
    values |= {name: at if value == "at" else literal(value) for name, value in columns.items()}
    connection.execute(insert(model.__table__).from_select(list(values), select(*values.values())))


def fill_all(engine: Engine, rows: int) -> None:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    day, steps = 86_400, 100
    ended = {"finished_at": "at", "started_at": "at", "attempts": 1, "claims": 1, "locked_by": "w"}
    with engine.begin() as connection:
        for model in (LeanJob, Job):
            for step in range(steps):
                begins = step * rows // steps // 10 - 7 * day
                if model is Job:
                    fill(connection, model, rows // steps, begins=begins, status="done", **ended)
                dead = {"status": "dead", "last_error": TRACEBACK} | ended | {"attempts": 5}
                fill(connection, model, rows // 100 // steps, begins=begins, **dead)
            fill(connection, model, 1000, begins=-60)
            fill(connection, model, 100, begins=-60, status="running", started_at="at", attempts=1, locked_by="w")
            fill(connection, model, rows // 20, begins=day)
            fill(connection, model, rows // 20, begins=day, type="type1", queue="queue1")
        connection.execute(insert(Schedule), [_schedule(number) for number in range(100)])
    tidied(engine)


def _schedule(number: int) -> dict[str, Any]:
    return {"name": f"schedule {number}", "job_type": "type1", "cron": "* * * * *"}


def tidied(engine: Engine) -> None:
    """Do what autovacuum would have done."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE" if engine.dialect.name == "sqlite" else "VACUUM ANALYZE"))


# --- measuring --------------------------------------------------------------------------------------------------------


def interleaved(title: str, ask: Callable[[Jobs[Any]], object]) -> None:
    """Put a question to the two tables in turn, and print the middle one of its times."""
    times: dict[Jobs[Any], list[float]] = {LEAN: [], FULL: []}
    for _ in range(ROUNDS):
        for jobs, taken in times.items():
            began = time.perf_counter()
            ask(jobs)
            taken.append(1000 * (time.perf_counter() - began))
    lean, full = (statistics.median(taken) for taken in times.values())
    print(f"{title:40} {lean:8.1f} ms without done rows {full:8.1f} ms with  (longest {max(times[FULL]):.1f} ms)")


@contextmanager
def explained(engine: Engine) -> Generator[list[tuple[str, str]]]:
    """Collect what is executed meanwhile, with its plan."""
    prefix = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "
    found: list[tuple[str, str]] = []

    def put(connection: Any, cursor: Any, sql: str, parameters: Any, *rest: Any) -> None:
        cursor.execute(prefix + sql, parameters)
        found.append((sql, "\n".join(str(row[-1]) for row in cursor.fetchall())))

    event.listen(engine, "before_cursor_execute", put)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", put)


def measure_stats(engine: Engine, *, plans: bool) -> None:
    def ask(jobs: Jobs[Any], **options: Any) -> object:
        with Session(engine) as session:
            return stats(session, jobs, **options)

    interleaved("stats", ask)
    interleaved("stats, cap=1000", lambda jobs: ask(jobs, cap=1000))
    if plans:
        with explained(engine) as found:
            ask(FULL)
        for sql, plan in found:
            print(f"\n{sql}\n\n{plan}")


def run(engine: Engine, rows: int, *, plans: bool) -> None:
    """Fill, and put each question."""
    fill_all(engine, rows)
    print(f"{rows} done (in one of two tables), {rows // 10} later, {rows // 100} dead rows")
    measure_stats(engine, plans=plans)
    # More questions belong here: a page of `find_jobs`, and claims with and without an archiver beside them.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--plans", action="store_true")
    arguments = parser.parse_args()
    if arguments.sqlite:
        with tempfile.TemporaryDirectory() as folder:
            run(build_engine(f"sqlite:///{Path(folder) / 'jobs.sqlite'}"), arguments.rows, plans=arguments.plans)
    elif arguments.url:
        run(create_engine(arguments.url), arguments.rows, plans=arguments.plans)
    else:
        with PostgresServer() as server:
            run(create_engine(server.url), arguments.rows, plans=arguments.plans)


if __name__ == "__main__":
    main()
