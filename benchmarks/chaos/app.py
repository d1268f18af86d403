"""The app under test: its handlers, how the jobs of each kind have to end, and its schedules."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import psycopg
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from benchmarks.chaos.tables import ArchivedJob, Effect, Entry, Job, OutsideRun, Schedule, Taken
from sqla_jobs import Backoff, GiveUp, Handler, Jobs, Retry, Snooze, current_job, enqueue

LEASE = 2.0

LONG = 1.4 * LEASE
"""Seconds of the handlers that outlast the lease of their claim."""

OFTEN = 25
"""Attempts of handlers that get there in the end, whatever happens to their workers meanwhile."""

jobs = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="chaos")

SOON = Backoff(base=timedelta(milliseconds=100), cap=timedelta(milliseconds=500))

outside: dict[str, Engine] = {}
"""Under "engine", this process's way to the table that stands for another system."""


class Broken(Exception):
    """What the handlers that fail raise."""


def _effect(session: Session | AsyncSession) -> None:
    session.add(Effect(job_id=current_job().id, attempt=current_job().attempt, pid=os.getpid()))


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def write(session: Session, token: str) -> None:
    _effect(session)


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
async def write_async(session: AsyncSession, token: str) -> str:
    _effect(session)
    return token


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def dawdle(session: Session, token: str) -> None:
    """Take some time before and after writing: when a fault comes, many of these run."""
    time.sleep(random.uniform(0, 0.8))
    _effect(session)
    session.flush()
    time.sleep(random.uniform(0, 0.8))


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
async def dawdle_async(session: AsyncSession, token: str) -> None:
    await asyncio.sleep(random.uniform(0, 0.8))
    _effect(session)
    await session.flush()
    await asyncio.sleep(random.uniform(0, 0.8))


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def write_late(session: Session, token: str) -> None:
    """Write when the lease of the claim would be over."""
    time.sleep(LONG)
    _effect(session)


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def hold(session: Session, token: str) -> None:
    """Write, and hold the transaction open for longer than a lease."""
    _effect(session)
    session.flush()
    time.sleep(LONG)


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
async def hold_async(session: AsyncSession, token: str) -> None:
    _effect(session)
    await session.flush()
    await asyncio.sleep(LONG)


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def flaky(session: Session, token: str) -> None:
    """Write, and fail now and then."""
    _effect(session)
    session.flush()
    if random.random() < 0.4:
        raise Broken("now and then")


@jobs.handler(backoff=SOON, max_attempts=3)
def hopeless(session: Session, token: str) -> None:
    _effect(session)
    session.flush()
    raise Broken("always")


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def give_up(session: Session, token: str) -> None:
    _effect(session)
    session.flush()
    raise GiveUp("there is no use")


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def snooze(session: Session, token: str) -> None:
    _effect(session)
    if random.random() < 0.5:
        raise Snooze(delay=timedelta(seconds=random.random()))


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
async def retry(session: AsyncSession, token: str) -> None:
    _effect(session)
    await session.flush()
    if current_job().attempt == 1:
        raise Retry("once more", delay=timedelta(seconds=random.random()))


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def nest(session: Session, token: str) -> None:
    """Write in savepoints: in one that is kept, and in one that fails."""
    with session.begin_nested():
        _effect(session)
    with contextlib.suppress(IntegrityError), session.begin_nested():
        _effect(session)
        session.add(Taken(id=1))


@jobs.handler(backoff=SOON, max_attempts=2)
def swallow(session: Session, token: str) -> None:
    """Go on after an error that has spoiled the transaction: the attempt has failed all the same."""
    _effect(session)
    session.add(Taken(id=1))
    with contextlib.suppress(IntegrityError):
        session.flush()


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def annotate(session: Session, token: str) -> None:
    """Write to the job's own row as well."""
    current_job().load(session).note = "annotated"
    _effect(session)


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def chain(session: Session, token: str) -> None:
    """Enqueue another job along with the effect."""
    _effect(session)
    child = enqueue(session, write, token=token)
    session.add(Entry(job_id=child.id, is_duplicate=child.is_duplicate, parent=current_job().id))


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def hog(session: Session, token: str) -> None:
    """Take most of the pool's connections for a while."""
    engine = session.get_bind()
    assert isinstance(engine, Engine)
    taken: list[Any] = []
    try:
        for _ in range(4):
            taken.append(engine.connect())  # noqa: PERF401  # those that it has are to be closed
        time.sleep(1.5)
    finally:
        for connection in taken:
            connection.close()
    _effect(session)


@jobs.handler(backoff=SOON, max_attempts=2, timeout=timedelta(seconds=0.4))
async def hang(session: AsyncSession, token: str) -> None:
    _effect(session)
    await session.flush()
    await asyncio.Event().wait()


@jobs.handler(backoff=SOON, max_attempts=2, timeout=timedelta(seconds=0.4))
def overrun(session: Session, token: str) -> None:
    """Write too late: its row has been settled without it, but in a process that was frozen meanwhile."""
    _effect(session)
    time.sleep(1.0)


@jobs.handler(backoff=SOON, max_attempts=2)
def vanish(session: Session, token: str) -> None:
    """Take the whole process away."""
    _effect(session)
    session.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def call(token: str) -> str:
    """Write to another system."""
    with Session(outside["engine"]) as session, session.begin():
        session.add(OutsideRun(job_id=current_job().id, attempt=current_job().attempt))
    return token


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def call_long(token: str) -> None:
    with Session(outside["engine"]) as session, session.begin():
        session.add(OutsideRun(job_id=current_job().id, attempt=current_job().attempt))
    time.sleep(LONG)


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
async def call_async(token: str) -> None:
    url = make_url(outside["engine"].url).set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        job = current_job()
        await connection.execute("INSERT INTO outside_run (job_id, attempt) VALUES (%s, %s)", (job.id, job.attempt))


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def call_flaky(token: str) -> None:
    call(token)
    if random.random() < 0.4:
        raise Broken("after the call")


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def nap(session: Session) -> None:
    """Be unfinished when the next slot comes, now and then."""
    _effect(session)
    session.flush()
    time.sleep(random.random())


@jobs.handler(backoff=SOON, max_attempts=OFTEN)
def beat(session: Session) -> None:
    """Leave one effect for a slot."""
    _effect(session)


# --- how they end ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """The jobs of one handler.

    :ivar weight: how often they are enqueued
    :ivar ends: how they may end, unless somebody cancels them
    :ivar has_session: one effect if done, else none; without: at least one outside run if done
    """

    handler: Handler[Job, ..., ..., Any]
    weight: float
    ends: tuple[Literal["done", "failed", "dead"], ...] = ("done",)
    has_session: bool = True

    @property
    def name(self) -> str:
        return self.handler.name


KINDS = (
    Kind(write, 20),
    Kind(write_async, 10),
    Kind(dawdle, 20),
    Kind(dawdle_async, 12),
    Kind(write_late, 1),
    Kind(hold, 1),
    Kind(hold_async, 1),
    Kind(flaky, 8),
    Kind(hopeless, 3, ("dead",)),
    Kind(give_up, 3, ("failed",)),
    Kind(snooze, 5),
    Kind(retry, 4),
    Kind(nest, 4),
    Kind(swallow, 2, ("dead",)),
    Kind(annotate, 5),
    Kind(chain, 5),
    Kind(hog, 0.2),
    Kind(hang, 0.7, ("dead",)),
    Kind(overrun, 0.3, ("dead", "done")),
    Kind(vanish, 0, ("dead",)),
    Kind(call, 10, has_session=False),
    Kind(call_long, 1, has_session=False),
    Kind(call_async, 5, has_session=False),
    Kind(call_flaky, 4, has_session=False),
    Kind(beat, 0),
    Kind(nap, 0),
)


# --- schedules --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recurring:
    """A schedule.

    :ivar step: seconds between its slots
    :ivar leaves_out: slots may get no job, and are counted instead
    """

    name: str
    step: int
    leaves_out: bool = False


EACH_SECOND = Recurring("each second", 1)

TOGGLED = "toggled"
"""The schedule that people pause, resume and edit: of its slots only those that fired are known."""

RECURRING = (
    EACH_SECOND,
    Recurring("minutely", 60),
    Recurring("latest", 1, leaves_out=True),
    Recurring("no overlap", 2, leaves_out=True),
)

_AT_ONCE = timedelta(0)

jobs.schedule("each second", beat, cron="* * * * * *", offset=_AT_ONCE, catch_up="all", catch_up_limit=10_000)
jobs.schedule("minutely", beat, cron="* * * * *", offset=_AT_ONCE, catch_up="all")
jobs.schedule("latest", beat, cron="* * * * * *", offset=_AT_ONCE, catch_up="latest")


def schedule_rows() -> list[Schedule]:
    """Make the schedules that are no part of the code."""
    return [
        Schedule(name="no overlap", job_type="nap", cron="* * * * * */2", offset=_AT_ONCE, overlap="skip"),
        Schedule(name=TOGGLED, job_type="beat", cron="* * * * * *", offset=_AT_ONCE),
    ]
