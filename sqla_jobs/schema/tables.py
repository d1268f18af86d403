"""An app's tables as the statements see them: their columns, their clock, their channel."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast

from sqlalchemy import Column, ColumnElement, Integer, Table, TypeDecorator, false, inspect, select, type_coerce
from sqlalchemy.orm import MappedColumn, Mapper
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.elements import ClauseElement

from sqla_jobs.errors import InvalidModel, InvalidOption
from sqla_jobs.schema.constructs import db_now
from sqla_jobs.schema.mixins import OUR_JOB_COLUMNS, ArchivedJobMixin, JobMixin, ScheduleMixin, holds
from sqla_jobs.schema.types import UtcDateTime

T = TypeVar("T", bound="MappedTable")

CHANNEL_BYTES = 63
"""PostgreSQL's limit for the name of a channel."""


@dataclass(frozen=True, eq=False)
class MappedTable:
    """One mapped class and how we speak of it. Compared by identity, so that statements can be kept for it."""

    mixin: ClassVar[type[Any]]

    mapper: Mapper[Any]
    now: ColumnElement[Any] = field(default_factory=db_now)
    """Every time that we write or compare is this expression."""

    @cached_property
    def table(self) -> Table:
        """The table of our columns."""
        return cast("Table", self.mapper.local_table)  # `_mapped` looked

    @cached_property
    def needed(self) -> list[str]:
        """The columns that we need."""
        ours = {name for base in self.mixin.__mro__ for name in vars(base)}
        return [column.name for column in self.table.c if column.name in ours]

    @cached_property
    def probe(self) -> Executable:
        """Nothing, of the columns that we need: it fails where the table lacks one."""
        return select(*(self.table.c[name] for name in self.needed)).where(false())

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The column that says which subclass a row is, for single-table inheritance; else nothing."""
        discriminator = self.mapper.polymorphic_on
        if discriminator is None or self.mapper.polymorphic_identity is None:
            return {}
        return {discriminator.key: self.mapper.polymorphic_identity}


@dataclass(frozen=True, eq=False)
class ScheduleTable(MappedTable):
    """A mapped class with `ScheduleMixin`."""

    mixin = ScheduleMixin


@dataclass(frozen=True, eq=False)
class ArchiveTable(MappedTable):
    """A mapped class with `ArchivedJobMixin`."""

    mixin = ArchivedJobMixin


@dataclass(frozen=True, eq=False)
class JobTable(MappedTable):
    """A mapped class with `JobMixin`."""

    mixin = JobMixin

    @cached_property
    def channel(self) -> str:
        """The NOTIFY channel, one for each job table."""
        name = f"sqla_jobs:{self.table.fullname}"
        if len(name.encode()) <= CHANNEL_BYTES:
            return name
        return f"sqla_jobs:{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    @cached_property
    def has_defaults_by_row(self) -> bool:
        """Whether Python computes values for each new row: functions as defaults of the app's columns, versions.

        And the payload, where the app has put a type of its own around it.
        """
        has_function = any(column.default is not None and column.default.is_callable for column in self.table.c)
        is_wrapped = isinstance(self.table.c.payload.type, TypeDecorator)
        return has_function or is_wrapped or self.mapper.version_id_col is not None

    def own_columns(self, given: dict[str, Any]) -> dict[str, Any]:
        """Turn the app's attribute names into column keys.

        :raises InvalidOption: no such column, or one of ours
        """
        columns: dict[str, Any] = {}
        for name, value in given.items():
            if name in OUR_JOB_COLUMNS:
                raise InvalidOption(f"columns={{…}} is for columns of your own, and {name!r} is one of the library's")
            # The mapper's columns are also expressions, and those of a parent's table.
            own_names = {key for key, column in self.mapper.columns.items() if column.table is self.table}
            if name not in own_names:
                own = ", ".join(sorted(own_names - OUR_JOB_COLUMNS)) or "none"
                raise InvalidOption(f"{self.mapper.class_.__name__} has no column {name!r}; its own columns: {own}")
            if isinstance(value, ClauseElement) or hasattr(value, "__clause_element__"):
                raise InvalidOption(f"columns={{…}} takes values, and {name!r} has a SQL expression")
            columns[self.mapper.columns[name].key] = value
        return columns


def job_table(model: type[Any], now: ColumnElement[Any] | None) -> JobTable:
    """Look at a mapped class that is to hold jobs.

    :raises InvalidModel: it cannot; the message says why
    """
    return _mapped(JobTable, model, now)


def schedule_table(model: type[Any], now: ColumnElement[Any] | None) -> ScheduleTable:
    """Look at a mapped class that is to hold schedules.

    :raises InvalidModel: it cannot; the message says why
    """
    return _mapped(ScheduleTable, model, now)


def archive_table(model: type[Any], now: ColumnElement[Any] | None) -> ArchiveTable:
    """Look at a mapped class that is to hold archived jobs.

    :raises InvalidModel: it cannot; the message says why
    """
    return _mapped(ArchiveTable, model, now)


def _mapped(kind: type[T], model: type[Any], now: ColumnElement[Any] | None) -> T:
    mixin = kind.mixin
    mapper = cast("Any", inspect(model, raiseerr=False))
    base = mixin.__name__
    if not _is_mapper(mapper):
        raise InvalidModel(f"{model!r} is not a mapped class with a table: `class …({base}, Base): __tablename__ = …`")
    if not issubclass(model, mixin):
        raise InvalidModel(f"{model.__name__} has no {base} among its bases: `class {model.__name__}({base}, Base)`")
    if not holds(mapper.local_table, mixin):
        raise InvalidModel(
            f"{model.__name__} has a table joined to its parent's, and our statements lock and fill one table: "
            "register the parent, or use single-table inheritance (no __tablename__ on the child)"
        )
    _check_columns(kind, mapper, model.__name__)
    return kind(mapper) if now is None else kind(mapper, _as_instant(now))


def _check_columns(kind: type[MappedTable], mapper: Any, model: str) -> None:
    """Refuse columns that are not what ours have to be: the app's discriminator, or another mixin's."""
    base, discriminator = kind.mixin.__name__, mapper.polymorphic_on
    if discriminator is not None and not _is_column(discriminator):
        raise InvalidModel(
            f"{model} tells its classes apart by an expression, which an INSERT can't set: make polymorphic_on a column"
        )
    for name, wanted in _types(kind.mixin).items():
        if discriminator is not None and discriminator.key == name:
            raise InvalidModel(
                f"{model} tells its classes apart by {name!r}, which is one of the library's columns: "
                "make polymorphic_on a column of your own, such as `kind`"
            )
        found = mapper.local_table.c.get(name)
        if found is None or not _serves(found.type, wanted):
            is_found = "missing under that name" if found is None else f"{found.type!r}, of another base"
            raise InvalidModel(
                f"{model}.{name} is {is_found}: put the mixin first, `class {model}({base}, …)`, and leave its columns "
                "as they are"
            )


def _types(mixin: type[Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {name: part for base in reversed(mixin.__mro__) for name, part in vars(base).items()}
    return {name: part.column.type for name, part in parts.items() if _is_mapped(part)}


def _serves(found: Any, wanted: object) -> bool:
    """Tell times that may be naive, and ids that are no numbers; a decorator of the app's may be around a number."""
    if isinstance(wanted, UtcDateTime):
        return isinstance(found, UtcDateTime)
    return not isinstance(wanted, Integer) or isinstance(getattr(found, "impl", found), Integer)


def _is_mapped(part: object) -> bool:
    return isinstance(part, MappedColumn)


def _is_column(found: object) -> bool:
    return isinstance(found, Column)


def _is_mapper(found: object) -> bool:
    return isinstance(found, Mapper)


def _as_instant(now: ColumnElement[Any]) -> ColumnElement[Any]:
    kind = type(cast("object", now))
    if not issubclass(kind, ColumnElement):
        raise InvalidOption(f"now is a SQL expression, and is a {kind.__name__}: leave it out for the real clock")
    return type_coerce(now, UtcDateTime())
