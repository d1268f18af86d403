"""What a database is asked about itself, how its answers are compared with models, and the storage of a job table.

For `sqla_jobs.doctor` and `sqla_jobs.migrations`: a worker says none of this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    Dialect,
    Index,
    MetaData,
    Select,
    String,
    Table,
    column,
    func,
    literal,
    select,
    table,
    text,
)
from sqlalchemy.exc import CompileError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, ExecutableDDLElement
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import DDLCompiler
from sqlalchemy.types import TypeEngine

from sqla_jobs.schema.constructs import db_now, epoch, parameter
from sqla_jobs.schema.dialects import Capabilities, capabilities

SETTINGS = ("fsync", "synchronous_commit", "autovacuum", "transaction_read_only", "server_encoding")


def nothing() -> Select[Any]:
    """Ask nothing: a driver that begins transactions by itself has begun one after it, or has not."""
    return select(literal(1))


def current_epoch() -> Select[Any]:
    """The database's clock, as seconds since 1970; never a test's."""
    return select(epoch(db_now()))


def settings() -> Select[Any]:
    """The server's settings, as this connection has them, and the process that serves it."""
    named = [func.current_setting(name).label(name) for name in SETTINGS]
    return select(*named, func.pg_is_in_recovery().label("is_in_recovery"), func.pg_backend_pid().label("backend"))


def busy_timeout() -> Executable:
    """How many milliseconds a writer waits for the write lock."""
    return text("PRAGMA busy_timeout")


def journal_mode() -> Executable:
    """How changes are kept until they are in the file."""
    return text("PRAGMA journal_mode")


def definitions(can: Capabilities, schema: str | None) -> Executable:
    """The text that made a table and its indexes, by name. Parameter: table."""
    kept = table(can.definitions or "", column("name"), column("tbl_name"), column("sql"), schema=schema)
    return select(kept.c.name, kept.c.sql).where(kept.c.tbl_name == parameter("table", type_=String()))


def storage() -> Executable:
    """The storage parameters of a table, as text. Parameters: table, schema (None: as the search path finds it)."""
    return text(
        "SELECT coalesce(array_to_string(c.reloptions, ','), '') FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relname = CAST(:sqla_jobs_table AS TEXT) AND c.relkind IN ('r', 'p') "
        "AND CASE WHEN CAST(:sqla_jobs_schema AS TEXT) IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) "
        "ELSE n.nspname = CAST(:sqla_jobs_schema AS TEXT) END"
    )


def invalid_indexes() -> Executable:
    """The indexes of a table that no query uses: their concurrent building failed. Parameters: as of `storage`."""
    return text(
        "SELECT i.relname FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid "
        "JOIN pg_catalog.pg_class c ON c.oid = x.indrelid "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE NOT x.indisvalid AND c.relname = CAST(:sqla_jobs_table AS TEXT) "
        "AND CASE WHEN CAST(:sqla_jobs_schema AS TEXT) IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) "
        "ELSE n.nspname = CAST(:sqla_jobs_schema AS TEXT) END"
    )


class _Storage(ExecutableDDLElement):
    def __init__(self, name: str, schema: str | None, parameters: tuple[tuple[str, str], ...]) -> None:
        self.table = Table(name, MetaData(), schema=schema)  # a whole one: `table()` knows no schema_translate_map
        self.parameters = parameters


class SetStorage(_Storage):
    """Give a table storage parameters."""


class ResetStorage(_Storage):
    """Give a table the database's own storage parameters again, for those that are named."""


@compiles(SetStorage)
def _set_storage(element: SetStorage, compiler: DDLCompiler, **kw: Any) -> str:
    parameters = ", ".join([f"{name} = {value}" for name, value in element.parameters])
    return f"ALTER TABLE {_formatted(compiler.preparer, element.table)} SET ({parameters})"


@compiles(ResetStorage)
def _reset_storage(element: ResetStorage, compiler: DDLCompiler, **kw: Any) -> str:
    names = ", ".join([name for name, _ in element.parameters])
    return f"ALTER TABLE {_formatted(compiler.preparer, element.table)} RESET ({names})"


def _formatted(preparer: Any, written: Any) -> str:
    # SQLAlchemy 2.0 has no types for it.
    return str(preparer.format_table(written))


def tune(dialect: Dialect, name: str, schema: str | None) -> SetStorage | None:
    """Give a job table the storage that suits it; None where there is none to give."""
    parameters = capabilities(dialect).storage
    return SetStorage(name, schema, parameters) if parameters else None


def reset(dialect: Dialect, name: str, schema: str | None) -> ResetStorage | None:
    """Undo `tune`."""
    parameters = capabilities(dialect).storage
    return ResetStorage(name, schema, parameters) if parameters else None


_CAST = r'::\s*(?:character varying|double precision|timestamp with(?:out)? time zone|"?\w+"?)(?:\(\d+\))?(?:\[\])?'

_TOKEN = re.compile(rf"""'(?:[^']|'')*'|{_CAST}|"(?:[^"]|"")*"|\w+|[<>!=]+|[^\s\w()\[\],"]""", re.IGNORECASE)

_LITERAL = re.compile(r"'((?:[^']|'')*)'")

_PREDICATE = re.compile(r"\)\s*WHERE\s+(.*)\Z", re.IGNORECASE | re.DOTALL)

_SIZES = {
    "SMALLINT": ("integer", 16),
    "INTEGER": ("integer", 32),
    "BIGINT": ("integer", 64),
    "REAL": ("float", 24),
    "DOUBLE": ("float", 53),
    "DOUBLE PRECISION": ("float", 53),
    "TIMESTAMP WITHOUT TIME ZONE": ("time", 0),
    "TIMESTAMP": ("time", 0),
    "DATETIME": ("time", 0),
}

_TEXTS = {"CHAR", "VARCHAR", "TEXT", "CLOB"}

_ENDLESS = 2**31


def words_of(sql: str | None) -> str:
    """Bring a condition to words that are the same however a database has written it down: no casts, no parentheses."""
    found = [_word(token) for token in _TOKEN.findall(sql or "")]
    words = " ".join([word for word in found if word])
    return words.replace("= any array", "in").replace("<> all array", "not in")


def _word(part: str) -> str:
    if part.startswith("::"):
        return ""
    if part.startswith('"'):
        return part[1:-1].replace('""', '"')
    if part.startswith("'"):
        return part
    return "<>" if part == "!=" else part.lower()


def texts_in(sql: str) -> frozenset[str]:
    """Give the texts that a condition names."""
    return frozenset(_LITERAL.findall(sql))


def predicate_in(definition: str | None) -> str | None:
    """Find the condition of a partial index in the text that made it."""
    found = _PREDICATE.search(definition or "")
    return found[1] if found else None


def predicate_of(index: Index, dialect: Dialect) -> str | None:
    """Say the condition of a partial index of a model's, as this database would be told it."""
    untyped: Any = index  # in SQLAlchemy 2.0
    where: ColumnElement[bool] | None = untyped.dialect_options[dialect.name]["where"]
    return None if where is None else _said(where, dialect)


def condition_of(check: CheckConstraint, dialect: Dialect) -> str:
    """Say what a CHECK of a model's asks for."""
    return _said(check.sqltext, dialect)


def _said(clause: Any, dialect: Dialect) -> str:
    kwargs = {"literal_binds": True, "include_table": False}
    return str(clause.compile(dialect=dialect, compile_kwargs=kwargs))


def creation(index: Index, dialect: Dialect, schemas: Mapping[str | None, str | None] | None) -> str:
    """Say the statement that makes an index of a model's."""
    options: dict[str, Any] = {}
    if schemas:
        options = {"schema_translate_map": schemas, "render_schema_translate": True}
    make: Any = CreateIndex  # untyped in SQLAlchemy 2.0
    return str(make(index).compile(dialect=dialect, **options))


def name_of(part: Any, dialect: Dialect) -> str:
    """Give the name of an index or a constraint as it is in this database: by the convention, and cut to length."""
    preparer: Any = dialect.identifier_preparer
    return str(preparer.format_constraint(part, _alembic_quote=False))


def full_name(source: Table, schema: str | None, dialect: Dialect) -> str:
    """Write the name of a table, quoted where it must be."""
    return _formatted(dialect.identifier_preparer, table(source.name, schema=schema))


def quoted(name: str, schema: str | None, dialect: Dialect) -> str:
    """Write the name of an index, quoted where it must be."""
    preparer = dialect.identifier_preparer
    return preparer.quote(name) if schema is None else f"{preparer.quote_schema(schema)}.{preparer.quote(name)}"


def type_name(type_: TypeEngine[Any], dialect: Dialect) -> str:
    """Write a type as this database would be told it."""
    try:
        return type_.compile(dialect)
    except CompileError:
        return repr(type_)  # one that reflection did not know


def holds_values_of(found: str, wanted: str, can: Capabilities) -> bool:
    """Tell whether a column of the type *found* takes and gives back every value of the type *wanted*."""
    kind, size = _shape(found)
    wanted_kind, wanted_size = _shape(wanted)
    return kind == wanted_kind and (size >= wanted_size or not can.has_sized_types)


def _shape(name: str) -> tuple[str, int]:
    words = re.match(r"[\w ]+", name.upper())
    bare = words[0].strip() if words else name
    if bare in _TEXTS:
        length = re.search(r"\((\d+)\)", name)
        return "text", int(length[1]) if length else _ENDLESS
    return _SIZES.get(bare, (name.upper(), 0))
