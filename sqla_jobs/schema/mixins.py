"""The table: columns that an app mixes into a model of its own, and the constraints and indexes that go with them.

.. code-block:: python

    class Job(JobMixin, Base):
        __tablename__ = "job"

Types and `nullable` stand in every `mapped_column()`, so an app's `type_annotation_map` changes nothing of ours.
Constants have server defaults; times have none, since alembic would freeze one database's clock.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from weakref import WeakSet

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    Index,
    Integer,
    String,
    Table,
    Text,
    and_,
    event,
    text,
)
from sqlalchemy.orm import Mapped, Mapper, mapped_column
from sqlalchemy.sql.elements import conv

from sqla_jobs.schema.dialects import BIG_ID, STORED_JSON, db_now, never_reuse_ids, partial_index
from sqla_jobs.schema.types import UtcDateTime
from sqla_jobs.status import JobStatus


class JobMixin:
    """The columns of a job. Add your own columns and relationships to the class that takes it."""

    id: Mapped[int] = mapped_column(BIG_ID, primary_key=True, autoincrement=True, sort_order=-100)
    """Never reused, also not on SQLite."""
    type: Mapped[str] = mapped_column(String(255), nullable=False, sort_order=-99)
    """The handler's name."""
    payload: Mapped[dict[str, Any]] = mapped_column(
        STORED_JSON, nullable=False, server_default=text("'{}'"), sort_order=-98
    )
    """The handler's arguments, by name."""
    queue: Mapped[str] = mapped_column(String(255), nullable=False, server_default="default", sort_order=-97)
    idempotency_key: Mapped[str | None] = mapped_column(String(255), nullable=True, sort_order=-96)
    """Unique while the row exists."""
    status: Mapped[str] = mapped_column(String(16), nullable=False, server_default="ready", sort_order=-95)
    """A `JobStatus`."""
    run_at: Mapped[datetime] = mapped_column(UtcDateTime(), nullable=False, insert_default=db_now(), sort_order=-94)
    """Not before this. A retry moves it."""
    attempts: Mapped[int] = mapped_column(Integer(), nullable=False, server_default="0", sort_order=-93)
    """Attempts begun and not refunded; counted at the claim."""
    max_attempts: Mapped[int] = mapped_column(Integer(), nullable=False, server_default="5", sort_order=-92)
    refunds: Mapped[int] = mapped_column(Integer(), nullable=False, server_default="0", sort_order=-91)
    """Attempts given back because the database failed."""
    claims: Mapped[int] = mapped_column(Integer(), nullable=False, server_default="0", sort_order=-90)
    """Claims ever; it only grows, and is part of the fence."""
    locked_by: Mapped[str | None] = mapped_column(String(255), nullable=True, sort_order=-89)
    """The worker that runs the job, or that finished it."""
    locked_until: Mapped[datetime | None] = mapped_column(UtcDateTime(), nullable=True, sort_order=-88)
    """The lease. In no index, so that a heartbeat is a HOT update on PostgreSQL."""
    last_error: Mapped[str | None] = mapped_column(Text(), nullable=True, sort_order=-87)
    errors: Mapped[list[dict[str, Any]]] = mapped_column(
        STORED_JSON, nullable=False, server_default=text("'[]'"), sort_order=-86
    )
    """The newest ten failed attempts, oldest first: `attempt`, `started_at`, `worker`, `error`."""
    result: Mapped[Any] = mapped_column(STORED_JSON, nullable=True, sort_order=-85)
    """What the handler returned."""
    lease_expirations: Mapped[int] = mapped_column(Integer(), nullable=False, server_default="0", sort_order=-84)
    last_lease_expired_at: Mapped[datetime | None] = mapped_column(UtcDateTime(), nullable=True, sort_order=-83)
    schedule_id: Mapped[int | None] = mapped_column(BIG_ID, nullable=True, sort_order=-82)
    """The schedule that made the job. No foreign key: deleting a schedule leaves its jobs."""
    slot: Mapped[datetime | None] = mapped_column(UtcDateTime(), nullable=True, sort_order=-81)
    """The instant of the schedule that the job stands for."""
    trace: Mapped[Any] = mapped_column(STORED_JSON, nullable=True, sort_order=-80)
    """The caller's trace context."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime(), nullable=False, insert_default=db_now(), sort_order=-79)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime(), nullable=True, sort_order=-78)
    """When the latest attempt was claimed."""
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime(), nullable=True, sort_order=-77)
    """When it became done, failed or dead."""

    is_duplicate: bool = False
    """Whether the latest `enqueue` that returned this object found it there already. Not a column."""


# SQLAlchemy 2.1 refuses an annotated mixin that is no dataclass on a MappedAsDataclass base, and an app's
# type_annotation_map would be asked for these types. Type checkers have read them; the mapping needs none.
JobMixin.__annotations__ = {}


# Tables that have their parts. Not in `table.info`: autogenerate would write that into revisions.
_completed: WeakSet[Table] = WeakSet()


def holds_jobs(table: Table) -> bool:
    """Tell whether the mixin's columns are in this very table; a joined child's are in its parent's."""
    return "idempotency_key" in table.c and "claims" in table.c


@event.listens_for(JobMixin, "instrument_class", propagate=True)
def _add_table_parts(mapper: Mapper[Any], class_: type[Any]) -> None:
    """Give the table its constraints and indexes. Here, no `__table_args__` of a subclass can drop them."""
    table: Any = mapper.local_table
    if _is_table(table) and holds_jobs(table) and table not in _completed:
        _completed.add(table)
        never_reuse_ids(table)
        _add_check(table)
        _add_indexes(table)


def _is_table(selectable: object) -> bool:
    return isinstance(selectable, Table)


def _add_check(table: Table) -> None:
    is_known = table.c.status.in_([status.value for status in JobStatus])
    table.append_constraint(CheckConstraint(is_known, name=_name(table, "ck", "status")))


def _add_indexes(table: Table) -> None:
    c = table.c
    # The claim: by queue and type, so that types this worker doesn't know cost it nothing; see statements.claim.
    _index(table, "ready", c.queue, c.type, c.run_at, c.id, where=c.status == "ready")
    # Reaper (all of it: few rows), and a worker's own rows.
    _index(table, "running", c.locked_by, c.id, where=c.status == "running")
    # Archiver and dead letters, oldest first within a status.
    _index(table, "finished", c.status, c.finished_at, c.id, where=c.finished_at.is_not(None))
    # Partial, so that jobs without a key pay nothing for it.
    _index(table, "key", c.idempotency_key, where=c.idempotency_key.is_not(None), unique=True)
    # Lease expirations of the last hour.
    _index(table, "expired", c.last_lease_expired_at, where=c.last_lease_expired_at.is_not(None))
    # Is an earlier job of this schedule unfinished? Empty for all other jobs.
    unfinished = and_(c.schedule_id.is_not(None), c.finished_at.is_(None))
    _index(table, "schedule", c.schedule_id, c.slot, where=unfinished)


def _index(table: Table, token: str, *columns: Any, where: ColumnElement[bool], unique: bool = False) -> None:
    Index(_name(table, "ix", token), *columns, unique=unique, **partial_index(where))


def _name(table: Table, kind: str, token: str) -> str:
    """Name a constraint by the app's convention if that asks for a name to put in; else after the table."""
    convention = table.metadata.naming_convention.get(kind)
    if isinstance(convention, str) and "%(constraint_name)s" in convention:
        return token
    # conv: a name that is final, and that SQLAlchemy shortens to the database's limit instead of raising.
    name: str = conv(f"{kind}_{table.name}_{token}")
    return name
