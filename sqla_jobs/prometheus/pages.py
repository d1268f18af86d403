"""The page of a worker, over HTTP: `/metrics`, `/healthz`, `/readyz`. It changes nothing, and shows no payloads."""

from __future__ import annotations

import errno
import logging
import socket
import socketserver
import threading
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client import make_wsgi_app as metrics_app  # pyright: ignore[reportUnknownVariableType]  # a bare Callable
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sqla_jobs.errors import ConfigurationError, InvalidOption
from sqla_jobs.prometheus.collectors import WorkerCollector, merged
from sqla_jobs.rules.registry import check_number
from sqla_jobs.runtime.worker import Worker

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("sqla_jobs.prometheus")

DATABASE_WITHIN: Final = timedelta(seconds=2)
"""How long `/readyz` waits for the database."""

LARGEST_PORT: Final = 65_535

_CLIENT_SECONDS: Final = 10
"""How long a client may take to say what it wants."""


def serve(worker: Worker, port: int, host: str = "127.0.0.1") -> Server:
    """Serve the page of *worker*, also before its start and after its stop, in threads of its own.

    `/metrics` has the worker's figures, those of its job table, and whatever the app keeps in prometheus_client's
    default registry. `/healthz` says 200 while the worker is healthy; `/readyz` 200 if also its heartbeat is younger
    than a lease, it does not drain, and the database answers for the job table within two seconds. Else they say 503,
    and why.

    :param port: 0 for any that is free; see `Server.port`
    :param host: the address to serve on; "0.0.0.0" or "::" for all. There is no password on it
    :raises ConfigurationError: the port is taken, or there is no such address here
    :raises InvalidOption: there is no such port
    """
    if check_number("port", port, least=0) > LARGEST_PORT:
        raise InvalidOption(f"port is from 0 to {LARGEST_PORT}, and is {port}")
    return Server(worker, port, host)


class Server:
    """What `serve` has started. `close()` ends it, and so does the end of a `with`.

    :ivar port: the port that it serves on
    """

    def __init__(self, worker: Worker, port: int, host: str) -> None:
        self._collector = WorkerCollector(worker)
        self._http = _listening(port, host)
        self.port = self._http.server_port
        self._http.set_app(_Pages(worker, _metrics(self._collector)))
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.2,), name="sqla_jobs page", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve no more, and close the connection that figures came over."""
        self._http.shutdown()
        self._http.server_close()
        self._collector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _metrics(collector: WorkerCollector) -> WSGIApplication:
    # A registry of its own: two workers of one process have a page each.
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(_Unnamed(merged(collector, REGISTRY)))
    return cast("WSGIApplication", metrics_app(registry))


class _Unnamed(Collector):
    """A collector that can't say beforehand what it has, since the app may register more: any `name[]=…` asks it."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterable[Metric]:
        return self._collector.collect()


class _Pages:
    """The WSGI application."""

    def __init__(self, worker: Worker, metrics: WSGIApplication) -> None:
        self._worker = worker
        self._metrics = metrics

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return self._metrics(environ, start_response)
            case "/healthz":
                return _verdict(_illness(self._worker), start_response)
            case "/readyz":
                return _verdict(_illness(self._worker) or _unreadiness(self._worker), start_response)
            case _:
                return _text("404 Not Found", "here are /metrics, /healthz and /readyz", start_response)


def _verdict(trouble: str | None, start_response: StartResponse) -> list[bytes]:
    if trouble is None:
        return _text("200 OK", "ok", start_response)
    return _text("503 Service Unavailable", trouble, start_response)


def _text(status: str, text: str, start_response: StartResponse) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
    return [f"{text}\n".encode("utf-8", "backslashreplace")]


def _illness(worker: Worker) -> str | None:
    """Say why a worker is not healthy; None if it is."""
    if worker.is_healthy:
        return None
    fault = worker.fault
    return f"worker {worker.name} can't go on: {fault}" if fault else f"worker {worker.name} is not running"


def _unreadiness(worker: Worker) -> str | None:
    """Say why a healthy worker is not ready; None if it is."""
    age, lease = worker.heartbeat_age, worker.lease
    if age is None:
        return f"worker {worker.name} has had no heartbeat yet"
    if age > lease:
        return f"worker {worker.name}: the last heartbeat got through {age} ago, and a lease is {lease}"
    if worker.is_draining:
        return f"worker {worker.name} drains: it claims no more"
    if not worker.can_reach_database(DATABASE_WITHIN):
        seconds = f"{DATABASE_WITHIN.total_seconds():g} s"
        return f"worker {worker.name}: the database does not answer within {seconds}, or lacks the job table"
    return None


# --- HTTP -------------------------------------------------------------------------------------------------------------


class _Request(WSGIRequestHandler):
    """A request that is not logged: probes come every few seconds."""

    timeout = _CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name in http.server
        log.debug("%s", format % args)


class _HTTP(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_port = False
    request_queue_size = 64

    def __init__(self, family: int, address: Any) -> None:
        self.address_family = family
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        # Not http.server's own: it asks DNS for this host's name, and that may take its time.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request from %s was broken off", client_address, exc_info=True)  # noqa: LOG014  # called in one


def _listening(port: int, host: str) -> _HTTP:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _HTTP(family, address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            text = f"port {port} on {host} is taken, maybe by another worker: give each its own, or 0 for any free one"
        else:
            text = f"port {port} on {host} can't be served: {error.strerror or error}"
        raise ConfigurationError(text) from error
