"""The app whose workers are killed, frozen, and cut off: its models, its handlers, and what these say while they run.

Handlers speak in lines of JSON on stdout, so that a test waits for `{"event": "started", "job": 17}`, not for time.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import threading
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Engine, Integer, create_engine, event, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs import Backoff, JobMixin, Jobs, current_job
from tests.engines import build_engine

SOON: Final = Backoff(base=timedelta(milliseconds=100), cap=timedelta(milliseconds=100))


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class Effect(Base):
    """What a handler wrote through its session, and in which attempt: each job's has to stand exactly once."""

    __tablename__ = "effect"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger, index=True)
    attempt: Mapped[int] = mapped_column(Integer)
    pid: Mapped[int] = mapped_column(Integer)
    backend: Mapped[int | None] = mapped_column(Integer)


class Note(Base):
    """A table of the app's own that jobs have nothing to do with."""

    __tablename__ = "note"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)


jobs = Jobs(Job)

LEAVING: Final[dict[str, type[BaseException]]] = {
    error.__name__: error for error in (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
}

GATE: Final = threading.Event()
"""What the handlers called `hold…` wait for; see `program`."""


class Broken(Exception):
    """What the handlers that fail raise."""


def say(event: str, **facts: Any) -> None:
    """Write one line; a short write to a pipe is not mixed with another thread's."""
    os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


def _started() -> None:
    say("started", job=current_job().id, attempt=current_job().attempt)


def _break(*, fails_first: bool) -> None:
    if fails_first and current_job().attempt == 1:
        raise Broken("after the gate")


def _effect(backend: int | None = None) -> Effect:
    return Effect(job_id=current_job().id, attempt=current_job().attempt, pid=os.getpid(), backend=backend)


@jobs.handler(backoff=SOON)
def write(session: Session, number: int = 0) -> int:
    """Leave one effect."""
    _started()
    session.add(_effect())
    return os.getpid()


@jobs.handler(backoff=SOON)
def write_backend(session: Session) -> None:
    """Leave two effects that name the server's processes: of the session's connection, and of one from the engine."""
    backend = select(func.pg_backend_pid())
    engine: Any = session.get_bind()
    with engine.connect() as connection:
        session.add_all([_effect(session.scalar(backend)), _effect(connection.scalar(backend))])


@jobs.handler(backoff=SOON)
async def write_async(session: AsyncSession) -> None:
    """Leave one effect from an event loop."""
    _started()
    session.add(_effect())


@jobs.handler(backoff=SOON)
def speak() -> int:
    """Only say so."""
    _started()
    return os.getpid()


@jobs.handler(backoff=SOON)
def hold(session: Session, *, fails_first: bool = False) -> int:
    """Write, and hold the transaction open until the gate opens. Like the others here, raise first if asked to."""
    session.add(_effect())
    session.flush()
    _started()
    GATE.wait()
    _break(fails_first=fails_first)
    return os.getpid()


@jobs.handler(backoff=SOON)
def hold_then_write(session: Session, *, fails_first: bool = False) -> int:
    """Write when the gate has opened: SQLite lets nobody else write meanwhile."""
    _started()
    GATE.wait()
    session.add(_effect())
    _break(fails_first=fails_first)
    return os.getpid()


@jobs.handler(backoff=SOON)
def hold_plain(*, fails_first: bool = False) -> int:
    """Wait for the gate with no session at all."""
    _started()
    GATE.wait()
    _break(fails_first=fails_first)
    return os.getpid()


@jobs.handler(backoff=SOON)
async def hold_async() -> None:
    """Wait until somebody cancels it."""
    _started()
    await asyncio.Event().wait()


@jobs.handler(backoff=SOON)
async def hold_async_session(session: AsyncSession) -> None:
    """Write, and wait until somebody cancels it."""
    session.add(_effect())
    await session.flush()
    _started()
    await asyncio.Event().wait()


@jobs.handler(backoff=SOON)
def hold_gil(path: str) -> None:
    """In the first attempt let no thread of the process run until somebody writes to the FIFO at *path*."""
    _started()
    if current_job().attempt == 1:
        fifo = os.open(path, os.O_RDWR)
        ctypes.PyDLL(None).read(fifo, ctypes.create_string_buffer(1), 1)
        os.close(fifo)


@jobs.handler(backoff=SOON, max_attempts=2)
def leave(error: str) -> None:
    """Raise an error that is no `Exception`, by its name."""
    raise LEAVING[error]


@jobs.handler(backoff=SOON, max_attempts=2)
async def leave_async(error: str) -> None:
    """The same on the event loop."""
    raise LEAVING[error]


@jobs.handler(backoff=SOON)
def vanish() -> None:
    """Take the whole process away."""
    _started()
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.handler(backoff=Backoff(base=timedelta(seconds=1), jitter=0))
def fail_once() -> None:
    """Raise in the first attempt; the second is to start a second after that."""
    _started()
    _break(fails_first=True)


def build_app_engine(url: str, *, journal: str | None = None, busy_timeout: int = 30_000, **options: Any) -> Engine:
    """Create the app's engine; a *journal* mode is set as the app's own listeners would, in place of WAL."""
    if journal is None:
        return build_engine(url, **options)
    engine = create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {busy_timeout}").close()
        connection.execute(f"PRAGMA journal_mode = {journal}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
