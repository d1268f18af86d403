"""All that differs between databases. No other module names one.

Most differences are SQL constructs that compile per database (`db_now()`, `later()`, `epoch()`, `stored_json()` …);
the rest are the `Capabilities` of a database, asked for by what it can do. What its errors say is in `schema.trouble`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    ColumnElement,
    Dialect,
    FromClause,
    Integer,
    SelectBase,
    String,
    any_,
    cast,
    column,
    func,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ClauseElement, FunctionElement
from sqlalchemy.types import TypeEngine

from sqla_jobs.errors import UnsupportedDatabase
from sqla_jobs.schema.constructs import (
    db_now,
    durably,
    epoch,
    from_epoch,
    later,
    parameter,
    read_instant,
    written_instant,
)
from sqla_jobs.schema.types import any_text

BIG_ID = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits everywhere: SQLite numbers rows by itself only in a column declared INTEGER."""


class _Jsonb(JSONB):
    """JSONB that autogenerate can write: by its stock repr, a revision names a `Text` that it does not import."""

    def __repr__(self) -> str:
        return "JSONB(none_as_null=True)"


_Jsonb.__module__ = JSONB.__module__

_jsonb: Any = _Jsonb  # its constructor has no types in SQLAlchemy 2.0

STORED_JSON = JSON(none_as_null=True).with_variant(_jsonb(none_as_null=True), "postgresql")


def partial_index(where: ColumnElement[bool]) -> dict[str, Any]:
    """Give the Index arguments that make an index partial; a database that has no such thing ignores them."""
    return {"postgresql_where": where, "sqlite_where": where}


def never_reuse_ids(table: Any) -> None:
    """Make SQLite number rows by AUTOINCREMENT: without it, the id of a deleted last row comes again."""
    table.dialect_options["sqlite"]["autoincrement"] = True


class stored_json(FunctionElement[Any]):  # noqa: N801
    """`stored_json(text)`: JSON text as the value of a JSON column."""

    type = STORED_JSON
    inherit_cache = True


@compiles(db_now, "postgresql")
def _pg_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "statement_timestamp()"


@compiles(db_now, "sqlite")
def _sqlite_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(later, "postgresql")
def _pg_later(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({instant} + CAST({seconds} AS DOUBLE PRECISION) * INTERVAL '1 second')"


@compiles(later, "sqlite")
def _sqlite_later(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"strftime('%Y-%m-%d %H:%M:%f000', {instant}, printf('%+.3f seconds', {seconds}))"


@compiles(epoch, "postgresql")
def _pg_epoch(element: epoch, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST(EXTRACT(EPOCH FROM {compiler.process(element.clauses, **kw)}) AS DOUBLE PRECISION)"


@compiles(epoch, "sqlite")
def _sqlite_epoch(element: epoch, compiler: SQLCompiler, **kw: Any) -> str:
    # Milliseconds are what a Julian day in a float is good for.
    return f"round((julianday({compiler.process(element.clauses, **kw)}) - 2440587.5) * 86400.0, 3)"


@compiles(from_epoch, "postgresql")
def _pg_from_epoch(element: from_epoch, compiler: SQLCompiler, **kw: Any) -> str:
    return f"to_timestamp({compiler.process(element.clauses, **kw)})"


@compiles(from_epoch, "sqlite")
def _sqlite_from_epoch(element: from_epoch, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f000', {compiler.process(element.clauses, **kw)}, 'unixepoch')"


@compiles(read_instant, "postgresql")
def _pg_read_instant(element: read_instant, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS TIMESTAMP WITH TIME ZONE)"


@compiles(written_instant, "postgresql")
def _pg_written_instant(element: written_instant, compiler: SQLCompiler, **kw: Any) -> str:
    # In JSON times have one style, whatever DateStyle says; years BC and 'infinity', too.
    return f"(to_json({compiler.process(element.clauses, **kw)}) #>> '{{}}')"


@compiles(written_instant, "sqlite")
def _sqlite_written_instant(element: written_instant, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS TEXT)"


@compiles(durably, "postgresql")
def _pg_durably(element: durably, compiler: SQLCompiler, **kw: Any) -> str:
    # Only where it is off: 'remote_apply' is stronger than 'on'.
    is_on = (
        "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
    )
    return f"concat({is_on}, set_config('idle_in_transaction_session_timeout', '5s', true))"


@compiles(durably, "sqlite")
def _sqlite_durably(element: durably, compiler: SQLCompiler, **kw: Any) -> str:
    return "NULL"


@compiles(stored_json, "postgresql")
def _pg_stored_json(element: stored_json, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS JSONB)"


@compiles(stored_json, "sqlite")
@compiles(read_instant, "sqlite")
def _sqlite_text(element: FunctionElement[Any], compiler: SQLCompiler, **kw: Any) -> str:
    # Stored as text. No CAST: SQLite would read the unknown type names JSON and DATETIME as numbers.
    return compiler.process(element.clauses, **kw)


class Listen(Executable, ClauseElement):
    """LISTEN on a channel: it takes an identifier, and no parameter."""

    inherit_cache = False

    def __init__(self, channel: str) -> None:
        self.channel = channel


@compiles(Listen, "postgresql")
def _pg_listen(element: Listen, compiler: SQLCompiler, **kw: Any) -> str:
    # Quoted always: the channel is as it is written, like in pg_notify.
    return "LISTEN " + compiler.preparer.quote_identifier(element.channel)


@dataclass(frozen=True)
class Capabilities:
    """What a database can do, as far as we care."""

    name: str
    oldest: tuple[int, ...]
    """The oldest server that has what we need."""
    has_row_locks: bool
    """`FOR UPDATE SKIP LOCKED`. Without it one writer at a time is let in, by `begin_writing`."""
    has_rising_ids: bool
    """One writer at a time: the rows of an insert get ids that rise, and nobody's come between."""
    has_notify: bool
    """NOTIFY rides in an insert's RETURNING; LISTEN hears it."""
    begin_writing: Executable | None
    """What opens a transaction that takes the one write lock at once; None where rows are locked."""
    end_empty: Executable | None
    """What ends a transaction that a driver keeps open, as Python's sqlite3 does with `autocommit=False`."""
    bounded: Executable | None
    """What bounds the open transaction: its waits for row locks, and how long a frozen process holds its own."""
    hurried: Executable | None
    """What lets the open transaction hardly wait for row locks any more."""
    is_server: bool
    """A server with settings and a clock, maybe behind a pooler; else a file, and it is all up to the driver."""
    has_sized_types: bool
    """A column keeps to its declared size."""
    definitions: str | None
    """The table that keeps the text of CREATE statements; None where tables are kept in parts."""
    storage: tuple[tuple[str, str], ...]
    """The storage parameters of a job table, as they should be; none where there are none."""

    def given(self, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
        """Rows that come with the statement, as one JSON parameter `rows`; see `as_rows`."""
        raise NotImplementedError

    def listed(self) -> FromClause:
        """Objects that come with the statement, in one JSON array `rows`, as `value`, and the place of each as `n`."""
        raise NotImplementedError

    def insert(self, table: Any) -> Any:
        """Give the INSERT that knows ON CONFLICT."""
        raise NotImplementedError

    def among(self, column: ColumnElement[Any], ids: SelectBase) -> ColumnElement[bool]:
        """Say that *column* is one of the few *ids*."""
        return column.in_(ids)

    def read_any_text(self, connection: Any, _record: object) -> None:
        """Have a new connection of the driver's read text that is none in its encoding, as `Garbled`. A listener."""


class _Postgresql(Capabilities):
    def given(self, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
        rows = func.json_to_recordset(cast(parameter("rows", type_=String()), JSON))
        shape = [column(name, type_) for name, type_ in columns.items()]
        each = rows.table_valued(*shape).render_derived(name="each", with_types=True)
        return select(each).cte("given").prefix_with("MATERIALIZED")

    def listed(self) -> FromClause:
        array = cast(parameter("rows", type_=String()), postgresql.JSONB)
        each = func.jsonb_array_elements(array).table_valued(column("value", STORED_JSON), with_ordinality="n")
        return each.render_derived(name="each")

    def insert(self, table: Any) -> Any:
        return postgresql.insert(table)

    def among(self, column: ColumnElement[Any], ids: SelectBase) -> ColumnElement[bool]:
        # An array is taken for ten rows, and the key is used, whatever the planner expects of *ids*.
        return column == any_(func.array(ids.scalar_subquery()))


class _Sqlite(Capabilities):
    def given(self, columns: Mapping[str, TypeEngine[Any]]) -> FromClause:
        each = func.json_each(parameter("rows", type_=String())).table_valued("value", name="each")
        shape = [
            func.json_extract(each.c.value, f"$.{name}", type_=type_).label(name) for name, type_ in columns.items()
        ]
        # Kept apart, SQLite makes an index of it; else it reads the JSON again for each row of the table.
        return select(*shape).select_from(each).cte("given").prefix_with("MATERIALIZED")

    def listed(self) -> FromClause:
        each = func.json_each(parameter("rows", type_=String())).table_valued(
            column("key", Integer), column("value", STORED_JSON), name="each"
        )
        return select(each.c.key.label("n"), each.c.value).subquery("listed")

    def insert(self, table: Any) -> Any:
        return sqlite.insert(table)

    def read_any_text(self, connection: Any, _record: object) -> None:
        getattr(connection, "driver_connection", connection).text_factory = any_text


# A job's row is written about four times (insert, claim, settle, delete), heartbeats aside, and it leaves three dead
# versions. PostgreSQL's manual: "CREATE TABLE, Storage Parameters", and "Routine Vacuuming, The Autovacuum Daemon".
_STORAGE = (
    # Room on the page for heartbeats; pages are pruned earlier, too (heap_page_prune_opt). Measured on PostgreSQL 18,
    # 10,000 jobs, three heartbeats each, no vacuum: HOT are 53% of them at 100, 87% at 80, 96% at 70, and the table has
    # a third fewer pages.
    ("fillfactor", "70"),
    # By default vacuum waits until a fifth of the table is dead. Finished rows are most of it, and dead versions gather
    # in the small index of ready jobs, where each claim steps over them: go by the jobs done, hardly by the table.
    ("autovacuum_vacuum_scale_factor", "0.01"),
    ("autovacuum_vacuum_threshold", "1000"),
    # How many are ready changes faster than the table grows.
    ("autovacuum_analyze_scale_factor", "0.02"),
    ("autovacuum_analyze_threshold", "1000"),
)


_KNOWN: tuple[Capabilities, ...] = (
    _Postgresql(
        name="postgresql",
        oldest=(13,),
        has_row_locks=True,
        has_rising_ids=False,
        has_notify=True,
        begin_writing=None,
        end_empty=None,
        bounded=text(
            "SELECT set_config('lock_timeout', '500ms', true), "
            "set_config('idle_in_transaction_session_timeout', '5s', true)"
        ),
        hurried=text("SELECT set_config('lock_timeout', '10ms', true)"),
        is_server=True,
        has_sized_types=True,
        definitions=None,
        storage=_STORAGE,
    ),
    _Sqlite(
        name="sqlite",
        oldest=(3, 35),
        has_row_locks=False,
        has_rising_ids=True,
        has_notify=False,
        begin_writing=text("BEGIN IMMEDIATE"),
        end_empty=text("COMMIT"),
        bounded=None,
        hurried=None,
        is_server=False,
        has_sized_types=False,
        definitions="sqlite_master",
        storage=(),
    ),
)


@lru_cache(maxsize=16)
def _by_name(name: str) -> Capabilities:
    for known in _KNOWN:
        if known.name == name:
            return known
    served = " and ".join(known.name for known in _KNOWN)
    raise UnsupportedDatabase(f"{name!r} databases are not served; {served} are")


def capabilities(dialect: Dialect) -> Capabilities:
    """Tell what the database behind *dialect* can do.

    :raises UnsupportedDatabase: it is of a kind that is not served
    """
    return _by_name(dialect.name)


def check_server(dialect: Dialect) -> None:
    """Refuse a server that is too old. *dialect* must have connected once.

    :raises UnsupportedDatabase: it is
    """
    can = capabilities(dialect)
    version = dialect.server_version_info
    if version is not None and tuple(version) < can.oldest:
        has, needs = (".".join(map(str, numbers)) for numbers in (version, can.oldest))
        raise UnsupportedDatabase(f"the server is {can.name} {has}, and at least {needs} is needed; upgrade it")


def is_in_memory(dialect: Dialect, url: URL) -> bool:
    """Tell whether the database lives inside one connection, so that no other can see it."""
    if dialect.name != "sqlite":
        return False
    database = url.database
    is_named = "mode=memory" in (database or "") or url.query.get("mode") == "memory"
    return not database or ":memory:" in database or is_named


def as_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Write *rows* as the JSON parameter that `Capabilities.given` reads."""
    return json.dumps(rows, allow_nan=False, separators=(",", ":"))
