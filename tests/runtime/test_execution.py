from __future__ import annotations

import gc
from contextvars import ContextVar
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, literal, select, text
from sqlalchemy.orm import Session

from sqla_jobs import GiveUp, Retry, Snooze, enqueue
from tests.runtime.app import AT_ONCE, App, Note


def test_plain_handler_when_it_returns(app: App) -> None:
    """A handler without a session gets its arguments, and its job is done."""
    calls: list[tuple[int, str]] = []

    @app.jobs.handler
    def greet(number: int, name: str = "nobody") -> None:
        calls.append((number, name))

    first, second = app.add(greet, 1), app.add(greet, number=2, name="Ada")

    app.run()

    assert sorted(calls) == [(1, "nobody"), (2, "Ada")]
    assert [app.row(job).status for job in (first, second)] == ["done", "done"]
    assert app.heard() == ["done", "done"]


def test_session_handler_when_it_returns(app: App) -> None:
    """What a handler writes through its session stands, beside a row that says done, by whom, and when."""

    @app.jobs.handler
    def write(session: Session, text: str) -> None:
        session.add(Note(text=text))

    job = app.add(write, "written")
    worker = app.worker()

    worker.run_until_idle()

    row = app.row(job)
    assert app.notes() == ["written"]
    assert (row.status, row.attempts, row.claims, row.locked_by, row.locked_until) == ("done", 1, 1, worker.name, None)
    assert row.started_at is not None
    assert row.finished_at is not None
    assert row.created_at <= row.run_at <= row.started_at <= row.finished_at


def test_session_handler_when_it_commits_settles_in_the_same_transaction(app: App) -> None:
    """The writes and the completion are one commit: before it the session sees both, and everybody else neither."""
    seen: list[tuple[list[Any], list[Any]]] = []

    @app.jobs.handler
    def write(session: Session) -> None:
        session.add(Note(text="written"))
        event.listen(session, "before_commit", look)

    def look(session: Session) -> None:
        both = "SELECT status, (SELECT count(*) FROM note) FROM job"
        other = app.engine.raw_connection()
        cursor = other.cursor()
        cursor.execute(both)
        seen.append(([*session.execute(text(both)).one()], [*(cursor.fetchone() or ())]))
        other.close()

    app.add(write)

    app.run()

    assert seen == [(["done", 1], ["running", 0])]
    assert (app.notes(), app.statuses()) == (["written"], ["done"])


def test_session_handler_when_it_raises_after_writing(app: App) -> None:
    """A handler that raises leaves none of its writes, flushed or not, and an attempt that says why."""

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        session.add(Note(text="flushed"))
        session.flush()
        session.add(Note(text="pending"))
        raise RuntimeError("out of paper")

    job = app.add(write)

    app.run()

    row = app.row(job)
    assert app.notes() == []
    assert (row.status, row.attempts) == ("dead", 1)
    assert "RuntimeError: out of paper" in (row.last_error or "")
    assert "in write" in (row.last_error or "")
    assert app.heard() == ["dead"]


def test_handler_when_it_raises_then_succeeds(app: App) -> None:
    """A failed attempt retries after its backoff; the row keeps what went wrong, by attempt and by worker."""
    attempts: list[int] = []

    @app.jobs.handler(backoff=AT_ONCE)
    def write(session: Session) -> None:
        attempts.append(len(attempts) + 1)
        session.add(Note(text=f"attempt {attempts[-1]}"))
        session.flush()
        if len(attempts) < 3:
            raise ValueError(f"not yet, at {attempts[-1]}")

    job = app.add(write)
    worker = app.worker()

    worker.run_until_idle()

    row = app.row(job)
    assert app.notes() == ["attempt 3"]
    assert (row.status, row.attempts, row.claims) == ("done", 3, 3)
    assert [(error["attempt"], error["worker"]) for error in row.errors] == [(1, worker.name), (2, worker.name)]
    assert "ValueError: not yet, at 2" in row.errors[1]["error"]
    assert all(datetime.fromisoformat(error["started_at"]).utcoffset() == timedelta(0) for error in row.errors)
    assert app.heard() == ["retried", "retried", "done"]


def test_handler_when_attempts_are_used_up(app: App) -> None:
    """After its last attempt a job is dead, and is not run again."""
    runs: list[None] = []

    @app.jobs.handler(max_attempts=3, backoff=AT_ONCE)
    def fail() -> None:
        runs.append(None)
        raise RuntimeError("no")

    job = app.add(fail)

    app.run()

    row = app.row(job)
    assert len(runs) == 3
    assert (row.status, row.attempts, len(row.errors)) == ("dead", 3, 3)
    assert row.finished_at is not None


@pytest.mark.parametrize("has_session", [True, False], ids=["session", "plain"])
def test_retry_when_raised(app: App, has_session: bool) -> None:
    """`Retry` uses the attempt, rolls back, stores its reason, and runs the job after its own delay."""

    @app.jobs.handler(name="plain")
    def plain() -> None:
        raise Retry("the printer is busy", delay=timedelta(hours=1))

    @app.jobs.handler(name="writing")
    def writing(session: Session) -> None:
        session.add(Note(text="written"))
        session.flush()
        plain()

    job = app.add(writing) if has_session else app.add(plain)

    app.run()

    row = app.row(job)
    assert app.notes() == []
    assert (row.status, row.attempts, row.locked_by, row.finished_at) == ("ready", 1, None, None)
    assert row.last_error == "Retry: the printer is busy"
    assert timedelta(minutes=59) < row.run_at - row.created_at < timedelta(minutes=61)
    assert app.heard() == ["retried"]


def test_snooze_when_raised(app: App) -> None:
    """`Snooze` uses no attempt, is no error, rolls back, and runs the job after its delay, as often as it likes."""
    runs: list[None] = []

    @app.jobs.handler(max_attempts=1)
    def wait(session: Session) -> None:
        runs.append(None)
        session.add(Note(text=f"run {len(runs)}"))
        if len(runs) < 4:
            raise Snooze(delay=timedelta(0))
        raise Snooze(delay=timedelta(hours=1))

    job = app.add(wait)

    app.run()

    row = app.row(job)
    assert (len(runs), app.notes()) == (4, [])
    assert (row.status, row.attempts, row.claims, row.last_error, row.errors) == ("ready", 0, 4, None, [])
    assert timedelta(minutes=59) < row.run_at - row.created_at < timedelta(minutes=61)
    assert app.heard() == ["snoozed"] * 4


def test_give_up_when_raised(app: App) -> None:
    """`GiveUp` ends the job as failed at its first attempt, with the reason, and without its writes."""

    @app.jobs.handler
    def stop(session: Session) -> None:
        session.add(Note(text="written"))
        session.flush()
        raise GiveUp("no such customer")

    job = app.add(stop)

    app.run()

    row = app.row(job)
    assert app.notes() == []
    assert (row.status, row.attempts, row.last_error) == ("failed", 1, "GiveUp: no such customer")
    assert row.finished_at is not None
    assert app.heard() == ["failed"]


def test_result_when_it_is_json(app: App) -> None:
    """What a handler returns is stored, as JSON, with a session and without."""

    @app.jobs.handler
    def plain(number: int) -> dict[str, Any]:
        return {"number": number, "on": date(2026, 2, 1), "tags": ("a", "b")}

    @app.jobs.handler
    def counting(session: Session) -> int:
        return session.scalars(select(literal(41))).one() + 1

    jobs = app.add(plain, 7), app.add(counting)

    app.run()

    assert [app.row(job).result for job in jobs] == [{"number": 7, "on": "2026-02-01", "tags": ["a", "b"]}, 42]


@pytest.mark.parametrize("value", [object(), float("nan"), "\x00", "x" * 70_000], ids=["object", "nan", "nul", "huge"])
def test_result_when_it_cannot_be_stored(app: App, value: object) -> None:
    """A result that JSON can't carry is left out, with a note: the work is done, and its writes stand."""

    @app.jobs.handler
    def write(session: Session) -> object:
        session.add(Note(text="written"))
        return value

    job = app.add(write)

    app.run()

    row = app.row(job)
    assert app.notes() == ["written"]
    assert (row.status, row.result, row.errors) == ("done", None, [])
    assert (row.last_error or "").startswith("the result was not stored: ")
    assert app.heard() == ["done"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["plain", "session", "async"])
def test_handler_when_it_returns_a_coroutine(app: App, kind: str) -> None:
    """A coroutine that nobody awaits has done nothing: the attempt has failed, and its error asks for `async def`."""
    ran: list[str] = []

    async def work() -> None:
        ran.append("work")

    def plain() -> Any:
        return work()

    def with_session(session: Session) -> Any:
        session.add(Note(text="written"))
        return work()

    async def forgetful() -> Any:
        return work()

    function: Any = {"plain": plain, "session": with_session, "async": forgetful}[kind]
    job = app.add(app.jobs.handler(name="work", max_attempts=2, backoff=AT_ONCE)(function))

    app.run(within=timedelta(seconds=1))
    gc.collect()

    row = app.row(job)
    assert (row.status, row.attempts, ran, app.notes()) == ("dead", 2, [], [])
    assert "write the handler itself as `async def`" in str(row.last_error)
    assert app.heard() == ["retried", "dead"]


def test_payload_when_it_is_no_object(app: App) -> None:
    """A row whose payload somebody has broken is a failed attempt, and holds up nothing."""

    @app.jobs.handler(max_attempts=1)
    def greet(name: str) -> None: ...

    broken, whole = app.add(greet, "Ada"), app.add(greet, "Bob")
    with app.sessions.begin() as session:
        row = session.get_one(app.jobs.model, broken)
        row.payload = ["Ada"]  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]

    app.run()

    assert [app.row(job).status for job in (broken, whole)] == ["dead", "done"]
    assert "PayloadError" in (app.row(broken).last_error or "")


def test_handler_when_it_enqueues(app: App) -> None:
    """A job that a handler enqueues through its session exists exactly when the handler's attempt is done."""
    attempts: list[None] = []

    @app.jobs.handler
    def child(text: str) -> None: ...

    @app.jobs.handler(backoff=AT_ONCE)
    def parent(session: Session) -> None:
        attempts.append(None)
        enqueue(session, child, text=f"of attempt {len(attempts)}")
        if len(attempts) == 1:
            raise RuntimeError("once")

    app.add(parent)

    app.run()

    with app.sessions() as session:
        rows = session.scalars(select(app.jobs.model).order_by(app.jobs.model.id)).all()
    assert [(row.type, row.status) for row in rows] == [("parent", "done"), ("child", "done")]
    assert rows[1].payload == {"text": "of attempt 2"}


def test_context_variable_when_a_handler_sets_it(app: App) -> None:
    """What one job puts into a ContextVar, the next job in the same thread doesn't see."""
    user: ContextVar[str] = ContextVar("user", default="nobody")
    seen: list[str] = []

    @app.jobs.handler
    def act(name: str) -> None:
        seen.append(user.get())
        user.set(name)

    for name in ("Ada", "Bob", "Cid"):
        app.add(act, name)

    app.run(concurrency=1)

    assert seen == ["nobody"] * 3
