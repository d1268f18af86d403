"""A program that forks while it uses its engine and runs a worker, and says what each side finds."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from sqla_jobs import WorkerError
from tests.engines import build_engine
from tests.runtime.app import App, Connections, Note

if TYPE_CHECKING:
    from collections.abc import Callable


def main(url: str) -> None:
    engine = build_engine(url)
    connections = Connections(engine)
    app = App(engine)
    taken: list[int] = []

    @app.jobs.handler
    def work(session: Session) -> None:
        session.execute(select(Note.id))
        taken.append(id(session.connection().connection.dbapi_connection))

    def run_here() -> str:
        app.add(work.using(queue="child"))
        app.run(queues=["child"])
        return "a connection of the parent's" if connections_before & set(taken) else "its own connections"

    def run_made_there() -> str:
        made_by_parent.run_until_idle()
        return "a connection of the parent's" if connections_before & set(taken) else "its own connections"

    def stop_there() -> str:
        try:
            running.stop()
        except WorkerError as error:
            return "refused, for the fork" if "this is a fork of it" in str(error) else str(error)
        return "stopped"

    with app.worker(queues=["running"]) as running:
        app.add(work.using(queue="running"))
        app.hear("done")
        # Nothing but this while the parent has threads: they may hold any lock at the moment of the fork.
        in_child("stop of the parent's running worker", stop_there)
        app.add(work.using(queue="running"))
        app.hear("done")
    made_by_parent = app.worker(queues=["parent"])
    app.add(work.using(queue="parent"))
    taken.clear()
    connections_before = connections.open
    in_child("worker made by the parent", run_made_there)
    in_child("worker made by the child", run_here)
    app.add(work.using(queue="parent"))
    made_by_parent.run_until_idle()
    say("parent", "goes on" if connections_before <= connections.open else "has lost connections")
    engine.dispose()


def in_child(what: str, act: Callable[[], str]) -> None:
    """Fork, have the child act and say what came of it, and wait for its end."""
    child = os.fork()
    if child == 0:
        try:
            say(what, act())
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def say(what: str, outcome: str) -> None:
    print(f"{what}: {outcome}", flush=True)  # noqa: T201  # the test reads it


if __name__ == "__main__":
    main(sys.argv[1])
