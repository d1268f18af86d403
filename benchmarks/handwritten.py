"""Loops that do a worker's work by hand, on `raw_job`: what PostgreSQL, psycopg and SQLAlchemy can do at best.

They claim, run and complete, and promise nothing else: no heartbeat, no retry, no answer to any error. Each ends when
nothing is due. `raw` and `raw_session` are psycopg alone; `orm_session` and `orm_async` are SQLAlchemy sessions.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from sqlalchemy import BigInteger, Integer, any_, bindparam, create_engine, func, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.bench import dsn_of
from benchmarks.tables import NOTE, Note, RawJob

BATCH: Final = 100

THREADS: Final = 10

LOCKED_BY: Final = f"hand:{os.getpid()}"

CLAIM: Final = """
WITH taken AS MATERIALIZED (
    SELECT id FROM raw_job
    WHERE status = 'ready' AND queue = 'default' AND type = %s AND run_at <= statement_timestamp()
    ORDER BY run_at, id LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE raw_job
SET status = 'running', attempts = attempts + 1, claims = claims + 1, locked_by = %s,
    locked_until = statement_timestamp() + interval '60 seconds', started_at = statement_timestamp()
WHERE id = ANY (ARRAY(SELECT id FROM taken))
RETURNING id, claims, payload::text
"""
"""By an array: joined to `taken`, the planner reads all of a table that is as small as this one."""

COMPLETE: Final = """
UPDATE raw_job
SET status = 'done', locked_until = NULL, finished_at = statement_timestamp()
FROM unnest(%s::bigint[], %s::int[]) AS held (id, claims)
WHERE raw_job.id = held.id AND raw_job.status || '' = 'running' AND raw_job.claims = held.claims AND locked_by = %s
"""
"""With a status that hides the index of running rows: by that, each of a hundred is compared to each."""

COMPLETE_ONE: Final = """
UPDATE raw_job SET status = 'done', locked_until = NULL, finished_at = statement_timestamp()
WHERE id = %s AND status = 'running' AND claims = %s AND locked_by = %s
"""

COMPLETE_WITH_NOTE: Final = """
WITH completed AS (
    UPDATE raw_job SET status = 'done', locked_until = NULL, finished_at = statement_timestamp()
    WHERE id = %s AND status = 'running' AND claims = %s AND locked_by = %s
    RETURNING id
)
INSERT INTO bench_note (job_id, text) SELECT id, %s FROM completed
"""

WRITE_NOTE: Final = "INSERT INTO bench_note (job_id, text) VALUES (%s, %s)"

Claimed = tuple[int, int]
"""Id and claims."""

Gate = Callable[[], None]
"""To be called when all is ready: it returns when the measurement begins."""


def claimed_by(connection: psycopg.Connection[Any], type_: str) -> list[Claimed]:
    """Claim a batch in one statement that is its own transaction."""
    rows = connection.execute(CLAIM, (type_, LOCKED_BY), prepare=True).fetchall()
    return [(row[0], row[1]) for row in rows]


def raw(url: str, gate: Gate) -> None:
    """Claim a hundred, complete a hundred: one thread, two statements and two commits a batch."""
    with psycopg.connect(dsn_of(url), autocommit=True) as connection:
        gate()
        while batch := claimed_by(connection, "noop"):
            ids, claims = zip(*batch, strict=True)
            connection.execute(COMPLETE, (list(ids), list(claims), LOCKED_BY), prepare=True)


# --- one row written for each job -------------------------------------------------------------------------------------


def raw_session(url: str, gate: Gate) -> None:
    """Ten threads, each job a transaction of one INSERT and one UPDATE, as a handler and its completion are.

    Statement by statement: in psycopg's pipeline mode the same takes Python a quarter longer.
    """

    def work(jobs: queue.Queue[Claimed | None]) -> None:
        with psycopg.connect(dsn_of(url)) as connection:
            while (job := jobs.get()) is not None:
                connection.execute(WRITE_NOTE, (job[0], NOTE), prepare=True)
                connection.execute(COMPLETE_ONE, (*job, LOCKED_BY), prepare=True)
                connection.commit()

    with psycopg.connect(dsn_of(url), autocommit=True) as connection:
        _in_threads(work, lambda: claimed_by(connection, "write_note"), gate)


def raw_session_at_once(url: str, gate: Gate) -> None:
    """The same in one statement, where nobody's handler could write what it likes: one round trip a job."""

    def work(jobs: queue.Queue[Claimed | None]) -> None:
        with psycopg.connect(dsn_of(url), autocommit=True) as connection:
            while (job := jobs.get()) is not None:
                connection.execute(COMPLETE_WITH_NOTE, (*job, LOCKED_BY, NOTE), prepare=True)

    with psycopg.connect(dsn_of(url), autocommit=True) as connection:
        _in_threads(work, lambda: claimed_by(connection, "write_note"), gate)


def orm_session(url: str, gate: Gate) -> None:
    """Ten threads, a SQLAlchemy session for each job: add, flush, complete behind the fence, commit."""
    engine = create_engine(url, pool_size=THREADS)
    sessions = sessionmaker(engine)

    def work(jobs: queue.Queue[Claimed | None]) -> None:
        while (job := jobs.get()) is not None:
            with sessions() as session:
                session.add(Note(job_id=job[0], text=NOTE))
                session.flush()
                _complete(session, job)
                session.commit()

    def claim() -> list[Claimed]:
        with engine.begin() as connection:
            return _claimed(connection.execute(ORM_CLAIM, _claim_of("write_note")).all())

    _in_threads(work, claim, gate)


def orm_async(url: str, gate: Gate) -> None:
    """One event loop, ten coroutines at once, an AsyncSession for each job."""
    asyncio.run(_orm_async(url, gate))


async def _orm_async(url: str, gate: Gate) -> None:
    engine = create_async_engine(url, pool_size=THREADS)
    sessions = async_sessionmaker(engine)
    jobs: asyncio.Queue[Claimed | None] = asyncio.Queue(BATCH)

    async def work() -> None:
        while (job := await jobs.get()) is not None:
            async with sessions() as session:
                session.add(Note(job_id=job[0], text=NOTE))
                await session.flush()
                await _complete_async(session, job)
                await session.commit()

    async def claim() -> list[Claimed]:
        async with engine.begin() as connection:
            found = await connection.execute(ORM_CLAIM, _claim_of("write_note_async"))
            return _claimed(found.all())

    gate()
    async with asyncio.TaskGroup() as group:
        for _ in range(THREADS):
            group.create_task(work())
        while batch := await claim():
            for job in batch:
                await jobs.put(job)
        for _ in range(THREADS):
            await jobs.put(None)
    await engine.dispose()


def _in_threads(
    work: Callable[[queue.Queue[Claimed | None]], None], claim: Callable[[], list[Claimed]], gate: Gate
) -> None:
    """Claim the next batch while the threads work at the last."""
    jobs: queue.Queue[Claimed | None] = queue.Queue(BATCH)
    threads = [threading.Thread(target=work, args=(jobs,), daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    gate()
    while batch := claim():
        for job in batch:
            jobs.put(job)
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join()


# --- SQLAlchemy Core, built once --------------------------------------------------------------------------------------


def _orm_claim() -> Any:
    table = RawJob.__table__
    c = table.c
    now: Any = func.statement_timestamp()
    taken = (
        select(c.id)
        .where(
            c.status == literal_column("'ready'"),
            c.queue == literal_column("'default'"),
            c.type == bindparam("of_type"),
            c.run_at <= now,
        )
        .order_by(c.run_at, c.id)
        .limit(literal_column(str(BATCH)))
        .with_for_update(skip_locked=True, key_share=True)
        .cte("taken")
        .prefix_with("MATERIALIZED")
    )
    return (
        update(RawJob.__table__)  # type: ignore[arg-type]
        .where(c.id == any_(func.array(select(taken.c.id).scalar_subquery())))
        .values(
            status=literal_column("'running'"),
            attempts=c.attempts + 1,
            claims=c.claims + 1,
            locked_by=LOCKED_BY,
            locked_until=now + literal_column("interval '60 seconds'"),
            started_at=now,
        )
        .returning(c.id, c.claims, c.payload)
    )


def _orm_complete() -> Any:
    c = RawJob.__table__.c
    return (
        update(RawJob.__table__)  # type: ignore[arg-type]
        .where(
            c.id == bindparam("held_id", type_=BigInteger()),
            c.status == literal_column("'running'"),
            c.claims == bindparam("held_claims", type_=Integer()),
            c.locked_by == bindparam("held_by"),
        )
        .values(status=literal_column("'done'"), locked_until=None, finished_at=func.statement_timestamp())
    )


ORM_CLAIM: Final = _orm_claim()

ORM_COMPLETE: Final = _orm_complete()


def _claim_of(type_: str) -> dict[str, Any]:
    return {"of_type": type_}


def _claimed(rows: Sequence[Any]) -> list[Claimed]:
    return [(row[0], row[1]) for row in rows]


def _held(job: Claimed) -> dict[str, Any]:
    return {"held_id": job[0], "held_claims": job[1], "held_by": LOCKED_BY}


def _complete(session: Session, job: Claimed) -> None:
    found: Any = session.execute(ORM_COMPLETE, _held(job))
    assert found.rowcount == 1


async def _complete_async(session: AsyncSession, job: Claimed) -> None:
    found: Any = await session.execute(ORM_COMPLETE, _held(job))
    assert found.rowcount == 1
