"""The parts of a running worker, put together: who has which connection, who wakes whom."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import URL, create_engine

from sqla_jobs.errors import ConfigurationError
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.failure import describe, mask
from sqla_jobs.rules.registry import SessionKind
from sqla_jobs.rules.retention import Retention
from sqla_jobs.rules.settlement import Released
from sqla_jobs.runtime.archiver import Archiver
from sqla_jobs.runtime.connections import Connector, Opening, like
from sqla_jobs.runtime.counters import Counters, Tally
from sqla_jobs.runtime.dispatch import Dispatcher
from sqla_jobs.runtime.execution import Execution
from sqla_jobs.runtime.heartbeat import BEATS_PER_LEASE, Heartbeat
from sqla_jobs.runtime.holdings import Holding, Holdings
from sqla_jobs.runtime.pools import LoopThread, ThreadPool
from sqla_jobs.runtime.reporting import Reporter
from sqla_jobs.runtime.scheduler import Scheduler
from sqla_jobs.runtime.services import Outage, Reaper, Service
from sqla_jobs.runtime.sessions import Sessions
from sqla_jobs.runtime.settling import Settler
from sqla_jobs.runtime.snapshots import Snapshots
from sqla_jobs.runtime.wakeup import Listener
from sqla_jobs.runtime.warden import Warden
from sqla_jobs.schema.dialects import capabilities

log = logging.getLogger("sqla_jobs.worker")

LAST_FLUSH = 5.0
"""Seconds that the last settlements may take, after the grace."""

LAST_TICK = 2.0
"""Seconds that all services together have to end; one whose statement hangs is left behind."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A worker's settings, checked."""

    queues: tuple[str, ...] | None
    concurrency: int
    lease: timedelta
    grace: timedelta
    poll_interval: timedelta
    listen: str | URL | bool | None
    retention: Retention | None
    locked_by: str


class Machinery:
    """One start of a worker, to its stop.

    :param opening: of the app's engine
    :param on_fault: called once, when it can't go on: with what happened
    """

    def __init__(
        self,
        jobs: Jobs[Any],
        sessions: Sessions,
        settings: Settings,
        opening: Opening,
        *,
        on_fault: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.holdings = Holdings(settings.concurrency)
        self._jobs = jobs
        self._sessions = sessions
        self._on_fault = on_fault
        self.has_ended = False
        self.is_held_up = False
        self._connectors: list[Connector] = []
        self._opening = opening
        self._tally = Tally()
        self._outage = Outage(settings.lease / BEATS_PER_LEASE)
        self._reporter = Reporter(jobs, self._tally)
        self._threads = ThreadPool(settings.concurrency, self._run_and_follow)
        self._loop: LoopThread | None = None
        self._making_loop = threading.Lock()
        can = capabilities(sessions.engine.dialect)
        self._doubtful = self._new_settler(limit=1, bounded=can.bounded)
        self._settler = self._new_settler(bounded=can.bounded, aside=self._doubtful)
        self._heartbeat = self._new_heartbeat()
        self._snapshots = self._new_snapshots()
        self._execution = Execution(
            jobs,
            self.holdings,
            sessions,
            self._snapshots,
            self._reporter,
            settler=self._settler,
            doubtful=self._doubtful,
        )
        self.dispatcher = self._new_dispatcher()
        self._listener = self._new_listener()
        self._services = self._new_services()

    def start(self) -> None:
        """Start every part."""
        self._sessions.watch()
        self._reporter.start()
        self._threads.start()
        for service in self._services.values():
            service.start()

    def reap(self) -> int:
        """Reap one batch of expired leases now, and give how many."""
        return len(self._reaper.reap())

    def schedule(self, seconds: float) -> bool:
        """Have due slots fired now, and give whether they are."""
        return "scheduler" not in self._services or self._services["scheduler"].tick_now(seconds)

    def counters(self) -> Counters:
        """Give what was counted."""
        return self._tally.counters(self.holdings, outages=self._outage.count)

    @property
    def is_listening(self) -> bool:
        """Whether new jobs are heard of at once."""
        return self._listener is not None and self._listener.is_listening

    @property
    def last_beat(self) -> float | None:
        """When the heartbeat last got through, by the monotonic clock."""
        return self._heartbeat.last_beat

    def wake(self, queues: frozenset[str]) -> None:
        """There is work in *queues*."""
        for name in queues:
            self.dispatcher.wake(name)

    def end_claims(self) -> None:
        """Claim no more jobs, and start none that wait."""
        self.dispatcher.drain()
        self.holdings.close()

    def drain(self, grace: timedelta) -> list[Holding]:
        """Claim no more, wait for the running handlers, cancel the async ones that are left; give what still runs.

        Heartbeats and settlements go on.
        """
        self.end_claims()
        deadline = time.monotonic() + grace.total_seconds()
        for holding in self.holdings.withdraw():
            self._give_back(holding)
        # A claim that is under way gives its jobs back before the settlers end.
        self._services["dispatcher"].tick_now(LAST_TICK)
        self.holdings.wait_until_idle(deadline - time.monotonic())
        left = self.holdings.running()
        for holding in left:
            holding.is_stopping = True
            if self._loop is not None and holding.task is not None:
                self._loop.cancel(holding.task)
        if any(holding.spec.is_async for holding in left):
            self.holdings.wait_until_idle(ASYNC_CANCEL, is_async=True)
        self.holdings.wait_until_settled(LAST_FLUSH)
        return self.holdings.running()

    def release(self) -> None:
        """Give back jobs whose handlers still run: only as the last act of a process."""
        for holding in self.holdings.running():
            holding.is_stopping = True
            if self.holdings.begin_settling(holding):
                self._doubtful.submit(holding, Released())
        self.holdings.wait_until_settled(LAST_FLUSH, and_running=True)

    def stop(self) -> None:
        """End every part that can be ended, and close its connections. Nothing running is released."""
        self.has_ended = True
        for part in (self._listener, self._settler, self._doubtful):
            if part is not None:
                part.stop()
        for service in self._services.values():
            service.stop()
        deadline = time.monotonic() + LAST_TICK
        still_alive = [service for service in self._services.values() if not service.join(deadline - time.monotonic())]
        self._threads.stop()
        if self._loop is not None:
            self._stop_loop(self._loop)
        self._reporter.stop(LAST_FLUSH)
        self._sessions.unwatch()
        if not still_alive:
            for connector in self._connectors:
                connector.close()

    def _stop_loop(self, loop: LoopThread) -> None:
        try:
            loop.run(self._sessions.dispose(), LAST_FLUSH)
        except TimeoutError:
            log.warning("a handler blocks the event loop; its connections are left open")
        self.is_held_up = not loop.stop(LAST_FLUSH)

    def _start(self, holding: Holding) -> None:
        """Run a claimed job where its handler runs. It has its slot."""
        if holding.spec.is_async:
            self._started_loop().spawn(lambda: self._run_on_loop(holding))
        else:
            self._threads.put(holding)

    def _started_loop(self) -> LoopThread:
        """Give the event loop; it is made for the first async job, of a handler that may be younger than the worker."""
        with self._making_loop:
            if self._loop is None:
                self._loop = LoopThread()
                self._loop.start()
            return self._loop

    def _run_and_follow(self, holding: Holding) -> Holding | None:
        """Run a sync job; give the next one if it can go on in this thread."""
        try:
            self._execution.run(holding)
        except BaseException as error:  # noqa: BLE001  # a fault of ours, and never the end of a thread of the pool
            self._fault("execution", error)
        return self._follow(holding)

    async def _run_on_loop(self, holding: Holding) -> None:
        try:
            await self._execution.run_async(holding)
        except BaseException as error:  # noqa: BLE001  # as above
            self._fault("execution", error)
        following = self._follow(holding)
        if following is not None:
            self._threads.put(following)

    def _follow(self, holding: Holding) -> Holding | None:
        following = self.holdings.next_after(holding)
        self.dispatcher.slot_is_free()
        if following is not None and following.spec.is_async:
            self._start(following)
            return None
        return following

    def _settled(self, has_ready: bool) -> None:  # noqa: FBT001  # of one place
        if has_ready:
            self.dispatcher.wake()
        else:
            self.dispatcher.slot_is_free()

    def _give_back(self, holding: Holding) -> None:
        if self.holdings.begin_settling(holding):
            self._settler.submit(holding, Released())

    def _cancel(self, holding: Holding) -> None:
        if self._loop is not None:
            self._loop.cancel(holding.task)

    def _fault(self, part: str, error: BaseException) -> None:
        if not isinstance(error, ConfigurationError):  # whose text says it all, and is the worker's fault below
            text = describe(error, redact=self._jobs.redact)
            log.critical("the %s of worker %s has failed:\n%s", part, self.settings.locked_by, text)
        self._on_fault(mask(f"its {part} has failed: {type(error).__name__}: {error}"))

    def _stuck(self, overdue: list[Holding]) -> None:
        names = ", ".join(f"{holding.lease.type} (job {holding.lease.id})" for holding in overdue)
        log.critical("every slot of worker %s is held by an overdue handler: %s", self.settings.locked_by, names)
        self._on_fault(f"every slot is held by a handler that ran past its timeout: {names}")

    def _connector(self, part: str) -> Connector:
        connector = Connector.of_app(self._sessions.engine, self._opening, part=part)
        self._connectors.append(connector)
        return connector

    def _new_settler(self, **options: Any) -> Settler:
        return Settler(
            self._jobs,
            self._connector("settle"),
            self.holdings,
            self._reporter,
            self._tally,
            on_settled=self._settled,
            **options,
        )

    def _new_heartbeat(self) -> Heartbeat:
        return Heartbeat(self._jobs, self._connector("renew"), self.holdings, self._reporter, lease=self.settings.lease)

    def _new_snapshots(self) -> Snapshots:
        engine = self._sessions.engine
        probe = Connector(like(engine), self._opening) if capabilities(engine.dialect).has_row_locks else None
        specs = [spec for spec in self._jobs.handlers if spec.session is not SessionKind.NONE and not spec.timeout]
        return Snapshots(
            probe,
            self._new_heartbeat(),
            lease=self.settings.lease,
            between_beats=self._heartbeat.between_beats,
            unbounded=sorted(spec.name for spec in specs),
        )

    def _new_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self._jobs,
            self._connector("claim"),
            self.holdings,
            self._tally,
            queues=self.settings.queues,
            locked_by=self.settings.locked_by,
            lease=self.settings.lease,
            poll_interval=self.settings.poll_interval,
            start=self._start,
            give_back=self._give_back,
            is_listening=lambda: self.is_listening,
        )

    def _new_listener(self) -> Listener | None:
        listen = self.settings.listen
        can_listen = capabilities(self._sessions.engine.dialect).has_notify and self._jobs.notify
        if listen is False or (listen in (None, True) and not can_listen):
            return None
        if isinstance(listen, str | URL):
            engine = create_engine(listen)
            connector = Connector(engine, Opening(engine))
            self._connectors.append(connector)
        else:
            connector = self._connector("listen")
        return Listener(
            connector,
            self._jobs.table.channel,
            wake=self.dispatcher.wake,
            on_listening=lambda: self._outage.ended("listener"),
        )

    def _new_services(self) -> dict[str, Service]:
        self._reaper = Reaper(
            self._jobs, self._connector("reap"), self._reporter, beat=self.settings.lease / BEATS_PER_LEASE
        )
        warden = Warden(
            self.holdings,
            self._doubtful,
            lease=self.settings.lease,
            give_back=self._give_back,
            cancel=self._cancel,
            on_stuck=self._stuck,
        )
        ticks: dict[str, Callable[[], float]] = {
            "heartbeat": self._heartbeat.tick,
            "dispatcher": self.dispatcher.tick,
            "settler": self._settler.tick,
            "settler of doubtful ends": self._doubtful.tick,
            "reaper": self._reaper.tick,
            "warden": warden.tick,
            "isolation level": self._snapshots.tick,
        }
        if self._listener is not None:
            ticks["listener"] = self._listener.tick
        if self._jobs.has_schedules:
            bounded = capabilities(self._sessions.engine.dialect).bounded
            scheduler = Scheduler(
                self._jobs, self._connector("tick"), bounded=bounded, is_stopping=lambda: self.has_ended
            )
            ticks["scheduler"] = scheduler.tick
        if self.settings.retention is not None:
            ticks["archiver"] = Archiver(self._jobs, self._connector("archive"), self.settings.retention).tick
        services = {
            name: Service(name, tick, outage=self._outage, on_fault=self._fault) for name, tick in ticks.items()
        }
        self.dispatcher.alarm = services["dispatcher"].alarm
        return services


ASYNC_CANCEL = 2.0
"""Seconds that cancelled async handlers have to end."""
