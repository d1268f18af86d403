"""`sqla-jobs worker`: the app's worker, with a log and a page of metrics."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Annotated, Any

import typer

from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.stops import refused
from sqla_jobs.cli.terminal import Page
from sqla_jobs.runtime.worker import Worker, WorkerOptions

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def work(
    cli: Cli,
    *,
    queues: Annotated[
        list[str] | None, typer.Option("--queue", "-q", help="Serve this queue; more than once. All unless given.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Handlers that run at once.")
    ] = None,
    is_until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing is due, instead of at SIGTERM or Ctrl-C.")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="LEVEL", help="DEBUG, INFO (the default), WARNING or ERROR.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", min=0, max=65535, help="Serve /metrics, /healthz and /readyz here; 0: any."),
    ] = None,
    metrics_host: Annotated[str, typer.Option("--metrics-host", help="Serve them on this address.")] = "127.0.0.1",
) -> None:
    """Run the app's worker until SIGTERM or Ctrl-C, and drain: a second one ends it at once."""
    changes: WorkerOptions = {}
    if queues:
        changes["queues"] = queues
    if concurrency is not None:
        changes["concurrency"] = concurrency
    worker = cli.worker.with_options(**changes) if changes else cli.worker
    _set_up_logging(log_level)
    with _served(cli, worker, metrics_port, metrics_host):
        if is_until_idle:
            worker.run_until_idle()
        else:
            worker.run()
    cli.terminal.show(_document(worker), Page)


def _set_up_logging(level: str | None) -> None:
    """Log to stderr, unless the app has set up its own logging; then only the level of ours is changed."""
    if level is not None and level.upper() not in _LEVELS:
        raise refused(f"--log-level is one of {', '.join(_LEVELS)}, and is {level!r}")
    if not logging.getLogger().handlers:
        logging.basicConfig(level=(level or "INFO").upper(), format="%(asctime)s %(levelname)s %(message)s")
    elif level is not None:
        logging.getLogger("sqla_jobs").setLevel(level.upper())


@contextlib.contextmanager
def _served(cli: Cli, worker: Worker, port: int | None, host: str) -> Generator[None]:
    if port is None:
        yield
        return
    try:
        from sqla_jobs.prometheus import serve
    except ImportError as error:
        raise refused(str(error)) from error
    server = serve(worker, port, host=host)
    cli.terminal.note(f"metrics on http://{f'[{host}]' if ':' in host else host}:{server.port}/metrics")
    try:
        yield
    finally:
        server.close()


def _document(worker: Worker) -> dict[str, Any]:
    counters = worker.counters
    ends = [{"event": event, "type": type_, "count": count} for (event, type_), count in sorted(counters.ends.items())]
    return {"worker": worker.name, "claimed": counters.claimed, "ends": ends}
