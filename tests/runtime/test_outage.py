from __future__ import annotations

from typing import TYPE_CHECKING

from tests.runtime.app import App, Base

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
