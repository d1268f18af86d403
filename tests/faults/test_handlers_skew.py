"""Workers of two releases at one table."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, Engine, event, select

from sqla_jobs import stats
from sqla_jobs.runtime import warden
from tests.runtime.app import LONG, Job

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.runtime.app import App


@contextmanager
def dispatched() -> Generator[list[str]]:
    """Hear what the part of a worker sends that looks for jobs."""
    sent: list[str] = []

    def hear(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if threading.current_thread().name == "sqla_jobs dispatcher":
            sent.append(statement)

    event.listen(Engine, "before_cursor_execute", hear)
    yield sent
    event.remove(Engine, "before_cursor_execute", hear)


def test_f43_type_that_a_worker_does_not_know_waits_for_one_that_does(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs cost no attempt, no look of their own and nobody's turn; figures tell of them, and then they run."""
    # On a busy machine what was claimed ahead would be given back, which is an event, too.
    monkeypatch.setattr(warden, "LONGEST_LOCAL_WAIT", LONG)
    newer = app.registry()
    ran: list[str] = []

    @newer.handler(name="a")
    def a_in_newer() -> None: ...

    @newer.handler
    def b() -> None:
        ran.append("b")

    @app.jobs.handler
    def a() -> None:
        ran.append("a")

    for _ in range(50):
        app.add(b)
        app.add(a)

    with dispatched() as sent, app.worker(concurrency=2, poll_interval=LONG):
        for _ in range(50):
            app.hear("done")
        sent.clear()
        for _ in range(10):
            app.add(a)
            app.hear("done")

    with app.sessions() as session:
        untouched = session.execute(select(Job.status, Job.attempts, Job.claims, Job.last_error).where(Job.type == "b"))
        figures = stats(session, app.jobs)
        lanes = {lane.type: (lane.is_known, lane.due) for lane in figures.lanes}
        assert [*untouched] == [("ready", 0, 0, None)] * 50
    assert (figures.unknown, lanes) == (50, {"b": (False, 50)})
    assert ran == ["a"] * 60
    assert 10 <= len(sent) <= 100  # it looks for work when it is woken, and not over and over

    app.run(newer)

    assert ran[60:] == ["b"] * 50
    assert app.statuses() == ["done"] * 110


@pytest.mark.parametrize(
    ("older", "newer", "says"),
    [
        ("amount, currency", "amount", "'currency' of handler 'charge' does not exist"),
        ("amount", "amount, currency", "'currency' of handler 'charge' is missing"),
        ("amount", "sum", "'amount' of handler 'charge' does not exist"),
        ("amount", "amount: str", "'amount' of handler 'charge' is an int"),
    ],
    ids=["too many", "too few", "renamed", "other type"],
)
def test_f43_arguments_of_another_signature_are_a_failed_attempt(app: App, older: str, newer: str, says: str) -> None:
    """The handler is not called, the error names the argument, and another try is left for a release that fits."""
    runs: list[int] = []

    def charge(parameters: str) -> Any:
        source: dict[str, Any] = {}
        exec(f"def charge({parameters}): runs.append(1)", {"runs": runs}, source)  # noqa: S102  # our own text
        return source["charge"]

    stored = app.registry()
    job = app.add(stored.handler(charge(older)), **dict.fromkeys(older.split(", "), 1))
    app.jobs.handler(backoff=lambda _: timedelta(hours=1))(charge(newer))

    app.run()

    row = app.row(job)
    assert runs == []
    assert (row.status, row.attempts, app.heard()) == ("ready", 1, ["retried"])
    assert "PayloadError" in (row.last_error or "")
    assert says in (row.last_error or "")
