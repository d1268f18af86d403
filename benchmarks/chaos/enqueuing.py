"""Transactions that enqueue: with business rows, with and without keys, in savepoints, committed or rolled back."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from benchmarks.chaos.app import KINDS
from benchmarks.chaos.tables import Entry, Job, Purchase
from sqla_jobs import Enqueued, Handler, enqueue, enqueue_many
from sqla_jobs.rules.failure import reason

log = logging.getLogger("chaos")

KEYS = 150
"""So few that most are taken again soon, in another transaction or in this one."""

PACE = 0.1
"""Seconds between two transactions of one enqueuer, on average."""

LARGEST_BACKLOG = 40
"""Due jobs from which on enqueuers wait. Enough for all slots; and a job that comes back is taken up soon, while the
worker that has lost it may still be at it."""

VOID = ":void"
"""Ends the token of jobs whose savepoint was rolled back."""

BACKLOG = text("""
SELECT count(*) FROM (SELECT 1 FROM job WHERE status = 'ready' AND run_at <= statement_timestamp() LIMIT :most) AS due
""")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some jobs that are enqueued in one way; all in one statement if they are *together*."""

    way: Literal["plain", "together", "kept savepoint", "undone savepoint"]
    handlers: Sequence[Handler[Job, ..., ..., Any]]


class Enqueuer:
    """Enqueues until it is asked to stop, and says what it knows: `committed <batch> <entries>`, `undone <batch>`."""

    def __init__(self, say: Callable[[str], None], stopping: threading.Event, draw: random.Random) -> None:
        self._say = say
        self._stopping = stopping
        self._draw = draw

    def run(self, engine: Engine) -> None:
        """Enqueue by sessions."""
        for batch in self._batches():
            try:
                with Session(engine) as session:
                    self._wait_behind(session)
                    entries = self._store(session, batch)
                    if self._is_kept():
                        session.commit()
                        self._say(f"committed {batch} {entries}")
                    else:
                        session.rollback()
                        self._say(f"undone {batch}")
            except Exception as error:  # noqa: BLE001  # drivers raise what they like when a server goes away
                # Whether it was committed may be anybody's guess; its entries tell.
                log.info("a transaction failed: %s", reason(error))
                self._wait_for(0.3)

    def run_async(self, engine: AsyncEngine) -> None:
        """Enqueue by async sessions."""
        asyncio.run(self._run_async(engine))

    async def _run_async(self, engine: AsyncEngine) -> None:
        for batch in self._batches():
            try:
                async with AsyncSession(engine) as session:
                    await session.run_sync(self._wait_behind)
                    entries = await self._store_async(session, batch)
                    if self._is_kept():
                        await session.commit()
                        self._say(f"committed {batch} {entries}")
                    else:
                        await session.rollback()
                        self._say(f"undone {batch}")
            except Exception as error:  # noqa: BLE001  # as above
                log.info("a transaction failed: %s", reason(error))
                await asyncio.sleep(0.3)
        await engine.dispose()

    def _batches(self) -> Iterator[str]:
        while not self._stopping.is_set():
            yield secrets.token_hex(8)
            self._wait_for(self._draw.expovariate(1 / PACE))

    def _wait_for(self, seconds: float) -> None:
        self._stopping.wait(min(seconds, 1.0))

    def _wait_behind(self, session: Session) -> None:
        """Wait a little where many jobs are due."""
        due = session.execute(BACKLOG, {"most": LARGEST_BACKLOG}).scalar_one()
        session.rollback()
        if due == LARGEST_BACKLOG:
            self._wait_for(0.5)

    def _is_kept(self) -> bool:
        return self._draw.random() > 0.12

    def _store(self, session: Session, batch: str) -> int:
        session.add(Purchase(batch=batch))
        entries = 0
        for piece in self._pieces():
            if piece.way == "undone savepoint":
                savepoint = session.begin_nested()
                self._enqueue(session, piece, batch, batch + VOID)
                savepoint.rollback()
                continue
            if piece.way == "kept savepoint":
                with session.begin_nested():
                    self._enqueue(session, piece, batch, batch)
            else:
                self._enqueue(session, piece, batch, batch)
            entries += len(piece.handlers)
        return entries

    def _enqueue(self, session: Session, piece: Piece, batch: str, token: str) -> None:
        stored: Sequence[Job | Enqueued]
        if piece.way == "together":
            stored = enqueue_many(session, [handler.job(token=token) for handler in piece.handlers])
        else:
            stored = [enqueue(session, handler, token=token) for handler in piece.handlers]
        session.add_all(_entries(stored, batch))

    async def _store_async(self, session: AsyncSession, batch: str) -> int:
        """Do the same in fewer ways."""
        session.add(Purchase(batch=batch))
        entries = 0
        for piece in self._pieces():
            stored: Sequence[Job | Enqueued]
            if piece.way == "together":
                stored = await enqueue_many(session, [handler.job(token=batch) for handler in piece.handlers])
            else:
                stored = [await enqueue(session, handler, token=batch) for handler in piece.handlers]
            session.add_all(_entries(stored, batch))
            entries += len(piece.handlers)
        return entries

    def _pieces(self) -> list[Piece]:
        """Draw a transaction's jobs. Keys come in order: nobody meets a deadlock for them."""
        draw = self._draw
        ways: list[Any] = draw.choices(
            ["plain", "together", "kept savepoint", "undone savepoint"], [6, 1, 1, 1], k=draw.choice([1, 1, 2, 3])
        )
        sizes = [draw.randint(2, 6) if way == "together" else 1 for way in ways]
        keys = iter(sorted(f"key {draw.randrange(KEYS)}" for _ in range(sum(sizes))))
        return [
            Piece(way, [self._handler(next(keys)) for _ in range(size)]) for way, size in zip(ways, sizes, strict=True)
        ]

    def _handler(self, key: str) -> Handler[Job, ..., ..., Any]:
        kind = self._draw.choices(KINDS, _WEIGHTS)[0]
        options: dict[str, Any] = {}
        if self._draw.random() < 0.3:
            options["key"] = key
        if self._draw.random() < 0.2:
            options["delay"] = timedelta(seconds=2 * self._draw.random())
        return kind.handler.using(**options)


_WEIGHTS = [kind.weight for kind in KINDS]


def _entries(stored: Sequence[Job | Enqueued], batch: str) -> list[Entry]:
    return [Entry(batch=batch, job_id=each.id, is_duplicate=each.is_duplicate) for each in stored]
