"""What must not stand in a module, and where it may all the same: the bans of DESIGN's section on layout.

Each ban brings the snippets that prove it: some that it must catch, and some near them that it must let pass.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.architecture.sources import Source, docstrings, full_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Ban:
    """One thing that modules must not do.

    :ivar says: the ban and its remedy
    :ivar find: gives the offending nodes of a module, each with what is wrong
    :ivar only_in: the places where the ban holds
    :ivar not_in: the places in them where it doesn't
    """

    name: str
    says: str
    find: Callable[[ast.Module], Iterator[tuple[ast.AST, str]]]
    catches: tuple[str, ...]
    lets_pass: tuple[str, ...]
    only_in: tuple[str, ...] = ("sqla_jobs",)
    not_in: tuple[str, ...] = ()

    def violations(self, source: Source) -> list[str]:
        """Return a line for each place where *source* breaks the ban."""
        if not source.is_in(*self.only_in) or source.is_in(*self.not_in):
            return []
        found = {(getattr(node, "lineno", 0), what) for node, what in self.find(source.tree)}
        return [f"{source.path}:{line}: {what}: {self.says}" for line, what in sorted(found)]


# --- finders ----------------------------------------------------------------------------------------------------------


def named(*patterns: str) -> Callable[[ast.Module], Iterator[tuple[ast.AST, str]]]:
    """Make a finder of imported or built-in names: `time.sleep`, or `random.*` for a module and all that is in it."""

    def find(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
        for node, name in full_names(tree):
            for pattern in patterns:
                whole = pattern.removesuffix(".*")
                if name == whole or (whole != pattern and name.startswith(f"{whole}.")):
                    yield node, name

    return find


def attributes(*names: str) -> Callable[[ast.Module], Iterator[tuple[ast.AST, str]]]:
    """Make a finder of attributes of whatever object, called or not."""

    def find(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in names:
                yield node, f".{node.attr}"

    return find


def dialect_names(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Find the names of databases in code: as a string or its start, and as a word of an identifier.

    A sentence for people, as in `"SQLite in memory cannot be shared"`, is none.
    """
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            words = [node.value] if re.match(r"(postgres(ql)?|sqlite|mysql|mariadb)([+:_]|\Z)", node.value) else []
        else:
            words = [name for name in _identifiers(node) if DIALECTS & set(re.split(r"[._]", name.lower()))]
        for word in words:
            yield node, word


DIALECTS: Final = {"postgres", "postgresql", "sqlite", "sqlite3", "mysql", "mariadb"}


def _identifiers(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.keyword(arg=str(name)):
            return [name]
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names):
            return [module or "", *(alias.name for alias in names)]
        case _:
            return []


BUILDERS: Final = {
    *(
        "select",
        "insert",
        "update",
        "delete",
        "text",
        "values",
        "table",
        "column",
        "literal",
        "literal_column",
        "bindparam",
    ),
    *("func", "case", "cast", "try_cast", "type_coerce", "extract", "and_", "or_", "not_", "exists", "any_", "all_"),
    *(
        "union",
        "union_all",
        "except_",
        "intersect",
        "tuple_",
        "over",
        "within_group",
        "lateral",
        "tablesample",
        "alias",
    ),
    *("join", "outerjoin", "true", "false", "null", "asc", "desc", "nulls_first", "nulls_last", "between", "collate"),
    *("distinct", "Select", "Insert", "Update", "Delete", "TextClause", "DDL", "FunctionElement", "Table", "Column"),
    *("Index", "CheckConstraint", "MetaData"),
}
"""What makes SQL. Classes only when they are called: in annotations they are types, and free."""


def sql_builders(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Find SQLAlchemy's functions that make SQL, calls of its classes that do, and methods that go on building."""
    called = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Call) for part in ast.walk(node.func)}
    for node, name in full_names(tree):
        if not name.startswith("sqlalchemy."):
            continue
        parts = name.split(".")
        is_type = parts[-1][0].isupper()
        if BUILDERS & set(parts) and (id(node) in called or not is_type):
            yield node, name
    yield from attributes(*METHODS)(tree)


METHODS: Final = (
    *("where", "filter_by", "order_by", "group_by", "having", "returning", "with_for_update", "select_from"),
    *(
        "scalar_subquery",
        "subquery",
        "cte",
        "on_conflict_do_nothing",
        "on_conflict_do_update",
        "exec_driver_sql",
        "query",
    ),
)


def front_door(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Find imports of `sqla_jobs` itself, or of names in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "sqla_jobs":
            yield node, "from sqla_jobs import …"
        elif isinstance(node, ast.Import) and any(alias.name == "sqla_jobs" for alias in node.names):
            yield node, "import sqla_jobs"


def formatted_sql(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Find SQL text that is put together from strings, in the calls that take SQL text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        if name in {"text", "exec_driver_sql", "literal_column", "DDL", "execute", "executemany"}:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from ((part, f"{name}(…)") for part in ast.walk(argument) if _is_formatted(part))


def _is_formatted(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr(values=values):
            return any(isinstance(value, ast.FormattedValue) for value in values)
        case ast.BinOp(op=ast.Mod() | ast.Add(), left=left, right=right):
            return any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (left, right))
        case ast.Call(func=ast.Attribute(attr="format" | "format_map" | "join" | "replace")):
            return True
        case _:
            return False


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


# --- the bans ---------------------------------------------------------------------------------------------------------

DOORS: Final = (
    *("sqla_jobs/cli", "sqla_jobs/__main__.py", "sqla_jobs/prometheus"),
    *("sqla_jobs/testing.py", "sqla_jobs/migrations.py", "sqla_jobs/doctor.py"),
)

BANS: Final = (
    Ban(
        name="dialect-name",
        says="what differs between databases is a capability in schema/dialects.py",
        find=dialect_names,
        not_in=("sqla_jobs/schema/dialects.py",),
        catches=(
            "if dialect.name == 'postgresql': ...",
            "url.startswith('sqlite:')",
            "url = 'postgresql+psycopg'",
            "Index('name', column, postgresql_where=clause)",
            "options = {'sqlite_autoincrement': True}",
            "from sqlalchemy.dialects import mysql",
            "from sqlalchemy.dialects.postgresql import insert",
            "import sqlite3",
            "dialects.sqlite",
            "if is_postgresql(connection): ...",
            "def mariadb_claim(): ...",
        ),
        lets_pass=(
            "'''sqlite'''",
            "class A:\n    name: str\n    '''postgresql has more'''",
            "raise Wrong('SQLite in memory is one connection')",
            "raise Wrong(f'on PostgreSQL {version}')",
            "capabilities.has_row_locks",
        ),
    ),
    Ban(
        name="sql-builder",
        says="statements are built in schema/",
        find=sql_builders,
        not_in=("sqla_jobs/schema",),
        catches=(
            "from sqlalchemy import select",
            "from sqlalchemy import func as f",
            "from sqlalchemy.sql.expression import bindparam",
            "import sqlalchemy as sa\nsa.update(table)",
            "import sqlalchemy\nsqlalchemy.func.now()",
            "from sqlalchemy import text\ntext('SELECT 1')",
            "from sqlalchemy.sql import Select\nSelect(Job)",
            "connection.exec_driver_sql('SELECT 1')",
            "statements.due(jobs).where(clause)",
            "session.query(Job)",
            "statement.with_for_update(skip_locked=True)",
        ),
        lets_pass=(
            "from sqlalchemy import Engine, Select, Table, create_engine, event, inspect",
            "from sqlalchemy import Select\ndef take(statement: Select[Any]) -> None: ...",
            "from sqla_jobs.schema import statements\nsession.execute(statements.claim(jobs), {'limit': 1})",
            "session.get(Job, 1)",
            "by_name.values()",
            "from sqla_jobs.rules.text import text\ntext('')",
        ),
    ),
    Ban(
        name="bare-parameter",
        says="write schema.constructs.parameter(name): a bare one collides with a column of the app's of that name",
        find=named(*(f"sqlalchemy.{place}bindparam" for place in ("", "sql.", "sql.expression."))),
        not_in=("sqla_jobs/schema/constructs.py",),
        catches=(
            "from sqlalchemy import bindparam",
            "import sqlalchemy as sa\nsa.bindparam('limit')",
            "from sqlalchemy.sql import bindparam as parameter",
        ),
        lets_pass=("from sqlalchemy import BindParameter", "parameter('limit')"),
    ),
    Ban(
        name="front-door",
        says="import from the module that has it: the front door is of the highest rank",
        find=front_door,
        not_in=DOORS,
        catches=("import sqla_jobs", "from sqla_jobs import enqueue", "def f():\n    import sqla_jobs as jobs"),
        lets_pass=("import sqla_jobs.errors", "from sqla_jobs.operations import leases", "from sqla_jobs_web import x"),
    ),
    Ban(
        name="transaction",
        says="only runtime and the doors own transactions; an operation takes part in its caller's",
        find=attributes("commit", "rollback", "begin"),
        not_in=("sqla_jobs/runtime", *DOORS),
        catches=(
            "session.commit()",
            "session.rollback()",
            "with sessions.begin() as session: ...",
            "finish = session.commit",
        ),
        lets_pass=(
            "with session.begin_nested(): ...",
            "session.flush()",
            "event.listen(session, 'after_commit', wake)",
        ),
    ),
    Ban(
        name="sleep",
        says="wait for an event, with a time-out",
        find=named("time.sleep", "asyncio.sleep"),
        only_in=("sqla_jobs", "tests", "examples"),
        catches=(
            "import time\ntime.sleep(1)",
            "from time import sleep",
            "import asyncio as aio\nasync def f(): await aio.sleep(1)",
            "def f():\n    from asyncio import sleep as nap\n    nap(1)",
        ),
        lets_pass=("import threading\nthreading.Event().wait(1)", "clock.sleep"),
    ),
    Ban(
        name="wall-clock",
        says="times are the database's; to wait, use time.monotonic",
        find=named(
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
            *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.clock_gettime"),
        ),
        not_in=("sqla_jobs/doctor.py",),  # it tells people how far the two clocks are apart
        catches=(
            "from datetime import datetime\ndatetime.now(UTC)",
            "import datetime as dt\ndt.datetime.utcnow()",
            "from datetime import date\ndate.today()",
            "from time import time",
            "import time\nclock = time.time_ns",
        ),
        lets_pass=(
            "import time\ntime.monotonic()",
            "jobs.now",
            "from datetime import datetime\ndatetime.fromisoformat('')",
        ),
    ),
    Ban(
        name="impure-rule",
        says="a rule decides from its arguments: no clock, no random, no I/O of its own",
        find=named(
            *("time.*", "random.*", "secrets.*", "uuid.uuid1", "uuid.uuid4", "os.*", "pathlib.*", "io.*", "socket.*"),
            *(
                "subprocess.*",
                "threading.Thread",
                "threading.Timer",
                "asyncio.*",
                "builtins.open",
                "builtins.print",
                "builtins.input",
            ),
        ),
        only_in=("sqla_jobs/rules", "sqla_jobs/errors.py", "sqla_jobs/status.py"),
        catches=("import random", "from time import monotonic", "open('file')", "from os import environ"),
        lets_pass=("from datetime import timedelta", "import json", "timeout"),
    ),
    Ban(
        name="clock-in-operation",
        says="operations and statements have no clock and no random of their own; take the value as an argument",
        find=named("time.*", "random.*", "secrets.*", "uuid.uuid1", "uuid.uuid4"),
        only_in=("sqla_jobs/schema", "sqla_jobs/operations"),
        catches=("import time", "from random import uniform"),
        lets_pass=("from datetime import datetime", "session.time"),
    ),
    Ban(
        name="logging",
        says="rules, schema and operations return what happened; runtime logs it",
        find=named("logging.*", "builtins.print"),
        only_in=(
            "sqla_jobs/errors.py",
            "sqla_jobs/status.py",
            "sqla_jobs/rules",
            "sqla_jobs/schema",
            "sqla_jobs/operations",
        ),
        catches=("import logging", "from logging import getLogger", "import logging.handlers", "print('done')"),
        lets_pass=("logging = 1", "import warnings"),
    ),
    Ban(
        name="code-from-data",
        says="payloads are JSON, and nothing stored is ever run",
        find=named(
            *("pickle.*", "marshal.*", "shelve.*", "dill.*", "cloudpickle.*", "builtins.eval", "builtins.exec"),
            *("builtins.compile", "builtins.__import__"),
        ),
        catches=("import pickle", "from pickle import loads", "eval('1')", "exec('x = 1')", "run = eval"),
        lets_pass=("import ast\nast.literal_eval('1')", "session.exec(statement)", "re.compile('')"),
    ),
    Ban(
        name="formatted-sql",
        says="SQL is made of constructs and parameters, never of strings put together",
        find=formatted_sql,
        catches=(
            "text(f'SELECT {column}')",
            "sa.text('SELECT %s' % column)",
            "text('SELECT {}'.format(column))",
            "text('SELECT ' + column)",
            "connection.exec_driver_sql(f'LISTEN {channel}')",
            "cursor.execute('LISTEN ' + channel)",
            "text(text=f'SELECT {column}')",
            "text(', '.join(columns))",
        ),
        lets_pass=(
            "text('SELECT 1')",
            "text('SELECT '\n    '1')",
            "text(f'SELECT 1')",
            "session.execute(statement, {'limit': free + 1})",
            "log.info(f'claimed {count}')",
        ),
    ),
)
