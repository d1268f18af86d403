from __future__ import annotations

import socket
import struct
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY, Counter

from sqla_jobs import ConfigurationError, InvalidOption, WorkerError
from sqla_jobs.prometheus import WorkerCollector, serve
from tests.engines import build_engine
from tests.prometheus.shop import HARDLY, Figures, Shop, get
from tests.runtime.app import PATIENCE, Connections, wait_for

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection

RESET = struct.pack("ii", 1, 0)
"""To close a connection without a farewell."""


def test_probes_follow_a_worker_through_its_life(shop: Shop) -> None:
    """Both say 503 before the start and after the stop, and 200 while it runs, whatever its handlers are at."""
    shop.create().add(shop.wait)
    worker = shop.worker()

    with serve(worker, 0) as server:
        before = [get(server, "/healthz"), get(server, "/readyz")]
        with worker:
            wait_for(shop.has_begun)
            during = [get(server, "/healthz"), get(server, "/readyz")]
            page = Figures(get(server, "/metrics")[1])
            shop.may_end.set()
        after = [get(server, "/healthz"), get(server, "/readyz")]

    assert before == after == [(503, f"worker {worker.name} is not running\n")] * 2
    assert during == [(200, "ok\n")] * 2
    assert (page("sqla_jobs_running", type="wait"), page("sqla_jobs_worker_running")) == ([1], [1])
    assert (page("sqla_jobs_worker_healthy"), page("sqla_jobs_worker_held")) == ([1], [1])
    assert page("sqla_jobs_worker_heartbeat_age_seconds")[0] >= 0


def test_probes_when_every_slot_is_stuck(sqlite_shop: Shop) -> None:
    """Both say 503, and what holds the slots, so that a supervisor restarts the process and a person sees why."""
    sqlite_shop.create()

    @sqlite_shop.jobs.handler(timeout=HARDLY, max_attempts=1)
    def stuck() -> None:
        wait_for(sqlite_shop.may_end)

    sqlite_shop.add(stuck)
    worker = sqlite_shop.worker(concurrency=1)

    with pytest.raises(WorkerError, match="every slot"):
        worker.run_until_idle()
    with serve(worker, 0) as server:
        answers = get(server, "/healthz"), get(server, "/readyz")
    sqlite_shop.may_end.set()

    assert [status for status, _ in answers] == [503, 503]
    assert all(
        "every slot is held by a handler that ran past its timeout: stuck (job 1)" in said for _, said in answers
    )


def test_readiness_when_the_database_lets_nobody_in(postgresql_url: str, postgresql_server: str) -> None:
    """A worker whose database refuses connections is healthy and not ready, and a scrape still has its own figures."""
    shop = Shop(build_engine(postgresql_url)).create()
    name = shop.engine.url.database
    with shop.worker() as worker, serve(worker, 0) as server, administer(postgresql_server) as administrator:
        ready = get(server, "/readyz")
        administrator.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        refused = get(server, "/readyz")
        page = Figures(get(server, "/metrics")[1])
        healthy = get(server, "/healthz")
        administrator.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        again = get(server, "/readyz")

    shop.engine.dispose()
    assert (ready[0], refused[0], healthy[0], again[0]) == (200, 503, 200, 200)
    assert "the database does not answer within 2 s" in refused[1]
    assert (page("sqla_jobs_up"), page("sqla_jobs_ready"), page("sqla_jobs_worker_slots")) == ([0], [], [10])


def test_readiness_when_no_heartbeat_gets_through(sqlite_shop: Shop) -> None:
    """A worker whose last heartbeat is older than its lease is not ready, though it runs and the database answers."""
    with sqlite_shop.create().worker() as worker, serve(worker, 0) as server:
        fresh = get(server, "/readyz")
        machinery: Any = worker._machinery  # pyright: ignore[reportPrivateUsage]  # a lease takes a minute to run out
        machinery._heartbeat.last_beat -= 61
        old = get(server, "/readyz")
        healthy = get(server, "/healthz")

    assert (fresh[0], old[0], healthy[0]) == (200, 503, 200)
    assert "the last heartbeat got through 0:01:01" in old[1]


def test_page_has_the_metrics_of_the_app_too(sqlite_shop: Shop) -> None:
    """Counters that the app keeps in the default registry stand on the page; `name[]` picks; other paths are 404."""
    mails = Counter("shop_mails", "Mails sent by handlers.")
    mails.inc()
    worker = sqlite_shop.create().worker()

    with serve(worker, 0) as server:
        page = Figures(get(server, "/metrics")[1])
        picked = Figures(get(server, "/metrics?name[]=shop_mails_total&name[]=sqla_jobs_up")[1])
        elsewhere = get(server, "/")

    REGISTRY.unregister(mails)
    assert (page("shop_mails_total"), page("sqla_jobs_up")) == ([1], [1])
    assert sorted(family.name for family in picked.families) == ["shop_mails", "sqla_jobs_up"]
    assert elsewhere == (404, "here are /metrics, /healthz and /readyz\n")


def test_page_when_the_app_has_registered_the_worker_too(sqlite_shop: Shop) -> None:
    """Each metric is still named once, with one figure for the same labels: Prometheus refuses a page with two."""
    worker = sqlite_shop.create().worker()
    with closing(WorkerCollector(worker)) as collector, serve(worker, 0) as server:
        REGISTRY.register(collector)
        text = get(server, "/metrics")[1]
        REGISTRY.unregister(collector)

    assert text.count("# TYPE sqla_jobs_up ") == text.count("\nsqla_jobs_up{") == 1
    assert text.count("\nsqla_jobs_claimed_total{") == 1


def test_requests_leave_no_trace_on_the_terminal(sqlite_shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither a request, nor one that is no HTTP, nor a client that goes away prints a line."""
    with serve(sqlite_shop.create().worker(), 0) as server:
        get(server, "/healthz")
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"\x00\r\n\r\n")
            client.recv(1000)
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /heal")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        for thread in threading.enumerate():
            if "process_request" in thread.name and thread.ident is not None:
                thread.join(PATIENCE)

    assert capfd.readouterr() == ("", "")


def test_server_is_closed(shop: Shop) -> None:
    """Closing gives back the port, and the connection that figures came over; a second time it does nothing."""
    connections = Connections(shop.create().engine)
    worker = shop.worker()
    server = serve(worker, 0)
    get(server, "/metrics")
    open_while_served = len(connections.open)

    server.close()
    server.close()
    again = serve(worker, server.port)
    again.close()

    assert (open_while_served, len(connections.open), again.port) == (1, 0, server.port)


def test_server_where_it_cannot_listen(sqlite_shop: Shop) -> None:
    """A port that is taken, or an address that is not ours, is an error that names it, and what to do."""
    worker = sqlite_shop.create().worker()

    with (
        serve(worker, 0) as server,
        pytest.raises(ConfigurationError, match=rf"port {server.port} on 127.0.0.1 is taken"),
    ):
        serve(worker, server.port)
    with pytest.raises(ConfigurationError, match="port 0 on 192.0.2.1 can't be served: "):
        serve(worker, 0, host="192.0.2.1")
    with pytest.raises(InvalidOption, match="port is from 0 to 65535, and is 70000"):
        serve(worker, 70000)
    with pytest.raises(InvalidOption, match="port is an int, and is a str"):
        serve(worker, "9464")  # type: ignore[arg-type]


@contextmanager
def administer(url: str) -> Generator[Connection]:
    engine = build_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()
