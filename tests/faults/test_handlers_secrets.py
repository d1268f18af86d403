"""Secrets in arguments, in errors, and in the URLs of databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text, update
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import GiveUp, Worker
from tests.runtime.app import AT_ONCE, App, Job, MakeEngine, Note

if TYPE_CHECKING:
    from tests.runtime.app import Ear

SECRET = "hunter2-is-no-password"  # noqa: S105  # it is looked for where it must not be


def test_f37_secrets_of_a_handler_that_fails_are_neither_stored_nor_logged(app: App, ear: Ear) -> None:
    """No payload, local variable, statement parameter or password in a URL gets into the logs or onto the row."""

    @app.jobs.handler(max_attempts=1)
    def leak(session: Session, card: str, how: str) -> None:
        token = card.upper().lower()
        if how == "parameter":
            session.execute(text("SELECT * FROM missing WHERE token = :token"), {"token": token})
        if how == "flush":
            session.add(Note(id=1, text=token))
            session.flush()
            session.execute(text("INSERT INTO note (id, text) VALUES (1, :token)"), {"token": token})
        if how == "url":
            raise ConnectionError(f"can't reach https://api:{token}@bank.example/charge")
        if how == "cause":
            try:
                session.execute(text("SELECT * FROM missing WHERE token = :token"), {"token": token})
            except Exception as error:
                raise RuntimeError("no charge") from error
        raise RuntimeError("declined")

    hows = ["parameter", "flush", "url", "cause", "local"]
    jobs = [app.add(leak, SECRET, how) for how in hows]

    app.run()

    stored = [f"{row.last_error} {row.errors}" for row in map(app.row, jobs)]
    assert app.statuses() == ["dead"] * 5
    assert [how for how, text in zip(hows, stored, strict=True) if SECRET in text] == []
    assert ear.lines(SECRET) == []
    assert not any(SECRET in str(record.exc_info) for record in ear.records)


@pytest.mark.parametrize("how", ["taken", "refused", "null", "connection string"])
def test_f37_secret_in_what_a_driver_says_is_neither_stored_nor_logged(app: App, ear: Ear, how: str) -> None:
    """PostgreSQL quotes the values of a row that it refuses, and drivers their connection strings."""
    with app.engine.begin() as connection:
        connection.execute(text("CREATE TABLE card (token VARCHAR(40) UNIQUE, n INTEGER NOT NULL CHECK (n > 0))"))
        connection.execute(text("INSERT INTO card VALUES (:token, 1)"), {"token": SECRET})

    @app.jobs.handler(max_attempts=1)
    def leak(session: Session, card: str) -> None:
        if how == "connection string":
            raise ConnectionError(f"no answer: host=db user=shop password={card} dbname=shop")
        token, n = {"taken": (card, 1), "refused": (f"{card}!", 0), "null": (f"{card}!", None)}[how]
        session.execute(text("INSERT INTO card VALUES (:token, :n)"), {"token": token, "n": n})

    job = app.add(leak, SECRET)

    app.run()

    row = app.row(job)
    assert row.status == "dead"
    assert SECRET not in f"{row.last_error} {row.errors}"
    assert ear.lines(SECRET) == []


def test_f37_argument_that_does_not_fit_is_named_and_not_shown(app: App, ear: Ear) -> None:
    """The error about an argument that doesn't fit names it, and shows not its value."""

    @app.jobs.handler(max_attempts=1)
    def charge(card: int) -> None: ...

    job = app.add(charge, 1)
    with app.sessions.begin() as session:
        session.execute(update(Job).values(payload={"card": SECRET}))

    app.run()

    assert app.row(job).status == "dead"
    assert "'card'" in (app.row(job).last_error or "")
    assert SECRET not in (app.row(job).last_error or "")
    assert ear.lines(SECRET) == []


def test_f37_password_of_a_database_that_is_away_is_not_logged(ear: Ear, make_engine: MakeEngine) -> None:
    """The password of a database that can't be reached is in no log line, at whatever level."""
    url = f"postgresql+psycopg://shop:{SECRET}@/shop?host=/nonexistent"
    app = App(make_engine(url))

    @app.jobs.handler
    def work() -> None: ...

    with app.worker(listen=url):
        ear.wait_for("the database does not serve")

    assert ear.lines(SECRET) == []
    assert not any(SECRET in repr(record.args) for record in ear.records)


def test_f37_filter_of_the_apps_sees_every_error_first(engine: Engine, ear: Ear) -> None:
    """The app's own filter sees every error text before it is stored or logged."""

    def hide(error: str) -> str:
        return error.replace(SECRET, "[card]")

    app = App(engine, redact=hide).create()

    @app.jobs.handler(max_attempts=2, backoff=AT_ONCE)
    def charge(card: str) -> None:
        if app.row(1).attempts == 2:
            raise GiveUp(f"declined: {card}")
        raise ValueError(f"bad card {card}")

    job = app.add(charge, SECRET)

    app.run()

    row = app.row(job)
    assert row.last_error == "GiveUp: declined: [card]"
    assert "ValueError: bad card [card]" in row.errors[0]["error"]
    assert SECRET not in str(row.errors)
    assert ear.lines(SECRET) == []


def test_f37_filter_that_fails_shows_nothing(engine: Engine, ear: Ear) -> None:
    """A filter that fails shows nothing but the error's class, and the attempt is recorded."""

    def broken(error: str) -> str:
        raise KeyError(error)

    app = App(engine, redact=broken).create()

    @app.jobs.handler(max_attempts=1)
    def charge(card: str) -> None:
        raise ValueError(f"bad card {card}")

    job = app.add(charge, SECRET)

    app.run()

    row = app.row(job)
    assert row.status == "dead"
    assert row.last_error == "ValueError (its text is withheld: the redact function raised KeyError)"
    assert ear.lines(SECRET) == []


def test_f37_banner_of_a_worker_shows_no_url(ear: Ear, sqlite_url: str, make_engine: MakeEngine) -> None:
    """What a worker logs at start and stop shows its name, queues and slots, and no URL."""
    app = App(make_engine(sqlite_url)).create()

    @app.jobs.handler
    def work() -> None: ...

    Worker(app.jobs, sessionmaker(app.engine), queues=["mail", "slow"], name="shop", concurrency=3).run_until_idle()

    assert len(ear.lines("worker shop:")) == 3
    assert len(ear.lines("serves queues mail, slow, 3 at a time")) == 1
    assert ear.lines("sqlite") == []
