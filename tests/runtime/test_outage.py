from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqla_jobs.schema.trouble import is_outage
from tests.runtime.app import SOON, App, Base, MakeEngine, Note

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.runtime.app import Ear


def test_tables_when_they_are_created_after_the_start(engine: Engine, ear: Ear) -> None:
    """A worker that was started before its table exists says so once, waits, and works when it is there."""
    app = App(engine)

    @app.jobs.handler
    def work() -> None: ...

    with app.worker():
        ear.wait_for("the database does not serve the")
        Base.metadata.create_all(engine)
        app.add(work)
        app.hear("done")
        ear.wait_for("the database is back")

    assert len(ear.lines("the database does not serve", level=30)) == 1


@pytest.mark.parametrize("state", ["53000", "53100", "53200", "53300", "53400"])
def test_attempt_when_the_server_is_out_of_something(pg_app: App, state: str) -> None:
    """A full disk, too little memory, a limit of the server's: the attempt is refunded, and the job runs again."""
    runs: list[None] = []

    @pg_app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        runs.append(None)
        if len(runs) == 1:
            session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '{state}'; END $$"))

    job = pg_app.add(write)

    pg_app.run(within=SOON)

    row = pg_app.row(job)
    assert (row.status, row.attempts, row.refunds) == ("done", 1, 1)
    assert pg_app.heard() == ["interrupted", "done"]


def test_attempt_when_the_disk_of_a_file_is_full(sqlite_url: str, make_engine: MakeEngine) -> None:
    """The same for SQLite, whose file can grow no more."""
    app = App(make_engine(sqlite_url)).create()
    runs: list[None] = []

    @app.jobs.handler(max_attempts=1)
    def write(session: Session) -> None:
        runs.append(None)
        pages = 1 if len(runs) == 1 else 1_000_000
        session.execute(text(f"PRAGMA max_page_count = {pages}"))
        session.add(Note(text="x" * 100_000))

    job = app.add(write)

    app.run(within=SOON)

    row = app.row(job)
    assert (row.status, row.attempts, row.refunds) == ("done", 1, 1)
    assert app.heard() == ["interrupted", "done"]


def test_attempt_when_a_migration_changes_a_prepared_statement(
    pg_app: App, postgresql_url: str, make_engine: MakeEngine
) -> None:
    """Statements that a driver had prepared fail once after a migration: that costs no attempt."""
    other = make_engine(postgresql_url)  # psycopg prepares anew by itself where it has altered a table itself
    runs: list[None] = []

    @pg_app.jobs.handler(max_attempts=1)
    def read(session: Session) -> None:
        runs.append(None)
        for _ in range(10):
            session.execute(text("SELECT * FROM note")).all()
            session.commit()
        if len(runs) == 1:
            with other.begin() as connection:
                connection.exec_driver_sql("ALTER TABLE note ADD COLUMN extra integer")
        session.execute(text("SELECT * FROM note")).all()

    job = pg_app.add(read)

    pg_app.run(within=SOON)

    row = pg_app.row(job)
    assert (row.status, row.attempts, row.refunds) == ("done", 1, 1)
    assert pg_app.heard() == ["interrupted", "done"]


def test_async_attempt_when_a_migration_changes_a_prepared_statement(async_app: App) -> None:
    """The same for async drivers, one of which prepares everything. SQLite prepares anew by itself."""
    runs: list[None] = []
    statement = text("SELECT * FROM note")

    @async_app.jobs.handler(max_attempts=1)
    async def read(session: AsyncSession) -> None:
        runs.append(None)
        for _ in range(10):
            (await session.execute(statement)).all()
            await session.commit()
        if len(runs) == 1:
            with async_app.engine.begin() as connection:
                connection.exec_driver_sql("ALTER TABLE note ADD COLUMN extra integer")
        (await session.execute(statement)).all()

    job = async_app.add(read)

    async_app.run(within=SOON)

    row = async_app.row(job)
    refunds = int(async_app.engine.dialect.name == "postgresql")
    assert (row.status, row.attempts, row.refunds) == ("done", 1, refunds)


@pytest.mark.parametrize(
    ("state", "said", "is_one"),
    [
        ("0A000", "cached plan must not change result type", True),
        ("0A000", "cannot execute that in a trigger", False),
        ("42601", "cached plan must not change result type", False),
        ("53100", "could not extend file", True),
        ("54000", "statement too complex", False),
        (None, "database or disk is full", True),
    ],
)
def test_error_of_a_driver_is_told_apart(state: Any, said: str, is_one: bool) -> None:
    """The state decides where there is one; what can't be done at all is no outage."""
    error: Any = Exception(said)
    error.sqlstate = state

    assert is_outage(error) is is_one
