"""What a driver's error says: whose trouble it is."""

from __future__ import annotations

from typing import Any, cast

_OUTAGE_STATES = frozenset({"40001", "40P01", "25006", "25P03", "57P01", "57P02", "57P03", "57P05", "55P03"})
"""Serialization failure, deadlock, read-only, idle kills, shutdowns, lock time-out."""

_OUTAGE_CLASSES = ("08", "53")
"""No connection; no resources: disk full, out of memory, too many connections, some limit of the server's."""

_OUTAGE_TEXTS = (
    "database is locked",
    "database table is locked",
    "database schema is locked",
    "disk i/o error",
    "database or disk is full",
)

_STALE_PLAN_STATE = "0A000"

_STALE_PLAN_TEXTS = ("cached plan must not change result type", "cached statement plan is invalid")
"""The server's, and what SQLAlchemy makes of it for asyncpg: the state alone says only that something can't be done."""

_READ_ONLY_STATE = "25006"

_MISSING_COLUMN_STATE = "42703"

_MISSING_TABLE_STATE = "42P01"

_LOCK_TIMEOUT_STATE = "55P03"

_REFUSED_STATE = "42501"


def is_outage(error: BaseException) -> bool:
    """Tell whether a driver's error says that the database, and not the statement, is the trouble."""
    state = _state(error)
    if state is not None:
        return state in _OUTAGE_STATES or state.startswith(_OUTAGE_CLASSES) or is_stale_plan(error)
    return any(text in str(error).lower() for text in _OUTAGE_TEXTS) or is_stale_plan(error)


def is_said_by_server(error: BaseException) -> bool:
    """Tell whether it is a driver's own error for what the server says: asyncpg's, while it connects, are bare."""
    return _state(error) is not None


def is_stale_plan(error: BaseException) -> bool:
    """Tell whether a migration has changed what a prepared statement gives: prepared anew, it goes through."""
    if _state(error) not in {_STALE_PLAN_STATE, None}:  # SQLAlchemy 2.1 gives none for asyncpg
        return False
    # By the function of the server's that says so, too: the text may be in another language.
    said_by = getattr(getattr(error, "diag", None), "source_function", None)
    return said_by == "RevalidateCachedQuery" or any(text in str(error) for text in _STALE_PLAN_TEXTS)


def is_missing_column(error: BaseException) -> bool:
    """Tell whether a table lacks a column that a statement names; a missing table is another thing."""
    return _state(error) == _MISSING_COLUMN_STATE or "no such column" in str(error)


def is_refused(error: BaseException) -> bool:
    """Tell whether the role may not do that: a right is missing, or row security is against it."""
    return _state(error) == _REFUSED_STATE


def is_missing_table(error: BaseException) -> bool:
    """Tell whether a statement names a table that is not there (yet)."""
    return _state(error) == _MISSING_TABLE_STATE or "no such table" in str(error)


def is_read_only(error: BaseException) -> bool:
    """Tell whether the server has become a read-only one, or the file: connections are of no use, though alive."""
    return _state(error) == _READ_ONLY_STATE or "readonly database" in str(error)


def is_lock_timeout(error: BaseException) -> bool:
    """Tell whether a row stayed locked for longer than `Capabilities.bounded` lets a statement wait."""
    return _state(error) == _LOCK_TIMEOUT_STATE


_INJECTED = {"serialization": "40001", "deadlock": "40P01", "drop": "08006"}


def injected(kind: str, text: str, base: type[Exception]) -> Exception:
    """Make a driver's error of that kind, for tests: *base* is the driver's class."""
    error: Any = type("Injected", (base,), {})(text)
    error.sqlstate = _INJECTED[kind]
    return cast("Exception", error)


def _state(error: BaseException) -> str | None:
    # psycopg and asyncpg say `sqlstate`; SQLAlchemy's asyncpg adapter passes it on as `sqlstate` or `pgcode`.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
