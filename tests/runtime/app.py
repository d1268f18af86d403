"""The app whose jobs the tests of a worker run: its tables, a registry, and ears for what the worker tells."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, get_args

from sqlalchemy import Engine, ForeignKey, event, func, make_url, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqla_jobs import Backoff, Handler, JobEvent, JobMixin, Jobs, Worker, enqueue
from sqla_jobs.rules.events import EventName

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqla_jobs.runtime.machinery import Machinery

P = ParamSpec("P")

MakeEngine = Callable[..., Engine]

PATIENCE = 60.0
"""Seconds after which a test that waits has failed: long, since a busy machine, or its disk, is no fault."""

LONG = timedelta(days=1)
"""A poll interval that no test lives to see: what runs, runs because somebody woke the worker."""

SOON = timedelta(seconds=10)
"""Longer than the delay after an error of the database."""

AT_ONCE = Backoff(base=timedelta(0))


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class Note(Base):
    """What handlers write. A parent that does not exist breaks the commit, and nothing before it."""

    __tablename__ = "note"

    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(unique=True)
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("note.id", deferrable=True, initially="DEFERRED"))


class App:
    """An app on *engine*, whose worker takes the sessions of *async_engine* if there is one."""

    def __init__(self, engine: Engine, *, async_engine: AsyncEngine | None = None, **options: Any) -> None:
        self.engine = engine
        self.sessions = sessionmaker(engine, expire_on_commit=False)
        self.async_sessions = None if async_engine is None else async_sessionmaker(async_engine)
        self._heard: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        self.jobs = self.registry(**options)

    def registry(self, **options: Any) -> Jobs[Job]:
        """Make one more registry for the same table, as another process or another release of the app has one."""
        jobs = Jobs(Job, **options)
        jobs.on(*get_args(EventName))(self._heard.put)
        return jobs

    def create(self) -> App:
        """Create the tables."""
        Base.metadata.create_all(self.engine)
        return self

    def add(self, handler: Handler[Job, ..., P, Any], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Enqueue a job, commit, and return its id."""
        with self.sessions.begin() as session:
            return enqueue(session, handler, *args, **kwargs).id

    def row(self, job_id: int) -> Job:
        """Read what the job's row says now."""
        with self.sessions() as session:
            return session.get_one(Job, job_id)

    def statuses(self) -> list[str]:
        """Read the status of every job, by id."""
        with self.sessions() as session:
            return list(session.scalars(select(Job.status).order_by(Job.id)))

    def count(self, status: str) -> int:
        """Count the jobs of that status."""
        with self.sessions() as session:
            return session.scalars(select(func.count()).where(Job.status == status)).one()

    def notes(self) -> list[str]:
        """Read what the handlers wrote."""
        with self.sessions() as session:
            return list(session.scalars(select(Note.text).order_by(Note.text)))

    def worker(self, jobs: Jobs[Job] | None = None, **options: Any) -> Worker:
        """Make a worker; without LISTEN, which takes half a second to end."""
        own: dict[str, Any] = {"listen": False}
        if self.async_sessions is None:
            own["sessions"] = self.sessions
        else:
            own["async_sessions"] = self.async_sessions
        return Worker(jobs or self.jobs, **own | options)

    def run(self, jobs: Jobs[Job] | None = None, *, within: timedelta = timedelta(0), **options: Any) -> None:
        """Run what is due, or becomes due within that time, in a worker made for it; fail loudly if that never ends."""
        ended: Future[None] = Future()
        worker = self.worker(jobs, **options)

        def run() -> None:
            try:
                worker.run_until_idle(within=within)
            except BaseException as error:  # noqa: BLE001  # raised below
                ended.set_exception(error)
            else:
                ended.set_result(None)

        threading.Thread(target=run, daemon=True).start()
        ended.result(2 * PATIENCE)

    def hear(self, name: str) -> JobEvent:
        """Wait for the next event; it has to be that one."""
        event = self._heard.get(timeout=PATIENCE)
        assert event.name == name, event
        return event

    def hear_any(self) -> str:
        """Wait for the next event, and return its name."""
        return self._heard.get(timeout=PATIENCE).name

    def heard(self) -> list[str]:
        """Return the names of all events that have been told and not heard yet."""
        names: list[str] = []
        while not self._heard.empty():
            names.append(self._heard.get().name)
        return names


class Ear(logging.Handler):
    """Hears what the library logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self._more = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._more:
            self.records.append(record)
            self._more.notify_all()

    def wait_for(self, text: str) -> None:
        """Wait until a line with *text* in it is logged."""
        with self._more:
            found = self._more.wait_for(lambda: bool(self.lines(text)), PATIENCE)
        assert found, f"nobody logged {text!r}"

    def lines(self, text: str = "", *, level: int = logging.DEBUG) -> list[str]:
        """Return the lines of at least that level with *text* in them."""
        messages = [record.getMessage() for record in self.records if record.levelno >= level]
        return [message for message in messages if text in message]


class Connections:
    """Counts an engine's connections, and those of the engines made like it."""

    def __init__(self, engine: Engine) -> None:
        self.made = 0
        self._open: dict[int, object] = {}
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "close", self._closed)

    @property
    def open(self) -> set[int]:
        """Name those that are open now."""
        return set(self._open)

    def _connected(self, connection: object, _record: object) -> None:
        self.made += 1
        # The object, not only its id: an id is used again when its object is gone.
        self._open[id(connection)] = connection

    def _closed(self, connection: object, _record: object) -> None:
        self._open.pop(id(connection), None)


def wait_for(happened: threading.Event) -> None:
    """Wait, and fail loudly when nothing happens."""
    assert happened.wait(PATIENCE), f"nothing happened for {PATIENCE} seconds"


def have_tick(worker: Worker, part: str) -> None:
    """Have a part of a running worker tick now, such as its "heartbeat", and come back when it has."""
    service = _machinery_of(worker)._services[part]  # pyright: ignore[reportPrivateUsage]  # its time is no test's
    assert service.tick_now(PATIENCE), f"the {part} does not tick"


def end_time(worker: Worker) -> None:
    """Let the time of all handlers that run be up now, and come back when the worker has seen it."""
    for holding in _machinery_of(worker).holdings.running():
        holding.overdue_at = time.monotonic()
    have_tick(worker, "warden")


def _machinery_of(worker: Worker) -> Machinery:
    machinery = worker._machinery  # pyright: ignore[reportPrivateUsage]
    assert machinery is not None
    return machinery


@contextmanager
def ended(thread: threading.Thread) -> Generator[None]:
    """Start a thread, and see it end."""
    thread.start()
    yield
    thread.join(PATIENCE)
    assert not thread.is_alive()


def sync_url_of(url: str) -> str:
    """Return the URL of the same database for the sync driver."""
    parsed = make_url(url)
    driver = {"postgresql": "psycopg", "sqlite": "pysqlite"}[parsed.get_backend_name()]
    return parsed.set(drivername=f"{parsed.get_backend_name()}+{driver}").render_as_string(hide_password=False)
