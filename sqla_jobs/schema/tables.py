"""An app's job table as the statements see it: its columns, its clock, its channel."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from sqlalchemy import ColumnElement, Table, inspect, type_coerce
from sqlalchemy.orm import Mapper

from sqla_jobs.errors import InvalidModel, InvalidOption
from sqla_jobs.schema.dialects import db_now
from sqla_jobs.schema.mixins import JobMixin, holds_jobs
from sqla_jobs.schema.types import UtcDateTime

CHANNEL_BYTES = 63
"""PostgreSQL's limit for the name of a channel."""


@dataclass(frozen=True, eq=False)
class JobTable:
    """One mapped job class and how we speak of it. Compared by identity, so that statements can be kept for it."""

    mapper: Mapper[Any]
    now: ColumnElement[Any] = field(default_factory=db_now)
    """Every time that we write or compare is this expression."""

    @cached_property
    def table(self) -> Table:
        """The table of our columns."""
        return cast("Table", self.mapper.local_table)  # `job_table` looked

    @cached_property
    def channel(self) -> str:
        """The NOTIFY channel, one for each job table."""
        name = f"sqla_jobs:{self.table.fullname}"
        if len(name.encode()) <= CHANNEL_BYTES:
            return name
        return f"sqla_jobs:{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The column that says which subclass a row is, for single-table inheritance; else nothing."""
        discriminator = self.mapper.polymorphic_on
        if discriminator is None or self.mapper.polymorphic_identity is None:
            return {}
        return {discriminator.key: self.mapper.polymorphic_identity}

    def own_columns(self, given: dict[str, Any]) -> dict[str, Any]:
        """Turn the app's attribute names into column keys.

        :raises InvalidOption: no such column, or one of ours
        """
        ours = frozenset(vars(JobMixin))
        columns: dict[str, Any] = {}
        for name, value in given.items():
            if name in ours:
                raise InvalidOption(f"columns={{…}} is for columns of your own, and {name!r} is one of the library's")
            if name not in self.mapper.columns:
                own = ", ".join(sorted(set(self.mapper.columns.keys()) - ours)) or "none"
                raise InvalidOption(f"{self.mapper.class_.__name__} has no column {name!r}; its own columns: {own}")
            columns[self.mapper.columns[name].key] = value
        return columns


def job_table(model: type[Any], now: ColumnElement[Any] | None) -> JobTable:
    """Look at a mapped class.

    :raises InvalidModel: it cannot hold jobs; the message says why
    """
    mapper = cast("Any", inspect(model, raiseerr=False))
    if not _is_mapper(mapper):
        raise InvalidModel(
            f"{model!r} is not a mapped class with a table: `class Job(JobMixin, Base): __tablename__ = …`"
        )
    if not issubclass(model, JobMixin):
        raise InvalidModel(
            f"{model.__name__} has no JobMixin among its bases: `class {model.__name__}(JobMixin, Base)`"
        )
    if not holds_jobs(mapper.local_table):
        raise InvalidModel(
            f"{model.__name__} has a table joined to its parent's, and a claim locks and fills one table: "
            "register the parent, or use single-table inheritance (no __tablename__ on the child)"
        )
    return JobTable(mapper) if now is None else JobTable(mapper, _as_instant(now))


def _is_mapper(found: object) -> bool:
    return isinstance(found, Mapper)


def _as_instant(now: ColumnElement[Any]) -> ColumnElement[Any]:
    kind = type(cast("object", now))
    if not issubclass(kind, ColumnElement):
        raise InvalidOption(f"now is a SQL expression, and is a {kind.__name__}: leave it out for the real clock")
    return type_coerce(now, UtcDateTime())
