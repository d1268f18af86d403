"""The end of an attempt, told: one log line, and the app's callbacks. Nothing else in the worker logs jobs."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import Any

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.events import EventName, JobEvent
from sqla_jobs.rules.failure import describe, headline, start_of
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.settlement import Settlement
from sqla_jobs.runtime.counters import Tally

log = logging.getLogger("sqla_jobs.worker")

_FAILURES = frozenset({"retried", "failed", "dead", "lease_lost", "lease_expired"})

_LINE_BYTES = 300


class Reporter:
    """Tells events to the tally and the log at once, and to the app's callbacks from a thread of its own.

    A slow callback delays other callbacks, and no job.
    """

    def __init__(self, jobs: Jobs[Any], tally: Tally) -> None:
        self._jobs = jobs
        self._tally = tally
        self._events: queue.SimpleQueue[JobEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread for callbacks."""
        self._thread = threading.Thread(target=self._call_back, name="sqla_jobs events", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Tell what is queued, at most that long, and end the thread."""
        if self._thread is not None:
            self._events.put(None)
            if self._thread is not threading.current_thread():  # a callback may stop the worker
                self._thread.join(seconds)

    def settled(self, settlement: Settlement, ms: float | None) -> None:
        """Tell how an attempt ended; a lease that ran out is told as such, too."""
        if settlement.problem is not None:
            log.warning("job %s %s: %s", settlement.lease.id, settlement.lease.type, settlement.problem)
        if settlement.is_expired:
            self.tell("lease_expired", settlement.lease, ms, settlement.error)
        self.tell(settlement.event, settlement.lease, ms, settlement.error)

    def tell(self, name: EventName, lease: Lease, ms: float | None, error: str | None = None) -> None:
        """Count it, log one line, and queue the event for its callbacks."""
        self._tally.ended(name, lease.type, ms)
        level = logging.WARNING if name in _FAILURES else logging.INFO
        if log.isEnabledFor(level):
            with contextlib.suppress(Exception):  # a log filter of the app's own that raises
                _write(level, name, lease, ms, error)
        if self._jobs.callbacks(name):
            self._events.put(JobEvent.of(name, lease, ms, error))

    def _call_back(self) -> None:
        while (event := self._events.get()) is not None:
            for callback in self._jobs.callbacks(event.name):
                try:
                    callback(event)
                except BaseException as error:  # noqa: BLE001  # the app's own; the next one is to be called all the same
                    text = describe(error, redact=self._jobs.redact)
                    log.warning("a callback for %r raised, for job %s:\n%s", event.name, event.job_id, text)


def _write(level: int, name: str, lease: Lease, ms: float | None, error: str | None) -> None:
    parts = [f"job {lease.id} {lease.type} {name}: attempt {lease.attempt} of {lease.max_attempts}"]
    if ms is not None:
        parts.append(f"{ms:.1f} ms")
    if error is not None:
        parts.append(start_of(headline(error), _LINE_BYTES))
    extra = {"job_id": lease.id, "job_type": lease.type, "job_event": name, "attempt": lease.attempt, "ms": ms}
    log.log(level, "%s", ", ".join(parts), extra=extra)
