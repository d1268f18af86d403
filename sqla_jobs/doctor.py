"""What is wrong with a database, and with the way in which an engine reaches it; each finding has its remedy.

.. code-block:: python

    from sqla_jobs.migrations import doctor

    for finding in doctor(engine, jobs):                  # `await doctor(async_engine, jobs)`
        print(finding)

It reads, in two transactions that it rolls back. What it can't know: other engines that the app has, and what a pooler
does that hides itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast, overload

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from sqla_jobs.errors import InvalidOption, UnsupportedDatabase
from sqla_jobs.operations.comparison import Finding, Severity, compare
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.runtime.sessions import SKIPS_ROLLBACKS, skips_rollbacks
from sqla_jobs.schema import inspection
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import Capabilities, capabilities, check_server, is_in_memory
from sqla_jobs.schema.tables import JobTable

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

LEAST_BUSY_TIMEOUT: Final = 5000
"""Milliseconds. Python's own default, and as long as the machinery lets a frozen process hold its locks."""

MOST_CLOCK_DIFFERENCE: Final = 5.0
"""Seconds."""

_ORDER: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "hint": 2}


@overload
def doctor(engine: Engine, jobs: Jobs[Any]) -> list[Finding]: ...
@overload
def doctor(engine: AsyncEngine, jobs: Jobs[Any]) -> Coroutine[Any, Any, list[Finding]]: ...
def doctor(engine: object, jobs: Jobs[Any]) -> Any:
    """Look for what is wrong with the tables of *jobs* and with the way in which *engine* reaches them.

    Errors come first; an empty list says that all is well. Await it for an AsyncEngine. It changes nothing, and takes
    no lock but what the engine's own `begin` takes: on SQLite the write lock, for a moment.

    :raises InvalidOption: the one is no engine, or the other no Jobs
    :raises sqlalchemy.exc.DBAPIError: the database can't be reached; what the driver says stands in it
    """
    if not isinstance(cast("object", jobs), Jobs):
        raise InvalidOption(f"doctor takes a Jobs second, not a {type(jobs).__name__}: doctor(engine, jobs)")
    if isinstance(engine, Engine):
        return _visit(engine, jobs)
    extension: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    if extension and isinstance(engine, extension.AsyncEngine):
        return _visit_async(engine, jobs)
    raise InvalidOption(
        f"doctor takes an Engine or an AsyncEngine, and not a {type(engine).__name__}: create_engine(…)"
    )


def _visit(engine: Engine, jobs: Jobs[Any]) -> list[Finding]:
    if refused := _unserved(engine):
        return refused
    with engine.connect() as connection:
        return _examine(connection, jobs)


async def _visit_async(engine: Any, jobs: Jobs[Any]) -> list[Finding]:
    if refused := _unserved(engine.sync_engine):
        return refused
    async with engine.connect() as connection:
        found: list[Finding] = await connection.run_sync(_examine, jobs)
        return found


def _unserved(engine: Engine) -> list[Finding]:
    try:
        is_skipping = skips_rollbacks(engine)
    except UnsupportedDatabase as error:
        return [Finding("unsupported-database", "error", str(error), "keep the jobs in a database that is served")]
    # No look with it: it would leave its own transactions open.
    return [Finding("skipped-rollback", "error", "rollbacks undo nothing", SKIPS_ROLLBACKS)] if is_skipping else []


def _examine(connection: Connection, jobs: Jobs[Any]) -> list[Finding]:
    old = list(_server_age(connection))
    if old:
        return old  # it need not understand the rest
    facts = _learn(connection, jobs.table)
    found = [finding for check in CHECKS for finding in check(facts)]
    with connection.begin() as transaction:
        found += compare(connection, jobs)
        transaction.rollback()
    return sorted(found, key=lambda finding: _ORDER[finding.severity])


@dataclass(frozen=True, slots=True)
class Facts:
    """What was learned of the server, and of the connections that the engine makes.

    :ivar table: the job table, as SQL names it
    :ivar place: the same as the arguments of an operation
    :ivar storage: its storage parameters; None without table
    :ivar is_in_transaction: whether there is one after its begin and a SELECT
    :ivar is_by_driver: whether the driver begins one by itself, before it writes
    :ivar is_kept_open: whether it begins one by itself, at once
    :ivar begun: what was said to begin it, as far as SQLAlchemy said it; None where that was not heard
    :ivar settings: the server's, by name
    :ivar backends: the server's processes that served one connection
    :ivar is_preparing: whether the driver prepares statements; None where it doesn't say
    :ivar ahead: seconds that the database's clock is ahead of this host's
    """

    can: Capabilities
    table: str
    place: str
    is_in_memory: bool
    is_in_transaction: bool
    is_by_driver: bool
    is_kept_open: bool
    begun: tuple[str, ...] | None
    isolation: str
    settings: dict[str, Any]
    storage: str | None
    backends: frozenset[int]
    is_preparing: bool | None
    ahead: float
    busy_timeout: int
    journal_mode: str


def _learn(connection: Connection, jobs: JobTable) -> Facts:
    can = capabilities(connection.dialect)
    driver: Any = connection.connection.driver_connection
    schema = connection.schema_for_object(jobs.table)
    facts: dict[str, Any] = {"settings": {}, "storage": None, "backends": frozenset(), "ahead": 0.0}
    facts |= {"is_preparing": None, "busy_timeout": LEAST_BUSY_TIMEOUT, "journal_mode": "wal"}
    facts |= {"is_by_driver": False, "is_kept_open": False}
    begun = _begin(connection)
    if can.is_server:
        facts |= _learn_of_server(connection, driver)
        storage = connection.execute(inspection.storage(), said({"table": str(jobs.table.name), "schema": schema}))
        facts |= {"storage": storage.scalar(), "is_in_transaction": _is_in_transaction(connection)}
    else:
        facts |= _learn_of_driver(connection, driver)
    isolation = connection.get_isolation_level()
    _end(connection)
    if can.is_server:
        facts["backends"] |= {_backend(connection)}
    return Facts(
        can=can,
        table=inspection.full_name(jobs.table, schema, connection.dialect),
        place=repr(str(jobs.table.name)) + ("" if schema is None else f", schema={schema!r}"),
        is_in_memory=is_in_memory(connection.dialect, connection.engine.url),
        begun=begun,
        isolation=isolation,
        **facts,
    )


def _begin(connection: Connection) -> tuple[str, ...] | None:
    """Begin as the app does, and hear what is said."""
    said: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        said.append(statement)

    can_hear = True
    try:
        event.listen(connection, "before_cursor_execute", hear)
    except InvalidRequestError:
        can_hear = False  # SQLAlchemy 2.0.36, where the engine is one that engine.execution_options() gave
    connection.begin()
    if can_hear:
        event.remove(connection, "before_cursor_execute", hear)
    connection.execute(inspection.nothing())
    return tuple(said) if can_hear else None


def _end(connection: Connection) -> None:
    transaction = connection.get_transaction()
    if transaction is not None:
        transaction.rollback()


def _is_in_transaction(connection: Connection) -> bool:
    """Ask the server by a savepoint: there is none without a transaction. Drivers don't tell AUTOCOMMIT alike."""
    try:
        connection.begin_nested().rollback()
    except DBAPIError:
        return False
    return True


def _learn_of_server(connection: Connection, driver: Any) -> dict[str, Any]:
    before = _host_time()
    now: float = connection.execute(inspection.current_epoch()).scalar_one()
    after = _host_time()
    settings = dict(connection.execute(inspection.settings()).mappings().one())
    return {
        "settings": settings,
        "ahead": now - after if now > after else min(now - before, 0.0),
        "backends": frozenset({settings["backend"], _told_backend(driver) or settings["backend"]}),
        "is_preparing": driver.prepare_threshold is not None if hasattr(driver, "prepare_threshold") else None,
    }


def _told_backend(driver: Any) -> int | None:
    """Give the process that the server named when the connection was made: a pooler names one that there is not."""
    if callable(getattr(driver, "get_server_pid", None)):
        return int(driver.get_server_pid())
    told = getattr(getattr(driver, "info", None), "backend_pid", None)
    return int(told) if told else None


def _backend(connection: Connection) -> int:
    with connection.begin() as transaction:
        backend = int(connection.execute(inspection.settings()).one().backend)
        transaction.rollback()
    return backend


def _learn_of_driver(connection: Connection, driver: Any) -> dict[str, Any]:
    is_autocommit = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
    return {
        "is_in_transaction": driver.in_transaction,
        "is_by_driver": not is_autocommit,
        "is_kept_open": getattr(driver, "autocommit", None) is False,
        "busy_timeout": connection.execute(inspection.busy_timeout()).scalar_one(),
        "journal_mode": connection.execute(inspection.journal_mode()).scalar_one(),
    }


def _host_time() -> float:
    # Nothing is stored or decided by it: it is compared with the database's, for people.
    return time.time()


def _server_age(connection: Connection) -> Iterator[Finding]:
    try:
        check_server(connection.dialect)
    except UnsupportedDatabase as error:
        yield Finding("old-server", "error", str(error), "upgrade the server, or for SQLite the library of Python's")


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.is_in_memory:
        what = "the database is in memory, inside one connection: no worker can see it"
        yield Finding("in-memory", "error", what, "use a file; to run jobs in tests, sqla_jobs.testing.drain")


def _transactions(facts: Facts) -> Iterator[Finding]:
    if facts.is_in_transaction:
        return
    if facts.is_by_driver:
        what = (
            "the driver begins a transaction when it writes, not for a savepoint: what a rollback should undo may stay"
        )
        yield Finding("sqlite-begin", "error", what, BEGIN)
        return
    what = "each statement commits by itself (AUTOCOMMIT): a job and your data don't commit together"
    remedy = "take isolation_level='AUTOCOMMIT' (autocommit=True) off this engine, or give the jobs one without it"
    yield Finding("autocommit", "error", what, remedy if facts.can.is_server else f"{remedy}; then {BEGIN}")


BEGIN: Final = (
    "listen for 'connect' and set isolation_level = None on the driver's connection, and listen for 'begin' and "
    "connection.exec_driver_sql('BEGIN IMMEDIATE'), as the README's section Databases shows"
)


def _deferred(facts: Facts) -> Iterator[Finding]:
    if facts.can.is_server or facts.begun is None or not facts.is_in_transaction:
        return
    if not any(said.upper().startswith(("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE")) for said in facts.begun):
        said = f"by {facts.begun[0]!r}" if facts.begun else "by the driver"
        what = f"transactions begin without the write lock ({said}): one that reads first fails when it then writes"
        remedy = f"take connect_args={{'autocommit': False}} off; then {BEGIN}" if facts.is_kept_open else BEGIN
        yield Finding("sqlite-deferred", "warning", f"{what}, at once, with 'database is locked'", remedy)


def _waits(facts: Facts) -> Iterator[Finding]:
    if facts.busy_timeout < LEAST_BUSY_TIMEOUT:
        what = f"a writer waits {facts.busy_timeout} ms for another, and then fails with 'database is locked'"
        remedy = "PRAGMA busy_timeout = 30000 on each new connection (listen for 'connect')"
        yield Finding("sqlite-busy-timeout", "warning", what, remedy)
    if facts.journal_mode not in {"wal", "memory"}:
        what = f"journal_mode is {facts.journal_mode}: readers and the writer wait for each other"
        yield Finding("sqlite-journal", "hint", what, "PRAGMA journal_mode = WAL, once; it stays with the file")


def _isolation(facts: Facts) -> Iterator[Finding]:
    if facts.can.is_server and facts.isolation in {"REPEATABLE READ", "SERIALIZABLE"}:
        what = (
            f"transactions are {facts.isolation}: the lease of a job with a session is set once, to its timeout (ten "
            "minutes without one) plus one lease, and after a crash the job waits as long"
        )
        yield Finding(
            "isolation", "hint", what, "give such handlers timeout=…, or the jobs an engine of READ COMMITTED"
        )


def _read_only(facts: Facts) -> Iterator[Finding]:
    if facts.settings.get("is_in_recovery"):
        what = "the server is a standby, in recovery: nothing can be written"
        yield Finding("read-only", "error", what, "connect to the primary (target_session_attrs=read-write in the URL)")
    elif facts.settings.get("transaction_read_only") == "on":
        what = "transactions are read-only: nothing can be enqueued or claimed"
        remedy = (
            "set default_transaction_read_only = off for the role or the database, postgresql_readonly off the engine"
        )
        yield Finding("read-only", "error", what, remedy)


def _encoding(facts: Facts) -> Iterator[Finding]:
    encoding = facts.settings.get("server_encoding", "UTF8")
    if encoding != "UTF8":
        what = f"the database's encoding is {encoding}: jobs with other characters are not stored, nor are their errors"
        remedy = "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and pg_dump into it"
        yield Finding("encoding", "error", what, remedy)


def _durability(facts: Facts) -> Iterator[Finding]:
    if facts.settings.get("synchronous_commit") == "off":
        what = (
            "synchronous_commit is off: a crash of the server may lose the newest commits, jobs that were enqueued or "
            "done among them; only claims are made durable by us"
        )
        remedy = "ALTER ROLE … SET synchronous_commit = on, for the role that enqueues and works"
        yield Finding("asynchronous-commit", "warning", what, remedy)
    if facts.settings.get("fsync") == "off":
        what = "fsync is off: a crash of the machine may destroy the database, jobs included"
        yield Finding("fsync", "warning", what, "ALTER SYSTEM SET fsync = on; only a test server does without")


def _vacuum(facts: Facts) -> Iterator[Finding]:
    if facts.storage is None:
        return
    options = dict(option.split("=", 1) for option in facts.storage.split(",") if option)
    is_off = options.get("autovacuum_enabled") in {"false", "off", "no", "0"}
    if is_off or facts.settings.get("autovacuum") == "off":
        what = (
            f"autovacuum is off for {facts.table}: dead versions of its rows gather, and claims get slower and slower"
        )
        remedy = (
            f"ALTER TABLE {facts.table} RESET (autovacuum_enabled)" if is_off else "ALTER SYSTEM SET autovacuum = on"
        )
        yield Finding("autovacuum-off", "warning", what, remedy)
    if not {name for name, _ in facts.can.storage} & set(options):
        what = f"{facts.table} has the storage parameters of a table that hardly changes"
        remedy = f"import sqla_jobs.migrations in a revision, and op.tune_job_table({facts.place})"
        yield Finding("untuned", "hint", what, remedy)


def _clocks(facts: Facts) -> Iterator[Finding]:
    if abs(facts.ahead) > MOST_CLOCK_DIFFERENCE:
        says = "ahead of" if facts.ahead > 0 else "behind"
        what = f"the database's clock is {abs(facts.ahead):.0f} s {says} this host's"
        remedy = (
            "NTP on both; until then compute no run_at by the host's clock: use delay=, which goes by the database's"
        )
        yield Finding("clock", "hint", what, remedy)


def _pooler(facts: Facts) -> Iterator[Finding]:
    if len(facts.backends) < 2:
        return
    listens = "give Worker(…, listen=…) a URL past it, or listen=False"
    what = "a pooler stands before the server; if it pools transactions, LISTEN hears nothing"
    if facts.is_preparing:
        remedy = f"create_engine(…, connect_args={{'prepare_threshold': None}}), unless it knows of them; {listens}"
        yield Finding("pooler", "warning", f"{what}, and the driver's prepared statements are not found", remedy)
    else:
        yield Finding("pooler", "hint", what, listens)


CHECKS: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    _memory,
    _transactions,
    _deferred,
    _waits,
    _isolation,
    _read_only,
    _encoding,
    _durability,
    _vacuum,
    _clocks,
    _pooler,
)
