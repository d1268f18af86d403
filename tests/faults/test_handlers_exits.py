"""Exceptions that are no `Exception`, out of handlers and what these have started."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from tests.crash.app import hold_plain, leave, leave_async, speak
from tests.runtime.app import AT_ONCE, App, Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.scene import Scene


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
def test_f35_whatever_a_handler_raises_is_a_failed_attempt(app: App, name: str) -> None:
    """It bears the name of the error's class; the job is tried again, and then dead, and those behind it run."""
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


def test_f35_handler_that_cancels_its_own_task_has_failed(app: App) -> None:
    """It is a failed attempt like any other; the loop goes on."""

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
def test_f35_task_of_a_handler_that_raises_takes_no_event_loop_with_it(app: App, name: str) -> None:
    """What an async handler starts may raise anything: the handlers of others have their loop still."""
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


def test_f35_callback_of_a_handler_that_raises_ends_nothing(app: App) -> None:
    """What a handler schedules on the event loop may call `sys.exit`, too: it is no failure, and no end."""

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


@pytest.mark.slow
def test_f35_process_goes_on_whatever_its_handlers_raise(scene: Scene) -> None:
    """Threads, loop and heartbeat of a real worker live on, and a signal still ends it as ever."""
    names = ["SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit"]
    bad = scene.enqueue(handler.job(name) for name in names for handler in (leave, leave_async))
    good = scene.enqueue([speak.job(), speak.job()])

    worker = scene.start(lease=1, concurrency=2)
    scene.until_finished([*bad, *good])
    (held,) = scene.enqueue([hold_plain.job()])
    scene.until(lambda change: change.id == held and change.renewed)
    worker.open_gate()
    scene.until_finished([held])

    assert worker.stopped() == 0
    rows = [scene.job(job) for job in bad]
    assert [(row.status, row.attempts) for row in rows] == [("dead", 2)] * len(bad)
    assert all(
        name in (row.last_error or "") for name, row in zip([*names, *names], rows[::2] + rows[1::2], strict=True)
    )
    assert [scene.job(job).status for job in (*good, held)] == ["done"] * 3
