"""The app that the machine plays with: tables, two releases of its registry, and a clock that stands still.

The clock is `sqla_jobs.testing.Clock`, cut down to whole minutes. It moves when the machine moves it and never by
itself, so every time in every row can be foretold, and two instants can be exactly the same.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import JSON, Text, cast, delete, event, func, literal, select, text, type_coerce, union_all
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs import ArchivedJobMixin, JobMixin, Jobs, ScheduleMixin
from sqla_jobs.schema.constructs import epoch, from_epoch
from sqla_jobs.schema.dialects import BIG_ID
from sqla_jobs.schema.types import UtcDateTime
from sqla_jobs.testing import Clock
from tests.engines import build_engine

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Table

MINUTE: Final = timedelta(minutes=1)

START: Final = datetime(2027, 5, 3, 12, tzinfo=UTC)
"""When each example begins."""

_INTO_THE_MINUTE: Final = timedelta(seconds=5)
"""How far the real clock is moved into a minute, so that it stays in it while the machine does its work."""


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


class Effect(Base):
    """What handlers write through the session that they are given."""

    __tablename__ = "effect"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(BIG_ID)
    claims: Mapped[int]


clock: Final = Clock(Base.metadata)

NOW: Final[Any] = from_epoch(func.round(epoch(clock.now) / 60 - 0.5) * 60)

jobs: Final = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="shop", now=NOW)

older_jobs: Final = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="shop", now=NOW)
"""The registry of the release before: it has no `report` yet."""


def work(n: int = 0) -> None:
    """Never called: the machine plays the workers."""


HANDLERS: Final = {
    "mail": jobs.handler(name="mail", queue="mail", max_attempts=1)(work),
    "report": jobs.handler(name="report", queue="reports", max_attempts=2)(work),
}

older_jobs.handler(name="mail", queue="mail", max_attempts=1)(work)

Rows = dict[int, dict[str, Any]]


class Stored:
    """What the database holds."""

    def __init__(self, session: Session) -> None:
        found: dict[str, Rows] = {name: {} for name in _TABLES}
        rows: Any = session.execute(_everything(session.get_bind().dialect.name))
        for what, written in rows:
            row = json.loads(written)
            found[what][row["id"]] = _decoded(what, row)
        self.jobs, self.archive, self.schedules, effects, now = (found[name] for name in _TABLES)
        self.effects = [(row["job_id"], row["claims"]) for row in effects.values()]
        self.now: datetime = now[1]["now"]


@lru_cache
def _everything(dialect: str) -> Any:
    """All rows of all tables, as JSON: each step of the machine reads them, in one statement."""
    build = func.json_object if dialect == "sqlite" else func.json_build_object
    return union_all(
        *(
            select(
                literal(name), cast(build(*(part for column in table.c for part in _named(column, dialect))), Text())
            )
            for name, table in _TABLES.items()
        )
    )


def _named(column: Any, dialect: str) -> tuple[Any, Any]:
    is_text = dialect == "sqlite" and isinstance(column.type, JSON)
    return text(f"'{column.name}'"), func.json(column) if is_text else column


def _decoded(what: str, row: dict[str, Any]) -> dict[str, Any]:
    for name in _INSTANTS[what]:
        if (value := row[name]) is not None:
            instant = datetime.fromisoformat(value)
            row[name] = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant
    if row.get("offset") is not None:
        row["offset"] = timedelta(seconds=row["offset"])
    return row


_TABLES: Final[dict[str, Any]] = {
    "jobs": Job.__table__,
    "archive": ArchivedJob.__table__,
    "schedules": Schedule.__table__,
    "effects": Effect.__table__,
    "clock": select(literal(1).label("id"), type_coerce(NOW, UtcDateTime()).label("now")).subquery("clock"),
}

_INSTANTS: Final = {
    name: [column.name for column in table.c if isinstance(column.type, UtcDateTime)] for name, table in _TABLES.items()
}


class Scene:
    """The database: made once, emptied for each example.

    :ivar has_row_locks: whether a transaction can stay open while others write
    """

    def __init__(self, url: str) -> None:
        # Whatever waits for a lock waits for ever here: there is one thread.
        self.engine = build_engine(url, connect_args={"options": "-c lock_timeout=5s"} if "postgresql" in url else {})
        self.has_row_locks = self.engine.dialect.name != "sqlite"
        if not self.has_row_locks:
            event.listen(self.engine, "connect", _write_lazily)
        Base.metadata.create_all(self.engine)

    def session(self) -> Session:
        """Give a session, to be closed."""
        return Session(self.engine)

    @contextmanager
    def transaction(self) -> Generator[Session]:
        """Give a session whose transaction is committed at the end of the block."""
        with Session(self.engine) as session, session.begin():
            yield session

    def hold(self, session: Session) -> None:
        """Keep the open transaction, however slow the machine is: the library bounds how long one may be idle."""
        session.execute(text("SELECT set_config('idle_in_transaction_session_timeout', '0', true)"))

    def read(self) -> Stored:
        """Read all there is."""
        with self.transaction() as session:
            return Stored(session)

    def empty(self) -> None:
        """Take all rows away, and set the clock back."""
        with self.transaction() as session:
            tables: list[Table] = Base.metadata.sorted_tables
            for table in tables:
                session.execute(delete(table))
            clock.advance(session, START + _INTO_THE_MINUTE - clock.read(session))

    def close(self) -> None:
        """End the connections."""
        self.engine.dispose()


def _write_lazily(connection: Any, _record: object) -> None:
    """Leave the file to the system: what a crash of the machine leaves of it is nobody's concern."""
    connection.execute("PRAGMA synchronous = OFF")
