"""Failpoints: what arms them, and that they do what a driver would do. `tests/faults` walks through all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, insert, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from sqla_jobs import InvalidOption
from sqla_jobs.runtime import failpoints
from sqla_jobs.runtime.connections import Connector, Opening, like
from sqla_jobs.schema.constructs import db_now
from sqla_jobs.schema.trouble import is_outage
from tests.crash.processes import ROOT
from tests.runtime.app import SOON, App, Base, Connections, Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine
    from sqlalchemy.engine import ExceptionContext
    from sqlalchemy.orm import Session

PROGRAM = """
import sys
from tests.engines import build_engine
from tests.runtime.app import App
app = App(build_engine(sys.argv[1])).create()
app.add(app.jobs.handler(lambda: None, name="nothing"))
app.run()
"""


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


def ask_twice(session: Session) -> None:
    """Send two statements."""
    session.scalar(db_now())
    session.scalar(db_now())


@pytest.fixture
def quiet_engine(database_url: str) -> Iterator[Engine]:
    """Give an engine that leaves `BEGIN` to whoever uses it."""
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


def connector_of(engine: Engine) -> Connector:
    """Make one whose statements the engine's listeners hear, on SQLite too."""
    isolation = "AUTOCOMMIT" if engine.dialect.name == "sqlite" else None
    return Connector(like(engine), Opening(engine), part="claim", isolation=isolation)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("claim.after_commit", "<place>=<action>"),
        ("claim.after_commit=", "an action is one of deadlock, drop, kill, serialization"),
        ("claim.after_commit=drop,", "'' is not"),
        ("claim.after_commit=drop, claim.after_commit=kill", "each place once, and 'claim.after_commit=kill' is not"),
        ("claim.after_commit=explode", "claim.after_commit=explode: an action is one of"),
        ("claims.after_commit=drop", "'claims.after_commit' is no place"),
        ("claim.commit=drop", "is no place: it is <part>.statement_<n>"),
        ("claim.statement_0=drop", "is no place"),
        ("claim.after_commit#0=drop", "is no place"),
        ("claim.write.statement_1=drop", "is no place"),
    ],
)
def test_plan_when_it_is_none(plan: str, says: str) -> None:
    """A plan with a place or an action that does not exist is refused, saying which, and what would do."""
    with pytest.raises(InvalidOption, match=says):
        failpoints.Failpoints.parse(plan)


def test_environment_when_its_plan_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the variable and its text; an empty one arms nothing."""
    monkeypatch.setenv(failpoints.VARIABLE, "")
    assert failpoints.from_environment() is None

    monkeypatch.setenv(failpoints.VARIABLE, "claim=kill")
    with pytest.raises(InvalidOption, match="SQLA_JOBS_FAILPOINTS=claim=kill: 'claim' is no place"):
        failpoints.from_environment()


def test_process_when_armed_by_the_environment(sqlite_url: str) -> None:
    """It warns when it starts, says where it fails, and is killed there."""
    plan = "claim.before_commit#2=drop, settle.after_commit=kill"

    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, sqlite_url],
        cwd=ROOT,
        env=os.environ | {failpoints.VARIABLE: plan},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == -signal.SIGKILL
    lines = ended.stderr.splitlines()
    assert lines[0] == f"SQLA_JOBS_FAILPOINTS={plan}: this process fails on purpose; in production, unset it"
    assert lines[-1] == "failpoint settle.after_commit#1: kill"


def test_transaction_when_nothing_is_armed(quiet_engine: Engine) -> None:
    """Armed or not, a transaction sends the same statements; without, its session has no listener."""
    sent, listeners = list[str](), list[bool]()

    @event.listens_for(quiet_engine, "before_cursor_execute")
    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    connector = connector_of(quiet_engine)
    connector.run(ask_twice)

    def page() -> list[str]:
        sent.clear()
        connector.run(ask_twice)
        connector.run(lambda session: listeners.append(bool(session.dispatch.do_orm_execute)))
        return list(sent)

    off = page()
    armed = failpoints.arm({})
    on = page()
    failpoints.disarm()

    assert off == on == page()
    assert len(on) >= 2
    assert listeners == [False, True, False]
    assert [place.partition("#")[0] for place in armed.passed[:4]] == [
        "claim.statement_1",
        "claim.statement_2",
        "claim.before_commit",
        "claim.after_commit",
    ]
    connector.close()


def test_place_when_its_time_has_a_number(quiet_engine: Engine) -> None:
    """It fails at that time, once; before and after, the place is passed."""
    connector, outcomes = connector_of(quiet_engine), list[str]()
    armed = failpoints.arm({"claim.statement_2#2": "deadlock"})

    for _ in range(4):
        try:
            connector.run(ask_twice)
        except OperationalError:
            outcomes.append("failed")
        else:
            outcomes.append("passed")

    assert outcomes == ["passed", "failed", "passed", "passed"]
    assert armed.fired == ["claim.statement_2#2"]
    assert [place for place in armed.passed if "statement_2" in place] == [
        f"claim.statement_2#{n}" for n in (1, 2, 3, 4)
    ]
    connector.close()


@pytest.mark.parametrize("action", ["drop", "serialization", "deadlock"])
def test_error_when_it_is_raised(quiet_engine: Engine, action: str) -> None:
    """It is an outage of the driver's class, that the engine's listeners hear; only what was committed stands."""
    heard, connections = list[Any](), Connections(quiet_engine)

    @event.listens_for(quiet_engine, "handle_error")
    def hear(context: ExceptionContext) -> None:
        heard.append(context.original_exception)

    def write(session: Session) -> None:
        session.execute(insert(Note).values(text=place))

    Base.metadata.create_all(quiet_engine)
    connector = connector_of(quiet_engine)

    for place in ("statement_1", "before_commit", "after_commit"):
        connector.run(ask_twice)
        before = connections.made
        failpoints.arm({f"claim.{place}": action})
        with pytest.raises(OperationalError, match=f"{action} at claim.{place}#1") as raised:
            connector.run(write)
        connector.run(ask_twice)

        assert heard == [raised.value.orig]
        assert is_outage(heard.pop())
        assert isinstance(raised.value.orig, quiet_engine.dialect.loaded_dbapi.OperationalError)
        assert connections.made - before == raised.value.connection_invalidated == (action == "drop")
    assert connector.read(lambda session: session.scalars(select(Note.text)).all()) == ["after_commit"]
    connector.close()


def test_errors_when_the_drivers_are_async(async_app: App) -> None:
    """A worker on an async driver survives them as well, and none costs the job an attempt."""

    @async_app.jobs.handler
    async def write(session: AsyncSession) -> None:
        session.add(Note(text="written"))

    job = async_app.add(write)
    armed = failpoints.arm(
        {
            "claim.before_commit": "drop",
            "complete.statement_1": "deadlock",
            "complete.before_commit": "drop",
            "complete.after_commit": "drop",
            "settle.before_commit": "serialization",
            "settle.after_commit": "drop",
        }
    )

    async_app.run(within=SOON)

    row = async_app.row(job)
    assert len(armed.fired) == 6
    assert (row.status, row.attempts, row.refunds, async_app.notes()) == ("done", 1, 2, ["written"])
