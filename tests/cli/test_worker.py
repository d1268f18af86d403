from __future__ import annotations

import logging
import re
import signal
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from tests.cli import office
from tests.cli.calls import Calls, add_jobs, statuses
from tests.examples.programs import read_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Put the loggers back as they were."""
    root, ours = logging.getLogger(), logging.getLogger("sqla_jobs")
    former, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = former
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_worker_runs_what_is_due_in_its_queues(postgresql_office: Engine, calls: Calls) -> None:
    """With `--until-idle` the program ends when nothing is due, and its document counts what it has done."""
    crash: dict[str, Any] = {"type": "crash", "queue": "mail", "max_attempts": 1, "payload": {}}
    ids = add_jobs(postgresql_office, {}, crash, {"queue": "other"})

    ended = calls.program("worker", "--until-idle", "--queue", "mail", "--concurrency", "2", "--json")

    assert ended.code == 0, ended
    assert [statuses(postgresql_office)[each] for each in ids] == ["done", "dead", "ready"]
    assert ended.document["claimed"] == 2
    assert ended.document["ends"] == [
        {"event": "dead", "type": "crash", "count": 1},
        {"event": "done", "type": "send", "count": 1},
    ]
    assert "serves queues mail, 2 at a time" in ended.stderr
    assert "hunter2" not in ended.stderr


def test_worker_serves_its_page_and_drains_at_sigterm(sqlite_office: Engine, calls: Calls) -> None:
    """Probes and Prometheus find it where it says; SIGTERM ends it with 0, and its log is on stderr."""
    pytest.importorskip("prometheus_client")
    with calls.started("worker", "--metrics-port", "0", "--log-level", "info") as worker:
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+", read_until(worker.stdout, "metrics on "))
        add_jobs(sqlite_office, {})
        read_until(worker.stdout, "job 1 send done")

        pages = [read(f"{url}/{page}") for page in ("metrics", "healthz", "readyz")]
        worker.send_signal(signal.SIGTERM)
        read_until(worker.stdout, "has stopped")

        assert worker.wait() == 0
    assert [status for status, _ in pages] == [200, 200, 200]
    assert 'sqla_jobs_up{registry="office"} 1.0' in pages[0][1]


def read(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url) as page:  # noqa: S310  # our own worker's
        return page.status, page.read().decode()


def test_worker_of_old_tables_ends_with_the_remedy(sqlite_office: Engine, calls: Calls) -> None:
    """Columns that this release needs are no outage to wait for: the program says so and ends with 1."""
    with sqlite_office.begin() as connection:
        connection.execute(text("ALTER TABLE job DROP COLUMN refunds"))

    ended = calls.program("worker")

    assert ended.code == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: worker office:")
    assert "table job lacks columns that this version needs (refunds): alembic upgrade head" in last


def test_worker_waits_for_tables_that_are_not_there_yet(sqlite_office: Engine, calls: Calls) -> None:
    """It may be started before its database is ready: the log says what is missing, and Ctrl-C ends it with 0."""
    office.Base.metadata.drop_all(sqlite_office)

    with calls.started("worker") as worker:
        # Of whichever of its parts was first.
        assert "no such table: " in read_until(worker.stdout, "; waiting for its tables: alembic upgrade head")
        worker.send_signal(signal.SIGINT)
        read_until(worker.stdout, "has stopped")

        assert worker.wait() == 0


@pytest.mark.usefixtures("own_logging", "sqlite_office")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--log-level", "loud"], "--log-level is one of DEBUG, INFO, WARNING, ERROR, and is 'loud'"),
        (["--concurrency", "0"], "--concurrency"),
        (["--queue", ""], "queue is empty"),
        (["--metrics-port", "70000"], "--metrics-port"),
        (["--metrics-port", "0", "--metrics-host", "no.such.host.invalid"], "can't be served"),
    ],
)
def test_wrong_words_are_refused(words: list[str], says: str, calls: Calls) -> None:
    """No worker is started with settings that it can't have."""
    ended = calls("worker", "--until-idle", *words)

    assert (ended.code, ended.stdout) == (2, "")
    assert says in " ".join(ended.stderr.replace("│", " ").split())


@pytest.mark.usefixtures("own_logging")
def test_logging_of_the_app_is_left_alone(sqlite_office: Engine, calls: Calls) -> None:
    """Where the app has set up its log, only the level of our own logger is changed."""
    handlers = logging.getLogger().handlers[:]
    add_jobs(sqlite_office, {})
    assert handlers

    ended = calls("worker", "--until-idle", "--log-level", "error")

    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    assert logging.getLogger().handlers == handlers
    assert logging.getLogger("sqla_jobs").level == logging.ERROR
    assert statuses(sqlite_office) == {1: "done"}
