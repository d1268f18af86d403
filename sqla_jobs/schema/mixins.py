"""The tables: columns that an app mixes into models of its own, and the constraints and indexes that go with them.

.. code-block:: python

    class Job(JobMixin, Base):
        __tablename__ = "job"

    class Schedule(ScheduleMixin, Base):
        __tablename__ = "schedule"

    class ArchivedJob(ArchivedJobMixin, Base):
        __tablename__ = "archived_job"

Types and `nullable` stand in every `mapped_column()`, so an app's `type_annotation_map` changes nothing of ours.
Constants have server defaults; times have none, since alembic would freeze one database's clock.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any, cast
from weakref import WeakSet

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    ColumnElement,
    FromClause,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    event,
    literal_column,
    or_,
    text,
)
from sqlalchemy.orm import Mapped, Mapper, mapped_column, validates
from sqlalchemy.sql.elements import ClauseElement, conv

from sqla_jobs.rules.schedules import DEFAULT_LIMIT, check_part
from sqla_jobs.schema.constructs import db_now
from sqla_jobs.schema.dialects import BIG_ID, STORED_JSON, never_reuse_ids, partial_index
from sqla_jobs.schema.types import Seconds, UtcDateTime
from sqla_jobs.status import JobStatus

NAME_BYTES = 63
"""PostgreSQL's limit for the name of anything."""


class _JobColumns:
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


class JobMixin(_JobColumns):
    """The columns of a job. Add your own columns and relationships to the class that takes it."""

    is_duplicate: bool = False
    """Whether the latest `enqueue` that returned this object found it there already. Not a column."""


class ArchivedJobMixin(_JobColumns):
    """The columns of a finished job that was moved out of the job table: as it was, and when it was moved.

    Columns of your own that have the same name on both models are kept.
    """

    id: Mapped[int] = mapped_column(BIG_ID, primary_key=True, autoincrement=False, sort_order=-100)
    """The job's."""
    archived_at: Mapped[datetime] = mapped_column(
        UtcDateTime(), nullable=False, insert_default=db_now(), sort_order=-76
    )


class ScheduleMixin:
    """The columns of a schedule. Rows come from `jobs.schedule(…)`, or are added at run time like any other object.

    Cron text, zone and the rest are checked when an attribute is set, and again when a scheduler reads the row.
    SQLAlchemy takes one `@validates` for an attribute: for checks of your own, `event.listen(Schedule.cron, "set", …)`.
    """

    id: Mapped[int] = mapped_column(BIG_ID, primary_key=True, autoincrement=True, sort_order=-100)
    """Never reused: it is part of its jobs' keys."""
    name: Mapped[str] = mapped_column(String(255), nullable=False, sort_order=-99)
    """Unique."""
    job_type: Mapped[str] = mapped_column(String(255), nullable=False, sort_order=-98)
    """The handler's name."""
    payload: Mapped[dict[str, Any]] = mapped_column(
        STORED_JSON, nullable=False, server_default=text("'{}'"), sort_order=-97
    )
    """The arguments of each job, by name, as JSON."""
    queue: Mapped[str | None] = mapped_column(String(255), nullable=True, sort_order=-96)
    """Instead of the handler's."""
    cron: Mapped[str] = mapped_column(String(255), nullable=False, sort_order=-95)
    """When, in the words of `sqla_jobs.rules.cron`."""
    timezone: Mapped[str] = mapped_column(String(255), nullable=False, server_default="UTC", sort_order=-94)
    """The zone of the cron text: an IANA name."""
    offset: Mapped[timedelta | None] = mapped_column(Seconds(), nullable=True, sort_order=-93)
    """How long after its slot a job is due. NULL: up to 30 s, by the name, so that the top of the hour is no burst."""
    enabled: Mapped[bool] = mapped_column(Boolean(), nullable=False, server_default=text("true"), sort_order=-92)
    """Yours: no code changes it."""
    catch_up: Mapped[str] = mapped_column(String(16), nullable=False, server_default="latest", sort_order=-91)
    """What becomes of slots that no scheduler was there for: `latest`, `all` or `skip`."""
    catch_up_limit: Mapped[int] = mapped_column(
        Integer(), nullable=False, server_default=str(DEFAULT_LIMIT), sort_order=-90
    )
    """How many of them `all` fires at most: the newest."""
    overlap: Mapped[str] = mapped_column(String(16), nullable=False, server_default="allow", sort_order=-89)
    """Whether a slot fires while an earlier job of the schedule is unfinished: `allow` or `skip`."""
    declared_by: Mapped[str | None] = mapped_column(String(255), nullable=True, sort_order=-88)
    """The registry whose code declares it; NULL for a row made at run time."""
    retired_at: Mapped[datetime | None] = mapped_column(UtcDateTime(), nullable=True, sort_order=-87)
    """When that code no longer had it. It fires no more."""
    planned_cron: Mapped[str | None] = mapped_column(String(255), nullable=True, sort_order=-86)
    """What `next_run_at` was planned by. Where it differs from `cron`, the scheduler plans anew."""
    planned_timezone: Mapped[str | None] = mapped_column(String(255), nullable=True, sort_order=-85)
    planned_enabled: Mapped[bool | None] = mapped_column(Boolean(), nullable=True, sort_order=-84)
    next_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime(), nullable=True, sort_order=-83)
    """The next slot; for a row in error, when it is tried again."""
    last_slot: Mapped[datetime | None] = mapped_column(UtcDateTime(), nullable=True, sort_order=-82)
    """The newest slot that has been decided. It never moves back: none fires twice, whatever became of its job."""
    slots_missed: Mapped[int] = mapped_column(BigInteger(), nullable=False, server_default="0", sort_order=-81)
    """Slots that got no job because no scheduler was there in time."""
    overlaps_skipped: Mapped[int] = mapped_column(BigInteger(), nullable=False, server_default="0", sort_order=-80)
    """Slots that got no job because an earlier one was unfinished."""
    last_error: Mapped[str | None] = mapped_column(Text(), nullable=True, sort_order=-79)
    """Why it does not fire, until it does again."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime(), nullable=False, insert_default=db_now(), sort_order=-78)

    @validates("name", "job_type", "queue", "cron", "timezone", "offset", "catch_up", "catch_up_limit", "overlap")
    def _check_part(self, name: str, value: Any) -> Any:
        # A SQL expression has no value yet: a scheduler looks at what came of it.
        return (
            value
            if hasattr(value, "__clause_element__") or isinstance(value, ClauseElement)
            else check_part(name, value)
        )


OUR_JOB_COLUMNS = frozenset(name for name in (*vars(_JobColumns), *vars(JobMixin)) if not name.startswith("__"))

# SQLAlchemy 2.1 refuses an annotated mixin that is no dataclass on a MappedAsDataclass base, and an app's
# type_annotation_map would be asked for these types. Type checkers have read them; the mapping needs none.
for _mixin in (_JobColumns, JobMixin, ArchivedJobMixin, ScheduleMixin):
    _mixin.__annotations__ = {}


# Tables that have their parts. Not in `table.info`: autogenerate would write that into revisions.
_completed: WeakSet[Table] = WeakSet()


def holds(table: Table, mixin: type[Any]) -> bool:
    """Tell whether the mixin's columns are in this very table; a joined child's are in its parent's."""
    return _TELLING[mixin] <= set(table.c.keys())


_TELLING: dict[type[Any], set[str]] = {
    JobMixin: {"idempotency_key", "claims"},
    ArchivedJobMixin: {"idempotency_key", "archived_at"},
    ScheduleMixin: {"planned_cron", "next_run_at"},
}


@event.listens_for(JobMixin, "instrument_class", propagate=True)
def _add_job_parts(mapper: Mapper[Any], class_: type[Any]) -> None:
    """Give the table its constraints and indexes. Here, no `__table_args__` of a subclass can drop them."""
    if (table := _incomplete(mapper, JobMixin)) is not None:
        never_reuse_ids(table)
        _add_check(table)
        _add_job_indexes(table)


@event.listens_for(ArchivedJobMixin, "instrument_class", propagate=True)
def _add_archive_parts(mapper: Mapper[Any], class_: type[Any]) -> None:
    if (table := _incomplete(mapper, ArchivedJobMixin)) is not None:
        _add_check(table)
        c = table.c
        # Has this slot's job been archived? No longer unique: a key is free again once its job is archived.
        _index(table, "key", c.idempotency_key, where=c.idempotency_key.is_not(None))
        # For deleting what is old.
        _index(table, "archived", c.archived_at, c.id)


@event.listens_for(ScheduleMixin, "instrument_class", propagate=True)
def _add_schedule_parts(mapper: Mapper[Any], class_: type[Any]) -> None:
    if (table := _incomplete(mapper, ScheduleMixin)) is not None:
        never_reuse_ids(table)
        c = table.c
        table.append_constraint(UniqueConstraint(c.name, name=_name(table, "uq", "name")))
        # The scheduler's tick: what is due, what people have edited since it was planned, what was just retired.
        _index(table, "due", c.next_run_at, c.id, where=c.retired_at.is_(None))
        _index(table, "edited", c.id, where=and_(c.retired_at.is_(None), is_edited(table)))
        _index(table, "retired", c.retired_at, where=c.retired_at.is_not(None))


def is_edited(table: Table) -> ColumnElement[bool]:
    """Tell whether what people wrote differs from what was planned, or there is no plan."""
    c = table.c
    # In words that all databases read alike, IS DISTINCT FROM being none: one revision serves them all.
    return or_(
        c.planned_cron.is_(None),
        c.cron != c.planned_cron,
        c.planned_timezone.is_(None),
        c.timezone != c.planned_timezone,
        c.planned_enabled.is_(None),
        c.enabled != c.planned_enabled,
        c.enabled == c.next_run_at.is_(None),
    )


STATUS_LITERALS: dict[str, ColumnElement[Any]] = {
    JobStatus.READY: literal_column("'ready'"),
    JobStatus.RUNNING: literal_column("'running'"),
    JobStatus.DONE: literal_column("'done'"),
    JobStatus.FAILED: literal_column("'failed'"),
    JobStatus.DEAD: literal_column("'dead'"),
}
"""Not parameters: the planner must see that a partial index serves a statement, in a generic plan too."""


def is_finished(table: FromClause) -> ColumnElement[bool]:
    """Tell the jobs that run no more; in the very words of an index, which some databases need to see it."""
    return table.c.status.in_([STATUS_LITERALS[name] for name in ("done", "failed", "dead")])


def is_unfinished(table: FromClause) -> ColumnElement[bool]:
    """Tell the others, likewise."""
    return table.c.status.in_([STATUS_LITERALS[name] for name in ("ready", "running")])


def _incomplete(mapper: Mapper[Any], mixin: type[Any]) -> Table | None:
    """Give the table if the mixin's columns are in it and it has not got its parts yet."""
    table: Any = mapper.local_table
    if not _is_table(table) or not holds(table, mixin) or table in _completed:
        return None
    _completed.add(table)
    return cast("Table", table)


def _is_table(selectable: object) -> bool:
    return isinstance(selectable, Table)


def _add_check(table: Table) -> None:
    is_known = table.c.status.in_([status.value for status in JobStatus])
    table.append_constraint(CheckConstraint(is_known, name=_name(table, "ck", "status")))


def _add_job_indexes(table: Table) -> None:
    c = table.c
    # The claim: by queue and type, so that types this worker doesn't know cost it nothing; see statements.claim.
    _index(table, "ready", c.queue, c.type, c.run_at, c.id, where=c.status == "ready")
    # Reaper (all of it: few rows), and a worker's own rows.
    _index(table, "running", c.locked_by, c.id, where=c.status == "running")
    # Archiver and dead letters, oldest first within a status. By status, since people that end a job by plain SQL may
    # leave `finished_at` empty.
    _index(table, "finished", c.status, c.finished_at, c.id, where=is_finished(table))
    # Partial, so that jobs without a key pay nothing for it.
    _index(table, "key", c.idempotency_key, where=c.idempotency_key.is_not(None), unique=True)
    # Lease expirations of the last hour.
    _index(table, "expired", c.last_lease_expired_at, where=c.last_lease_expired_at.is_not(None))
    # Is an earlier job of this schedule unfinished? Empty for all other jobs.
    _index(table, "schedule", c.schedule_id, c.slot, where=and_(c.schedule_id.is_not(None), is_unfinished(table)))


def _index(
    table: Table, token: str, *columns: Any, where: ColumnElement[bool] | None = None, unique: bool = False
) -> None:
    partial = {} if where is None else partial_index(where)
    Index(_name(table, "ix", token), *columns, unique=unique, **partial)


def _name(table: Table, kind: str, token: str) -> str:
    """Name a constraint by the app's convention if that asks for a name to put in; else after the table."""
    convention = table.metadata.naming_convention.get(kind)
    if isinstance(convention, str) and "%(constraint_name)s" in convention:
        return token
    # conv: a name that is final, and that SQLAlchemy shortens to the database's limit instead of raising.
    name: str = conv(_in_bytes(f"{kind}_{table.name}_{token}"))
    return name


def _in_bytes(name: str) -> str:
    """Shorten a name that is no ASCII: SQLAlchemy counts its letters, and PostgreSQL cuts off bytes, quietly."""
    if name.isascii() or len(name.encode()) <= NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name.encode()[: NAME_BYTES - 9].decode(errors='ignore')}_{digest}"
