from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Engine, update
from sqlalchemy.ext.asyncio import async_sessionmaker

from sqla_jobs import Jobs
from sqla_jobs.prometheus import JobsCollector, WorkerCollector, looks, merged, serve
from sqla_jobs.prometheus.figures import TABLE
from sqla_jobs.testing import Clock
from tests.architecture.sources import ROOT
from tests.architecture.test_imports import WITHOUT_EXTRAS
from tests.engines import build_async_engine, build_engine
from tests.prometheus.shop import ALWAYS, HARDLY, ONCE, Base, Figures, Gate, Job, Schedule, Shop, get, scrape
from tests.runtime.app import PATIENCE, Connections, sync_url_of


def test_page_shows_what_the_table_holds_and_what_the_worker_did(engine: Engine) -> None:
    """A real worker's page has the figures of all that ended, and of all that is ready, known or not, due or later."""
    clock = Clock(Base.metadata)
    shop = Shop(engine, now=clock.now, schedule=Schedule).create()
    shop.add(shop.write, shop.write, shop.fail, shop.give_up)
    worker = shop.worker()
    worker.run_until_idle()
    shop.add(shop.write, *[shop.write.using(delay=timedelta(days=1))] * 2, shop.wait)
    with shop.sessions.begin() as session:
        session.execute(update(Job).where(Job.type == "wait").values(type="unheard"))
        session.add(Schedule(name="nightly", job_type="write", cron="0 2 * * *"))
        clock.advance(session, timedelta(minutes=10))

    with serve(worker, 0) as server:
        status, text = get(server, "/metrics")

    page = Figures(text)
    assert (status, page("sqla_jobs_up", registry="shop")) == (200, [1])
    assert page("sqla_jobs_ready", queue="default", type="write", known="true", due="true") == [1]
    assert page("sqla_jobs_ready", queue="default", type="write", known="true", due="false") == [2]
    assert page("sqla_jobs_ready", queue="slow", type="unheard", known="false", due="true") == [1]
    assert 600 <= page("sqla_jobs_oldest_ready_seconds", type="unheard", known="false")[0] < 600 + PATIENCE
    assert (page("sqla_jobs_dead", type="fail"), page("sqla_jobs_failed", type="give_up")) == ([1], [1])
    assert page("sqla_jobs_unfinished", attempts="0") == [4]
    assert page("sqla_jobs_schedules", state="enabled") == [1]
    assert page("sqla_jobs_ended_total", event="done", type="write") == [2]
    assert page("sqla_jobs_ended_total", event="dead", type="fail") == [1]
    assert page("sqla_jobs_ended_total", event="dead", type="write") == [0]
    assert page("sqla_jobs_handler_seconds_count", type="write") == [2]
    assert page("sqla_jobs_claimed_total") == [4]
    assert page("sqla_jobs_claim_seconds_sum")[0] > 0
    assert page("sqla_jobs_settle_seconds_count")[0] >= 3
    assert (page("sqla_jobs_worker_slots"), page("sqla_jobs_worker_healthy")) == ([10], [0])


def test_scrape_while_there_are_no_tables(shop: Shop, heard: list[str]) -> None:
    """A database that can't answer is `up 0` without any figure of the table, told once; then all is there again."""
    worker = shop.worker()
    with closing(WorkerCollector(worker, max_age=ALWAYS)) as collector:
        first, second = scrape(collector), scrape(collector)
        shop.create().add(shop.write)
        third = scrape(collector)

    assert [page("sqla_jobs_up") for page in (first, second, third)] == [[0], [0], [1]]
    assert not [family.name for family in first.families if family.name in {figure.name for figure in TABLE}]
    assert first("sqla_jobs_worker_slots") == [10]
    assert third("sqla_jobs_ready", type="write", due="true") == [1]
    assert [line.partition(":")[0] for line in heard] == [
        "no figures of registry 'shop' from the database",
        "figures of registry 'shop' come from the database again",
    ]


def test_scrapes_within_the_greatest_age(shop: Shop) -> None:
    """A storm of scrapes costs one look, and the figures stay those of that look until it is too old."""
    gate = Gate(shop.create().engine)
    with closing(JobsCollector(shop.jobs, shop.sessions, max_age=ONCE)) as collector:
        together = threading.Barrier(8)

        def storm(_: int) -> list[float]:
            together.wait(PATIENCE)
            return scrape(collector)("sqla_jobs_up")

        with ThreadPoolExecutor(8) as threads:
            ups = list(threads.map(storm, range(8)))
        looks_of_storm = gate.looks
        shop.add(shop.write)
        still = scrape(collector)
    with closing(JobsCollector(shop.jobs, shop.sessions, max_age=ALWAYS)) as collector:
        looked = [scrape(collector)("sqla_jobs_ready", due="true") for _ in range(2)]

    assert (ups, looks_of_storm) == ([[1]] * 8, 1)
    assert still("sqla_jobs_ready") == []
    assert looked == [[1], [1]]


def test_scrape_while_the_database_hangs(shop: Shop) -> None:
    """A scrape does not wait for ever, nor does a second look begin; when the database has answered, it shows."""
    gate = Gate(shop.create().engine)
    collector = JobsCollector(shop.jobs, shop.sessions, max_age=ONCE, within=HARDLY)
    gate.shut()

    hanging = [scrape(collector) for _ in range(3)]
    gate.wait_for_looks(1)
    looks_meanwhile = gate.looks
    gate.open()
    answered = scrape(collector)
    collector.close()

    assert [page("sqla_jobs_up") for page in hanging] == [[0]] * 3
    assert not [family for page in hanging for family in page.families if family.name != "sqla_jobs_up"]
    assert (answered("sqla_jobs_up"), looks_meanwhile, gate.looks) == ([1], 1, 1)


def test_scrape_while_a_migration_has_the_table_locked(postgresql_url: str, heard: list[str]) -> None:
    """A look gives up soon behind a lock on the whole table: whoever waits there has all others wait behind it."""
    engine = build_engine(postgresql_url)
    shop = Shop(engine).create()
    patient = timedelta(seconds=PATIENCE)

    with closing(JobsCollector(shop.jobs, shop.sessions, within=patient)) as collector, engine.connect() as migration:
        migration.exec_driver_sql("LOCK TABLE job IN ACCESS EXCLUSIVE MODE")
        page = scrape(collector)

    engine.dispose()
    assert page("sqla_jobs_up") == [0]
    assert "lock timeout" in heard[0]


def test_look_that_hangs_for_long_is_left_behind(sqlite_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute another look is tried on a new connection, and no third: they would pile up at the server."""
    gate, connections = Gate(sqlite_shop.create().engine), Connections(sqlite_shop.engine)
    collector = JobsCollector(sqlite_shop.jobs, sqlite_shop.sessions, max_age=ALWAYS, within=HARDLY)
    scrape(collector)
    gate.open()
    gate.shut()

    scrape(collector)
    monkeypatch.setattr(looks, "GIVEN_UP", 0.0)
    for _ in range(3):
        scrape(collector)
    gate.wait_for_looks(1 + 2)
    open_meanwhile = len(connections.open)
    collector.close()
    gate.open()

    assert (gate.looks, open_meanwhile, len(connections.open)) == (1 + 2, 2, 0)


def test_collector_of_an_app_with_async_sessions_only(async_url: str) -> None:
    """An app that has no sync engine has the same figures, with each async driver."""
    shop = Shop(build_engine(sync_url_of(async_url))).create()
    shop.add(shop.write)
    async_engine = build_async_engine(async_url)

    with closing(JobsCollector(shop.jobs, async_sessions=async_sessionmaker(async_engine))) as collector:
        page = scrape(collector)

    shop.engine.dispose()
    assert (page("sqla_jobs_up"), page("sqla_jobs_ready", type="write", due="true")) == ([1], [1])


def test_collectors_of_two_registries_on_one_page(sqlite_shop: Shop) -> None:
    """Merged, each metric is named once and the label `registry` tells them apart; unmerged, they are refused."""
    other = Jobs(Job, name="post")
    collectors = [JobsCollector(each, sqlite_shop.create().sessions) for each in (sqlite_shop.jobs, other)]
    sqlite_shop.add(sqlite_shop.write)
    page, refusing = CollectorRegistry(), CollectorRegistry()

    page.register(merged(*collectors))
    text = generate_latest(page).decode()
    refusing.register(collectors[0])
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        refusing.register(collectors[1])

    for collector in collectors:
        collector.close()
    assert text.count("# TYPE sqla_jobs_ready ") == text.count("# TYPE sqla_jobs_up ") == 1
    assert Figures(text)("sqla_jobs_ready", registry="shop", type="write", known="true", due="true") == [1]
    assert Figures(text)("sqla_jobs_ready", registry="post", type="write", known="false", due="true") == [1]


def test_import_without_the_extra() -> None:
    """Without prometheus-client the import says what to install."""
    program = WITHOUT_EXTRAS.format(blocked=("prometheus_client",)) + "import sqla_jobs.prometheus\n"

    imported = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )

    assert imported.returncode == 1
    assert "ImportError: sqla_jobs.prometheus needs prometheus-client: pip install 'sqla_jobs[prometheus]'" in (
        imported.stderr
    )
