"""An app whose figures the tests scrape, and what they scrape them with."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from sqlalchemy import Engine, event
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from sqla_jobs import GiveUp, JobMixin, Jobs, ScheduleMixin, Worker, enqueue
from sqla_jobs.prometheus import Server
from tests.runtime.app import PATIENCE, wait_for

ALWAYS = timedelta(0)
"""A greatest age that has every scrape look."""

ONCE = timedelta(hours=1)

LOOK = "sqla_jobs metrics"
"""The name of the threads that look."""

HARDLY = timedelta(milliseconds=50)


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class Figures:
    """A page of metrics. Called with a name and labels it gives the figures that have them."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))

    def __call__(self, name: str, **labels: str) -> list[float]:
        samples = [sample for family in self.families for sample in family.samples if sample.name == name]
        return [sample.value for sample in samples if labels.items() <= sample.labels.items()]


class Gate:
    """Counts the looks of collectors on an engine; while it is shut, they hang as if the database did."""

    def __init__(self, engine: Engine) -> None:
        self._is_open = threading.Event()
        self._more = threading.Condition()
        self._threads: set[threading.Thread] = set()
        event.listen(engine, "checkout", self._look)
        self.open()

    def shut(self) -> None:
        """Have the next looks hang."""
        self._is_open.clear()

    def open(self) -> None:
        """Let them go on, and wait until each has ended."""
        self._is_open.set()
        for thread in threading.enumerate():
            if thread.name == LOOK:
                thread.join(PATIENCE)

    def wait_for_looks(self, number: int) -> None:
        """Wait until there were so many: a busy machine may not have come to them within `HARDLY`."""
        with self._more:
            assert self._more.wait_for(lambda: self.looks >= number, PATIENCE)

    @property
    def looks(self) -> int:
        """How many there were so far: each has a thread."""
        return len(self._threads)

    def _look(self, *_: object) -> None:
        if threading.current_thread().name == LOOK:
            with self._more:
                self._threads.add(threading.current_thread())
                self._more.notify_all()
            wait_for(self._is_open)


class Shop:
    """An app on *engine* with handlers that end in each way, and one that waits."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.engine = engine
        self.sessions = sessionmaker(engine)
        self.jobs = jobs = Jobs(Job, name="shop", **options)
        self.has_begun, self.may_end = threading.Event(), threading.Event()

        @jobs.handler
        def write(session: Session) -> None:
            session.flush()

        @jobs.handler(max_attempts=1)
        def fail() -> None:
            raise ValueError

        @jobs.handler
        def give_up() -> None:
            raise GiveUp

        @jobs.handler(queue="slow", timeout=timedelta(seconds=60))
        def wait() -> None:
            self.has_begun.set()
            wait_for(self.may_end)

        self.write, self.fail, self.give_up, self.wait = write, fail, give_up, wait

    def create(self) -> Shop:
        """Create the tables."""
        Base.metadata.create_all(self.engine)
        return self

    def add(self, *handlers: Any) -> None:
        """Enqueue a job of each, and commit."""
        with self.sessions.begin() as session:
            for handler in handlers:
                enqueue(session, handler)

    def worker(self, **options: Any) -> Worker:
        """Make a worker; without LISTEN, which takes half a second to end."""
        return Worker(self.jobs, self.sessions, listen=False, **options)


def scrape(collector: Collector) -> Figures:
    return Figures(generate_latest(collector).decode())


def get(server: Server, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
