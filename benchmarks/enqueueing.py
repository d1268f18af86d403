"""What it costs to enqueue: in an app's transaction, and in bulk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psycopg
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.bench import Bench
from benchmarks.measuring import Figure, compare, rounds
from benchmarks.tables import Order, RawJob, ship
from sqla_jobs import enqueue, enqueue_many

WARM_UP: Final = 50

INSERT_ORDER: Final = "INSERT INTO bench_order (name) VALUES (%s) RETURNING id"

INSERT_JOB: Final = """
INSERT INTO raw_job (type, payload, queue, run_at, max_attempts, created_at)
VALUES ('ship', %s, 'default', statement_timestamp(), 5, statement_timestamp()) RETURNING id
"""

DRAW_IDS: Final = """
SELECT array_agg(nextval('raw_job_id_seq')), statement_timestamp()::text FROM generate_series(1, %s)
"""

COPY_JOBS: Final = "COPY raw_job (id, type, payload, run_at, created_at) FROM STDIN"
"""`queue` and `max_attempts` are the columns' defaults."""


def run(bench: Bench) -> list[Figure]:
    """One job and one row of the business in each transaction, one client, the wake-up hint on."""
    rows = bench.rows(2_000)
    sides = {"ours": enqueued, "mapped": added, "raw": inserted}
    found = rounds({name: _measured(bench, side, rows) for name, side in sides.items()}, bench.repeat)
    settings = {"transactions": rows, "clients": 1, "notify": True}
    limits = {
        "mapped": "the same transaction, with session.add() of an object mapped to a table like the jobs' for enqueue",
        "raw": "psycopg, the same two rows, statement by statement",
    }
    return [
        Figure(
            "enqueue" if name == "mapped" else "enqueue / psycopg",
            "transactions/s",
            found["ours"],
            found[name],
            settings=settings | {"raw": told},
        )
        for name, told in limits.items()
    ]


def _measured(bench: Bench, side: Callable[[Bench, int], float], rows: int) -> Callable[[], float]:
    def measure() -> float:
        bench.fresh()
        side(bench, WARM_UP)
        return rows / side(bench, rows)

    return measure


def enqueued(bench: Bench, rows: int) -> float:
    """Give the seconds for *rows* transactions of the library."""
    sessions = sessionmaker(bench.engine)
    began = time.perf_counter()
    for number in range(rows):
        with sessions() as session:
            order = Order(name=f"order {number}")
            session.add(order)
            session.flush()
            enqueue(session, ship, order_id=order.id)
            session.commit()
    return time.perf_counter() - began


def added(bench: Bench, rows: int) -> float:
    """The same with a second mapped object, which the commit flushes."""
    sessions = sessionmaker(bench.engine)
    began = time.perf_counter()
    for number in range(rows):
        with sessions() as session:
            order = Order(name=f"order {number}")
            session.add(order)
            session.flush()
            session.add(RawJob(type="ship", payload={"order_id": order.id}, queue="default", max_attempts=5))
            session.commit()
    return time.perf_counter() - began


def inserted(bench: Bench, rows: int) -> float:
    """The same by psycopg alone."""
    with psycopg.connect(bench.dsn) as connection:
        began = time.perf_counter()
        for number in range(rows):
            order: Any = connection.execute(INSERT_ORDER, (f"order {number}",), prepare=True).fetchone()
            connection.execute(INSERT_JOB, (f'{{"order_id": {order[0]}}}',), prepare=True).fetchone()
            connection.commit()
        return time.perf_counter() - began


# --- in bulk ----------------------------------------------------------------------------------------------------------


def run_bulk(bench: Bench) -> list[Figure]:
    """20,000 jobs in one transaction: arguments checked and ids returned, against COPY with ids drawn first."""
    rows = bench.rows(20_000)
    figure = compare(
        "enqueue-bulk",
        ours=_measured_bulk(bench, enqueued_in_bulk, rows),
        raw=_measured_bulk(bench, copied, rows),
        repeat=bench.repeat,
        unit="jobs/s",
        settings={"jobs": rows, "notify": True, "raw": "psycopg: ids drawn from the sequence, then COPY of tuples"},
    )
    return [figure]


def _measured_bulk(bench: Bench, side: Callable[[Bench, int], float], rows: int) -> Callable[[], float]:
    def measure() -> float:
        bench.fresh()
        side(bench, 10)
        bench.tidy()
        return rows / side(bench, rows)

    return measure


def enqueued_in_bulk(bench: Bench, rows: int) -> float:
    with Session(bench.engine) as session:
        began = time.perf_counter()
        stored = enqueue_many(session, [ship.job(order_id=number) for number in range(rows)])
        session.commit()
        seconds = time.perf_counter() - began
    assert len({job.id for job in stored}) == rows
    return seconds


def copied(bench: Bench, rows: int) -> float:
    with psycopg.connect(bench.dsn) as connection, connection.cursor() as cursor:
        began = time.perf_counter()
        drawn: Any = connection.execute(DRAW_IDS, (rows,), prepare=True, binary=True).fetchone()
        ids, now = drawn
        with cursor.copy(COPY_JOBS) as copy:
            for number, id_ in enumerate(ids):
                copy.write_row((id_, "ship", f'{{"order_id": {number}}}', now, now))
        connection.commit()
        seconds = time.perf_counter() - began
    assert len(ids) == rows
    return seconds
