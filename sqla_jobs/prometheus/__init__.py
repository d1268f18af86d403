"""Metrics for Prometheus, and the page of a worker: `/metrics`, `/healthz`, `/readyz`. Needs the extra `prometheus`.

.. code-block:: python

    with Worker(jobs, Sessions) as worker, serve(worker, 9464, host="0.0.0.0"):
        ...                                                      # or: sqla-jobs worker --metrics-port 9464

    REGISTRY.register(JobsCollector(jobs, Sessions))             # or on the page of an app that runs no worker

Register a `WorkerCollector` *or* a `JobsCollector` for a registry in one process: the first has all that the second
has. Several registries of one process go through `merged`. In a process that forks (Gunicorn), make them in the child.

Each has a connection of its own, and looks at the table at most once in `max_age`, however often it is scraped. A
database that is away, or hangs, is `sqla_jobs_up 0`: no figure is older than `max_age`, none is made up, and a scrape
neither raises nor waits longer than `within`. docs/operations.md lists the metrics, and what to alert on.
"""

from __future__ import annotations

try:
    import prometheus_client as _prometheus_client
except ImportError as error:
    raise ImportError("sqla_jobs.prometheus needs prometheus-client: pip install 'sqla_jobs[prometheus]'") from error

from sqla_jobs.prometheus.collectors import JobsCollector, WorkerCollector, merged
from sqla_jobs.prometheus.pages import Server, serve

__all__ = ["JobsCollector", "Server", "WorkerCollector", "merged", "serve"]

del _prometheus_client
