"""The tables of a released version as plain SQL: `python -m tests.migrations.freeze 0.1.0` writes them, once for each.

A frozen file is never edited: today's worker has to run on it. See docs/upgrading.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.schema import CreateIndex, CreateTable

from sqla_jobs import ArchivedJobMixin, JobMixin, ScheduleMixin
from tests.schema.models import new_dialect

FROZEN: Final = Path(__file__).parent / "frozen"

DIALECTS: Final = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite"}


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


def statements(database: str) -> list[str]:
    """Return what makes today's tables."""
    dialect = new_dialect(DIALECTS[database])
    tables = Base.metadata.sorted_tables
    made = [str(CreateTable(table).compile(dialect=dialect)) for table in tables]
    indexes = sorted((index for table in tables for index in table.indexes), key=lambda index: str(index.name))
    made += [str(CreateIndex(index).compile(dialect=dialect)) for index in indexes]
    return ["\n".join(line.rstrip() for line in each.strip().splitlines()) for each in made]


def path(version: str, database: str) -> Path:
    """Return where the tables of a version are kept."""
    return FROZEN / f"{version}.{database}.sql"


def versions() -> list[str]:
    """Return the versions whose tables are kept."""
    return sorted({kept.name.rsplit(".", 2)[0] for kept in FROZEN.glob("*.sql")})


if __name__ == "__main__":
    for name in DIALECTS:
        file = path(sys.argv[1], name)
        if file.exists():
            sys.exit(f"{file} exists, and is not changed any more")
        file.write_text(";\n\n".join(statements(name)) + ";\n", "utf-8")
