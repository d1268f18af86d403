"""The statements of the archiver: they move finished jobs out of the job table, and old ones out of the archive."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    delete,
    func,
    literal,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Mapper
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import TypeEngine

from sqla_jobs.schema.constructs import later, parameter, read_instant, written_instant
from sqla_jobs.schema.dialects import Capabilities
from sqla_jobs.schema.mixins import STATUS_LITERALS, is_finished
from sqla_jobs.schema.tables import ArchiveTable, JobTable, MappedTable
from sqla_jobs.status import JobStatus

_DOUBLE: TypeEngine[float] = Double()

_IDS: dict[str, Any] = {"id": BigInteger()}


@lru_cache(maxsize=64)
def finished(jobs: JobTable, status: JobStatus, *, is_first: bool) -> Select[Any]:
    """The jobs of *status* that ended longer ago than `age` seconds, oldest first; after a place unless *is_first*.

    Index: `finished`, one range of it. Parameters: age, limit, after_at, after_id.
    """
    rows: Select[Any] = _in_order(_of_status(jobs, status), jobs, jobs.table.c.finished_at, is_first=is_first)
    return rows


@lru_cache(maxsize=64)
def undated(jobs: JobTable, status: JobStatus, *, is_first: bool) -> Select[Any]:
    """The jobs of *status* that don't say when they ended, by id; after an id unless *is_first*.

    Index: `finished`, one range of it. Parameters: limit, after_id.
    """
    c = jobs.table.c
    rows = _of_status(jobs, status).where(c.finished_at.is_(None))
    if not is_first:
        rows = rows.where(c.id > parameter("after_id", type_=BigInteger()))
    ordered: Select[Any] = rows.order_by(c.finished_at, c.id).limit(parameter("limit", type_=Integer()))
    return ordered


@lru_cache(maxsize=64)
def archived(archive: ArchiveTable, *, is_first: bool) -> Select[Any]:
    """The jobs that were archived longer ago than `age` seconds, oldest first; after a place unless *is_first*.

    Index: `archived`, one range of it. Parameters: age, limit, after_at, after_id.
    """
    c = archive.table.c
    rows: Any = select(c.id, written_instant(c.archived_at).label("at"))
    ordered: Select[Any] = _in_order(rows, archive, c.archived_at, is_first=is_first)
    return ordered


def _of_status(jobs: JobTable, status: JobStatus) -> Any:
    c = jobs.table.c
    # As text: no driver loads '-infinity'.
    rows: Any = select(c.id, written_instant(c.finished_at).label("at"))
    return rows.where(c.status == STATUS_LITERALS[status], is_finished(jobs.table))


def _in_order(rows: Any, table: MappedTable, since: Column[Any], *, is_first: bool) -> Any:
    id_: ColumnElement[Any] = table.table.c.id
    rows = rows.where(since <= later(table.now, -parameter("age", type_=_DOUBLE)))
    if not is_first:
        # Past the dead entries that the batches before have left in the index.
        after = tuple_(read_instant(parameter("after_at", type_=Text())), parameter("after_id", type_=BigInteger()))
        rows = rows.where(tuple_(since, id_) > after)
    return rows.order_by(since, id_).limit(parameter("limit", type_=Integer()))


def locked(rows: Select[Any], table: MappedTable) -> Executable:
    """The same rows, locked to be deleted; those that others have locked are passed over."""
    return cast("Executable", rows.with_for_update(skip_locked=True, of=table.table))


def counted(rows: Select[Any]) -> Executable:
    """How many of these rows there are, up to `limit`."""
    return select(func.count()).select_from(rows.subquery("some"))


@lru_cache(maxsize=64)
def copy(jobs: JobTable, archive: ArchiveTable, can: Capabilities) -> Executable:
    """Copy jobs into the archive. Index: the primary key. Parameter: rows."""
    columns = copied_columns(jobs, archive)
    targets: list[Any] = [archive.table.c.archived_at, *columns]
    sources: list[Any] = [archive.now, *columns.values()]
    c = archive.table.c
    for name, identity in archive.identity.items():
        if c[name] not in columns:
            targets.append(c[name])
            sources.append(literal(identity, c[name].type))
    given = can.given(_IDS)
    rows = select(*sources).where(can.among(jobs.table.c.id, select(given.c.id)))
    return cast("Executable", can.insert(archive.table).from_select([target.key for target in targets], rows))


def copied_columns(jobs: JobTable, archive: ArchiveTable) -> dict[Column[Any], Column[Any]]:
    """Give the archive's columns that are copied, each with the job's that goes into it: ours, and the app's own.

    Own ones are told by their attribute's name; where several subclasses use a name, by the column's as well.
    """
    theirs, own = archive.table.c, set(archive.needed) - {"archived_at"}
    copied: dict[Column[Any], Column[Any]] = {theirs[name]: jobs.table.c[name] for name in sorted(own)}
    found = _attributes(jobs)
    taken = {theirs[name] for name in archive.needed}
    for name, columns in _attributes(archive).items():
        sources = found.get(name, [])
        for column in columns:
            if column in taken or column.computed is not None or column.identity is not None:
                continue
            is_plain = len(columns) == len(sources) == 1
            same = sources if is_plain else [source for source in sources if source.name == column.name]
            if same:
                copied[column] = same[0]
    return copied


def _attributes(table: MappedTable) -> dict[str, list[Column[Any]]]:
    """Give the columns of this very table that attributes are mapped to, also those of other classes of its rows."""
    attributes: dict[str, list[Column[Any]]] = {}
    mappers: list[Mapper[Any]] = sorted(table.mapper.base_mapper.self_and_descendants, key=str)
    for mapper in mappers:
        for name, column in mapper.columns.items():
            known = attributes.setdefault(name, [])
            # A mapper's columns are also expressions, and those of a parent's table.
            if getattr(column, "table", None) is table.table and column not in known:
                known.append(column)
    return attributes


@lru_cache(maxsize=64)
def remove(table: MappedTable, can: Capabilities) -> Executable:
    """Delete rows; gives the ids of those that are gone. Index: the primary key. Parameter: rows."""
    given = can.given(_IDS)
    id_ = table.table.c.id
    return delete(table.table).where(can.among(id_, select(given.c.id))).returning(id_)


@lru_cache(maxsize=64)
def date(jobs: JobTable, can: Capabilities) -> Executable:
    """Say that jobs have ended now. Index: the primary key. Parameter: rows."""
    given = can.given(_IDS)
    c = jobs.table.c
    return update(jobs.table).where(can.among(c.id, select(given.c.id))).values(finished_at=jobs.now)
