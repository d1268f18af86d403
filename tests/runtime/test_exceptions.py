from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from tests.runtime.app import AT_ONCE, App, Note

if TYPE_CHECKING:
    from collections.abc import Callable


class Abort(BaseException):
    """What an app may raise past `except Exception`."""


ENDINGS = {
    "SystemExit: 0": lambda: sys.exit(0),
    "SystemExit: 3": lambda: sys.exit(3),
    "KeyboardInterrupt": lambda: throw(KeyboardInterrupt()),
    "CancelledError": lambda: throw(asyncio.CancelledError()),
    "GeneratorExit": lambda: throw(GeneratorExit()),
    "StopIteration": lambda: throw(StopIteration()),
    "Abort": lambda: throw(Abort()),
}


def throw(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("name", list(ENDINGS))
def test_exception_when_a_handler_raises_it(app: App, name: str) -> None:
    """Whatever a handler raises is a failed attempt that bears its class's name; those behind it run."""
    end: Callable[[], object] = ENDINGS[name]

    @app.jobs.handler(max_attempts=2, backoff=AT_ONCE)
    def plain() -> None:
        end()

    @app.jobs.handler(max_attempts=2, backoff=AT_ONCE)
    def writing(session: Session) -> None:
        session.add(Note(text="written"))
        session.flush()
        end()

    @app.jobs.handler(max_attempts=2, backoff=AT_ONCE)
    async def awaited() -> None:
        end()

    @app.jobs.handler
    def ordinary() -> None: ...

    @app.jobs.handler
    async def ordinary_async() -> None: ...

    bad = [app.add(plain), app.add(writing), app.add(awaited)]
    for _ in range(2):
        app.add(ordinary)
        app.add(ordinary_async)

    app.run(concurrency=1)

    rows = [app.row(job) for job in bad]
    assert app.notes() == []
    assert [(row.status, row.attempts) for row in rows] == [("dead", 2)] * 3
    assert [name.partition(":")[0] in (row.last_error or "") for row in rows] == [True] * 3
    assert app.count("done") == 4


def test_task_when_the_handler_cancels_its_own(app: App) -> None:
    """A handler that cancels its own task has failed, like any other; the loop goes on."""

    @app.jobs.handler(max_attempts=1)
    async def give_in() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    @app.jobs.handler
    async def ordinary() -> str:
        return "ran"

    cancelled, other = app.add(give_in), app.add(ordinary)

    app.run()

    assert app.row(cancelled).status == "dead"
    assert "CancelledError" in (app.row(cancelled).last_error or "")
    assert app.row(other).result == "ran"


@pytest.mark.parametrize("name", ["SystemExit: 3", "KeyboardInterrupt", "Abort"])
def test_exception_when_a_task_of_a_handler_raises_it(app: App, name: str) -> None:
    """A task that an async handler starts may raise anything: it takes the event loop of the others with it never."""
    end: Callable[[], object] = ENDINGS[name]

    @app.jobs.handler(max_attempts=1)
    async def parent() -> None:
        async def child() -> None:
            end()

        await asyncio.gather(child(), asyncio.Event().wait())

    @app.jobs.handler
    async def ordinary() -> None: ...

    job, other = app.add(parent), app.add(ordinary)

    app.run(concurrency=1)

    assert app.row(job).status == "dead"
    assert name.partition(":")[0] in (app.row(job).last_error or "")
    assert app.row(other).status == "done"


def test_exception_when_a_callback_of_a_handler_raises_it(app: App) -> None:
    """What a handler schedules on the event loop may call `sys.exit`, too."""

    @app.jobs.handler
    async def schedule() -> None:
        ticked = asyncio.Event()
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        asyncio.get_running_loop().call_soon(ticked.set)
        await ticked.wait()

    @app.jobs.handler
    async def ordinary() -> None: ...

    job, other = app.add(schedule), app.add(ordinary)

    app.run(concurrency=1)

    assert [app.row(job).status, app.row(other).status] == ["done", "done"]
