"""Collectors for prometheus_client: of the job table, and of a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from sqlalchemy.orm import Session

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.prometheus.figures import LOOK_SECONDS, TABLE, UP, WORKER, Seen
from sqla_jobs.prometheus.looks import Looks
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.sessions import Sessions
from sqla_jobs.runtime.worker import Worker

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

MAX_AGE: Final = timedelta(seconds=10)

WITHIN: Final = timedelta(seconds=5)
"""Half of the time that Prometheus gives a scrape, unless told otherwise."""


log = logging.getLogger("sqla_jobs.prometheus")


class JobsCollector(Collector):
    """The figures of a job table, for a process that runs no worker: an app that enqueues, or an exporter.

    :param sessions: makes sessions, such as `sessionmaker(engine)`; or give *async_sessions*
    :param max_age: how old a figure may be: scrapes within it cost one look
    :param within: how long a scrape waits for the database
    :raises InvalidSessions: a factory can't serve it
    :raises InvalidOption: a time is out of range
    """

    def __init__(
        self,
        jobs: Jobs[Any],
        sessions: Callable[[], Session] | None = None,
        *,
        async_sessions: Callable[[], AsyncSession] | None = None,
        max_age: timedelta = MAX_AGE,
        within: timedelta = WITHIN,
    ) -> None:
        engine = Sessions(jobs.table, sessions, async_sessions).engine
        opening = Opening(engine)
        self._registry = jobs.name
        self._looks = Looks(jobs, lambda: Connector.of_app(engine, opening), max_age=max_age, within=within)

    def describe(self) -> Iterator[Metric]:
        """Give the metrics without figures: prometheus_client asks when it registers a collector."""
        return _named(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Look at the table, if the latest look is too old, and give the figures."""
        return _of_table(self._registry, self._looks)

    def close(self) -> None:
        """Close its connection. A later scrape opens another."""
        self._looks.close()


class WorkerCollector(Collector):
    """The figures of a worker, and of its job table, over a connection as the worker's own parts have it.

    :param max_age: how old a figure of the table may be: scrapes within it cost one look. The worker's are of now
    :param within: how long a scrape waits for the database
    :raises InvalidOption: a time is out of range
    """

    def __init__(self, worker: Worker, *, max_age: timedelta = MAX_AGE, within: timedelta = WITHIN) -> None:
        self._worker = worker
        self._registry = worker.jobs.name
        self._looks = Looks(worker.jobs, worker.new_connector, max_age=max_age, within=within)

    def describe(self) -> Iterator[Metric]:
        """Give the metrics without figures: prometheus_client asks when it registers a collector."""
        yield from _named(self._registry)
        for figure in WORKER:
            yield figure.family(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Look at the table, if the latest look is too old, and give the figures; the worker's in any case."""
        yield from _of_table(self._registry, self._looks)
        seen = _seen(self._worker)
        for figure in WORKER:
            yield figure.family(self._registry, seen)

    def close(self) -> None:
        """Close its connection. A later scrape opens another."""
        self._looks.close()


def merged(*collectors: Collector) -> Collector:
    """Make one collector of several, for several registries in one process.

    A page must name each metric once. The label `registry` tells the figures apart: give the registries different
    names, and each one worker. Of two figures with the same labels the first is kept.
    """
    return _Merged(collectors)


class _Merged(Collector):
    def __init__(self, collectors: tuple[Collector, ...]) -> None:
        self._collectors = collectors

    def describe(self) -> Iterator[Metric]:
        return self._merge("describe")

    def collect(self) -> Iterator[Metric]:
        return self._merge("collect")

    def _merge(self, method: str) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for collector in self._collectors:
            for family in _given(collector, method):
                first = families.setdefault(family.name, family)
                if first is not family:
                    _add(family, first)
        return iter(families.values())


def _given(collector: Collector, method: str) -> list[Metric]:
    try:
        return [*getattr(collector, method, list)()]
    except Exception:
        if isinstance(collector, JobsCollector | WorkerCollector):
            raise
        # One of the app's that is broken takes nothing else off the page.
        log.debug("collector %r of the app raises, and is left out", collector, exc_info=True)
        return []


def _add(family: Metric, first: Metric) -> None:
    known = {_series(sample) for sample in first.samples}
    first.samples.extend(sample for sample in family.samples if _series(sample) not in known)


def _series(sample: Sample) -> tuple[str, frozenset[tuple[str, str]]]:
    return sample.name, frozenset(sample.labels.items())


def _named(registry: str) -> Iterator[Metric]:
    yield UP.family(registry)
    yield LOOK_SECONDS.family(registry)
    for figure in TABLE:
        yield figure.family(registry)


def _of_table(registry: str, looks: Looks) -> Iterator[Metric]:
    sight = looks.latest()
    yield UP.family(registry, sight is not None)
    if sight is not None:
        yield LOOK_SECONDS.family(registry, sight.seconds)
        for figure in TABLE:
            yield figure.family(registry, sight.stats)


def _seen(worker: Worker) -> Seen:
    types = tuple(spec.name for spec in worker.jobs.handlers)
    return Seen(worker.counters, types, worker.is_healthy, worker.heartbeat_age)
