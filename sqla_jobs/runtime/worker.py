"""The worker: claims jobs, runs their handlers, and keeps their leases, until it is told to stop.

.. code-block:: python

    Worker(jobs, SessionLocal, queues=["mail"], concurrency=10).run()     # blocks; SIGTERM drains

    with Worker(jobs, SessionLocal):                                      # or inside an app
        ...
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast

from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidOption, InvalidSessions, WorkerError
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.registry import SessionKind, check_duration, check_number, check_text
from sqla_jobs.rules.retention import Retention
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.counters import Counters
from sqla_jobs.runtime.garbage import spared
from sqla_jobs.runtime.machinery import Machinery, Settings
from sqla_jobs.runtime.probe import Probe
from sqla_jobs.runtime.sessions import Sessions
from sqla_jobs.runtime.signals import Signals

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

log = logging.getLogger("sqla_jobs.worker")

_LONGEST = timedelta(days=1)

_LOOK_SECONDS = 5.0


class WorkerOptions(TypedDict, total=False):
    """The settings that `Worker.with_options` changes; see `Worker`."""

    queues: Iterable[str] | None
    concurrency: int
    lease: timedelta
    grace: timedelta
    poll_interval: timedelta
    listen: str | URL | bool | None
    retention: Retention | None
    name: str | None


class Worker:
    """Runs the jobs of a registry. Start as many as you like, on as many hosts: the database is their meeting point.

    :param sessions: makes the sessions of sync handlers, such as `sessionmaker(engine)`; bound to an Engine
    :param async_sessions: the same for async handlers, such as `async_sessionmaker(engine)`; give either, or both
    :param queues: the queues to serve; all of them unless given
    :param concurrency: handlers that run at once
    :param lease: how long a claim holds without a heartbeat; a crash delays its jobs by about this long
    :param grace: how long a stop waits for running handlers
    :param poll_interval: the longest wait between two looks for new jobs, where no notification comes
    :param listen: whether to LISTEN on PostgreSQL; None where it can; a URL connects there, past a pooler
    :param retention: how long finished jobs stay in the job table; it archives or deletes none unless given
    :param name: starts the text in `locked_by`; the registry's name unless given
    :raises InvalidSessions: a factory can't serve a worker
    :raises InvalidOption: a setting is out of range
    :raises UnsupportedDatabase: the database is of a kind that is not served
    """

    def __init__(
        self,
        jobs: Jobs[Any],
        sessions: Callable[[], Session] | None = None,
        *,
        async_sessions: Callable[[], AsyncSession] | None = None,
        queues: Iterable[str] | None = None,
        concurrency: int = 10,
        lease: timedelta = timedelta(seconds=60),
        grace: timedelta = timedelta(seconds=25),
        poll_interval: timedelta = timedelta(seconds=1),
        listen: str | URL | bool | None = None,
        retention: Retention | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(cast("object", jobs), Jobs):
            raise InvalidOption(f"a worker takes a Jobs first, and got a {type(jobs).__name__}: Worker(jobs, …)")
        self.jobs = jobs
        self._pid = os.getpid()
        self._factories = sessions, async_sessions
        self._sessions = Sessions(jobs.table, sessions, async_sessions)
        self._opening = Opening(self._sessions.engine)
        self._name = name
        self._settings = Settings(
            queues=_queues(queues),
            concurrency=check_number("concurrency", concurrency, least=1),
            lease=check_duration("lease", lease, least=timedelta(seconds=1), most=_LONGEST),
            grace=check_duration("grace", grace, most=_LONGEST),
            poll_interval=check_duration(
                "poll_interval", poll_interval, least=timedelta(milliseconds=10), most=_LONGEST
            ),
            listen=listen,
            retention=_retention(retention, jobs),
            locked_by=_unique_name(check_text("name", name) if name is not None else jobs.name),
        )
        self._machinery: Machinery | None = None
        self._signals: Signals | None = None
        self._is_stopping = False
        self._fault: str | None = None
        self._probe = Probe(self._ask)

    def with_options(self, **changes: Unpack[WorkerOptions]) -> Worker:
        """Make another worker of the same registry and factories, with some settings changed.

        :raises InvalidOption: a setting is out of range
        """
        settings = self._settings
        options: WorkerOptions = {
            "queues": settings.queues,
            "concurrency": settings.concurrency,
            "lease": settings.lease,
            "grace": settings.grace,
            "poll_interval": settings.poll_interval,
            "listen": settings.listen,
            "retention": settings.retention,
            "name": self._name,
        }
        sessions, async_sessions = self._factories
        return Worker(self.jobs, sessions, async_sessions=async_sessions, **(options | changes))

    @property
    def name(self) -> str:
        """What `locked_by` holds for this worker's jobs; unique per worker."""
        return self._settings.locked_by

    @property
    def is_healthy(self) -> bool:
        """Whether it runs and can go on: no part has failed, and not every slot is held by an overdue handler."""
        return self._machinery is not None and not self._machinery.has_ended and self._fault is None

    @property
    def fault(self) -> str | None:
        """Why it can't go on; None while it can."""
        return self._fault

    @property
    def is_draining(self) -> bool:
        """Whether it claims no more, since it is to stop."""
        return self._machinery is not None and self._machinery.dispatcher.is_draining

    @property
    def lease(self) -> timedelta:
        """How long a claim holds without a heartbeat."""
        return self._settings.lease

    @property
    def engine(self) -> Engine:
        """The engine that serves the job model, from the app's factories; an async one's sync side."""
        return self._sessions.engine

    @property
    def queues(self) -> tuple[str, ...] | None:
        """The queues that it serves; None for all."""
        return self._settings.queues

    @property
    def retention(self) -> Retention | None:
        """How long finished jobs stay in the job table; None: its archiver does nothing."""
        return self._settings.retention

    @property
    def counters(self) -> Counters:
        """What it has counted since its start, and what it holds now."""
        return Counters(slots=self._settings.concurrency) if self._machinery is None else self._machinery.counters()

    @property
    def heartbeat_age(self) -> timedelta | None:
        """How long ago a heartbeat last got through; None before the first."""
        last_beat = None if self._machinery is None else self._machinery.last_beat
        return None if last_beat is None else timedelta(seconds=time.monotonic() - last_beat)

    def can_reach_database(self, within: timedelta) -> bool:
        """Ask for the job table now, on a new connection, and give whether the database answers within that time.

        Also before the start. While an earlier question is under way, it waits for that answer.
        """
        return self._probe.is_answered(within.total_seconds())

    def new_connector(self) -> Connector:
        """Make a connection of its own, as the worker's parts have; it connects when it is first used. Close it."""
        return Connector.of_app(self._sessions.engine, self._opening)

    def start(self) -> None:
        """Start, in threads of its own. `with Worker(…)` does so, and stops it at the end.

        :raises WorkerError: it was started before; make a new one
        :raises InvalidSessions: a handler wants a session that no factory makes
        """
        self._start()

    def stop(self) -> None:
        """Claim no more, wait up to `grace` for what runs, and end.

        For one that `run()` runs, from any thread: `run()` returns soon. Otherwise sync handlers that outlast the grace
        go on, and their leases run out.
        """
        self._is_stopping = True
        if self._signals is not None:
            self._signals.stop()
        elif self._machinery is not None:
            self._check_process()
            self._end(self._machinery)

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or `stop()`, and drain: no new claims, and up to `grace` for what runs.

        A second signal ends the process at once. Where sync handlers outlast the grace, their jobs are given back and
        the process ends, since nothing can stop a thread. Meanwhile, garbage collections pass over older objects.

        :raises WorkerError: the worker can't go on; uncaught, the process ends with status 1
        """
        with Signals() as signals:
            self._signals = signals
            try:
                if not self._is_stopping:
                    self._run(signals)
            finally:
                self._signals = None
        self._raise_fault()

    def run_until_idle(self, *, within: timedelta = timedelta(0)) -> None:
        """Run until no job that this worker takes is due, no slot is, and none runs: for scripts and tests.

        :param within: also wait for jobs that become due within this time, such as retries
        :raises WorkerError: the worker can't go on
        """
        machinery = self._start()
        try:
            while self._fault is None and not self._is_idle(machinery, within.total_seconds()):
                pass
        finally:
            self.stop()
        self._raise_fault()

    def reap(self) -> int:
        """Give back one batch of jobs whose lease is over, now, and give how many. The reaper does so by itself.

        :raises WorkerError: it is not started
        """
        if self._machinery is None:
            raise WorkerError("this worker is not started: enter it, `with Worker(…) as worker`")
        return self._machinery.reap()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> Machinery:
        if self._machinery is not None:
            raise WorkerError("this worker was started before: make a new Worker for each start")
        self._check_handlers()
        self._sessions.drop_inherited()
        if self._pid != os.getpid():
            # Made before a fork, maybe of several children: by one name they would take each other's jobs for strays.
            self._pid = os.getpid()
            self._settings = replace(self._settings, locked_by=_unique_name(self._name or self.jobs.name))
        self._machinery = machinery = Machinery(
            self.jobs, self._sessions, self._settings, self._opening, on_fault=self._failed
        )
        self.jobs.add_waker(machinery.wake)
        machinery.start()
        queues = "all queues" if self._settings.queues is None else f"queues {', '.join(self._settings.queues)}"
        log.info("worker %s serves %s, %s at a time", self.name, queues, self._settings.concurrency)
        if not self.jobs.handlers.names:
            log.warning("worker %s knows no handlers: import the modules that have them before it starts", self.name)
        return machinery

    def _run(self, signals: Signals) -> None:
        machinery = self._start()
        if self._fault is None:
            with spared():
                signals.wait()
        if left := self._drain(machinery):
            self._leave(machinery, len(left))
        self._close(machinery)
        if machinery.is_held_up:
            # A handler that was cancelled has left a thread at work (`asyncio.to_thread`), which Python would wait for.
            log.warning("worker %s leaves threads that handlers have started, and ends", self.name)
            self._exit()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise WorkerError(f"worker {self.name} can't go on: {self._fault}")

    def _is_idle(self, machinery: Machinery, within: float) -> bool:
        if not machinery.holdings.wait_until_empty(_LOOK_SECONDS) or not machinery.schedule(_LOOK_SECONDS):
            return False
        look = machinery.dispatcher.look_now(min(_LOOK_SECONDS, within or _LOOK_SECONDS))
        return look is not None and look.is_idle and (look.due_in is None or look.due_in > within)

    def _end(self, machinery: Machinery) -> None:
        if machinery.has_ended:
            return
        if left := self._drain(machinery):
            log.warning(
                "worker %s leaves %s handlers running; their leases run out, and the jobs run again",
                self.name,
                len(left),
            )
        self._close(machinery)

    def _drain(self, machinery: Machinery) -> list[Any]:
        machinery.end_claims()
        log.info("worker %s claims no more, and waits up to %s", self.name, self._settings.grace)
        return machinery.drain(timedelta(0) if self._fault is not None else self._settings.grace)

    def _close(self, machinery: Machinery) -> None:
        self.jobs.remove_waker(machinery.wake)
        machinery.stop()
        log.info("worker %s has stopped", self.name)

    def _leave(self, machinery: Machinery, left: int) -> None:
        """End the process although handlers run: give their jobs back, as the last act."""
        log.warning("worker %s gives back %s jobs whose handlers outlast the grace, and ends", self.name, left)
        machinery.release()
        self._exit()

    def _exit(self) -> None:
        logging.shutdown()
        os._exit(0 if self._fault is None else 1)

    def _failed(self, fault: str) -> None:
        self._fault = self._fault or fault
        if self._machinery is not None:
            self._machinery.end_claims()
        if self._signals is not None:
            self._signals.stop()

    def _check_handlers(self) -> None:
        for spec in self.jobs.handlers:
            spec.arguments.check()
            if spec.session is SessionKind.SYNC and not self._sessions.has_sync:
                raise InvalidSessions(f"handler {spec.name!r} takes a Session: give the worker sessions=…")
            if spec.session is SessionKind.ASYNC and not self._sessions.has_async:
                raise InvalidSessions(f"handler {spec.name!r} takes an AsyncSession: give the worker async_sessions=…")

    def _ask(self) -> None:
        connector, table = self.new_connector(), self.jobs.table
        try:
            connector.read(lambda session: session.execute(table.probe, bind_arguments={"mapper": table.mapper}).all())
        finally:
            connector.close()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise WorkerError(
                f"this worker was started in process {self._pid}, and this is a fork of it, with none of its threads: "
                "make a new Worker here"
            )


def _queues(queues: Iterable[str] | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    if isinstance(queues, str):
        raise InvalidOption(f"queues is a list of names, and is the str {queues!r}: queues=[{queues!r}]")
    names = tuple(check_text("queue", queue) for queue in queues)
    if not names:
        raise InvalidOption("queues is empty: leave it out to serve every queue")
    return names


def _retention(retention: Retention | None, jobs: Jobs[Any]) -> Retention | None:
    if retention is not None and not isinstance(cast("object", retention), Retention):
        raise InvalidOption(f"retention is a Retention, and is a {type(retention).__name__}: Retention(done=…)")
    if retention is not None and retention.archived is not None and jobs.archive is None:
        raise InvalidOption(
            f"retention has archived=…, and registry {jobs.name!r} has no archive: Jobs(…, archive=ArchivedJob)"
        )
    return retention


def _unique_name(name: str) -> str:
    """Name this start: a restarted worker must not pass for the one before it."""
    return f"{name[:100]}:{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"
