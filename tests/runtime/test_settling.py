"""Ends of attempts that the database refuses to write."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.runtime.app import PATIENCE, App, Ear, Job, MakeEngine

if TYPE_CHECKING:
    from sqlalchemy import Engine

WHEN = "NEW.idempotency_key LIKE 'bad%' AND NEW.status IN ({statuses}) AND OLD.status = 'running'"

RAISES = {
    "postgresql": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON job FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse()
    """,
    "sqlite": "CREATE TRIGGER refuse BEFORE UPDATE ON job WHEN {when} BEGIN SELECT RAISE(ABORT, 'not this one'); END",
}


def refuse(engine: Engine, *statuses: str) -> None:
    """Let no running row whose key begins with `bad` have one of these statuses."""
    when = WHEN.format(statuses=", ".join(f"'{status}'" for status in statuses))
    with engine.begin() as connection:
        connection.exec_driver_sql(RAISES[engine.dialect.name].format(when=when).replace("%", "%%"))


@pytest.fixture(params=["postgresql", "sqlite"])
def app(request: pytest.FixtureRequest, make_engine: MakeEngine) -> App:
    """Give an app on an empty database, of each kind in turn."""
    return App(make_engine(request.getfixturevalue(f"{request.param}_url"))).create()


def test_completion_that_is_refused_fails_the_attempt_and_holds_up_no_other(app: App, ear: Ear) -> None:
    """The row says why, and the completions in the same batch are written."""
    begin = threading.Barrier(6)

    @app.jobs.handler(max_attempts=1)
    def work() -> None:
        begin.wait(PATIENCE)  # all end at once, and so in one batch

    ids = {key: app.add(work.using(key=key)) for key in ("good1", "bad1", "good2", "good3", "bad2", "good4")}
    refuse(app.engine, "done")

    app.run(concurrency=6)

    rows: dict[str, Job] = {key: app.row(id_) for key, id_ in ids.items()}
    assert {row.status for key, row in rows.items() if key.startswith("good")} == {"done"}
    for key in ("bad1", "bad2"):
        assert rows[key].status == "dead"
        assert "not this one" in (rows[key].last_error or "")
        assert len(ear.lines(f"job {ids[key]} can't be settled", level=30)) == 1
    assert ear.lines("does not serve") == []


def test_end_that_is_refused_altogether_is_left_to_the_reaper(app: App, ear: Ear) -> None:
    """A worker does not try for ever, nor keep the lease: others go on, and it ends when it is asked to."""

    @app.jobs.handler
    def work() -> None: ...

    bad, good = app.add(work.using(key="bad")), app.add(work.using(key="good"))
    refuse(app.engine, "done", "ready", "dead")

    app.run()

    assert app.row(good).status == "done"
    assert (app.row(bad).status, app.row(bad).attempts) == ("running", 1)
    assert len(ear.lines(f"job {bad} can't be settled", level=30)) == 1
