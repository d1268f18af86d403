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
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Integer, String, cast, create_engine, event, insert, literal, select, text
from sqlalchemy.orm import DeclarativeBase, Session

from sqla_jobs import (
    ArchivedJobMixin,
    Backoff,
    JobFilter,
    JobMixin,
    Jobs,
    Retention,
    ScheduleMixin,
    count_jobs,
    failure_groups,
    find_jobs,
    stats,
)
from sqla_jobs.operations import leases
from sqla_jobs.rules.settlement import Released, decide
from sqla_jobs.runtime.archiver import Archiver
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.schema.constructs import db_now, later
from tests.engines import build_engine
from tests.servers import PostgresServer

ROUNDS = 21

SPELLS, CLAIMS = 10, 100

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


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "operating_archived_job"


FULL = Jobs(Job, schedule=Schedule, archive=ArchivedJob)
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


def measure_lists(engine: Engine, *, plans: bool) -> None:
    dead = JobFilter(status=["failed", "dead"])
    one_type = JobFilter(status=["failed", "dead"], type="type7", error="place_order")

    def asked(operation: Callable[..., object], *arguments: object) -> Callable[[Jobs[Any]], object]:
        def ask(jobs: Jobs[Any]) -> object:
            with Session(engine) as session:
                return operation(session, jobs, *arguments)

        return ask

    questions = {
        "a page of dead letters": asked(find_jobs, dead),
        "a page of dead letters of one type": asked(find_jobs, one_type),
        "a page of ready jobs": asked(find_jobs, JobFilter(status="ready")),
        "count of dead letters": asked(count_jobs, dead),
        "groups of failures": asked(failure_groups),
    }
    for title, ask in questions.items():
        interleaved(title, ask)
    if plans:
        with explained(engine) as found:
            questions["a page of dead letters"](FULL)
        for sql, plan in found:
            print(f"\n{sql}\n\n{plan}")


def measure_archiver(engine: Engine) -> None:
    """Claim ten and give them back, again and again: with an archiver beside it in every other spell."""
    connector = Connector.of_app(engine, Opening(engine))
    demand = leases.Demand(FULL.handlers.names, None)
    times: dict[bool, list[float]] = {False: [], True: []}
    moved = 0

    def claim_and_release(session: Session) -> float:
        began = time.perf_counter()
        claimed = leases.claim(session, FULL.table, demand, limit=10, locked_by="w", lease=timedelta(minutes=1))
        took = time.perf_counter() - began
        released = [decide(lease, Released(), backoff=Backoff(), draw=0.0) for lease in claimed]
        leases.settle(session, FULL.table, released)
        return took

    for spell in range(2 * SPELLS):
        is_archiving = spell % 2 == 1
        archiver = Archiver(FULL, Connector.of_app(engine, Opening(engine)), Retention(done=timedelta(0)))
        stop = threading.Event()

        def archive(archiver: Archiver = archiver, stop: threading.Event = stop) -> None:
            nonlocal moved
            for batch in archiver.one_pass():
                moved += batch.changed
                if stop.is_set():
                    return

        beside = threading.Thread(target=archive)
        if is_archiving:
            beside.start()
        times[is_archiving] += [connector.run(claim_and_release) for _ in range(CLAIMS)]
        stop.set()
        if is_archiving:
            beside.join()
    for is_archiving, taken in times.items():
        beside_it = "beside an archiver that never rests" if is_archiving else "alone"
        middle, late = statistics.median(taken) * 1000, statistics.quantiles(taken, n=20)[-1] * 1000
        print(f"claim of ten, {beside_it}: median {middle:.2f} ms, p95 {late:.2f} ms")
    print(f"archived meanwhile: {moved}")


def run(engine: Engine, rows: int, *, plans: bool) -> None:
    """Fill, and put each question."""
    fill_all(engine, rows)
    print(f"{rows} done (in one of two tables), {rows // 10} later, {rows // 100} dead rows")
    measure_stats(engine, plans=plans)
    measure_lists(engine, plans=plans)
    measure_archiver(engine)


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
