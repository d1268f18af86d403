"""Every statement that we say, as text: `python -m tests.schema.spoken` writes the pages in `tests/schema/statements`.

A page is there to be read, by a DBA too, and its history shows what changed. Look at the change before you keep it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqla_jobs.schema import statements
from sqla_jobs.schema.dialects import Listen, capabilities
from sqla_jobs.schema.tables import job_table
from tests.schema.models import job_model, new_dialect

if TYPE_CHECKING:
    from sqlalchemy import Dialect, Executable

PAGES: Final = Path(__file__).parent / "statements"

DIALECTS: Final[dict[str, Dialect]] = {
    "postgresql": new_dialect("postgresql+psycopg"),
    "sqlite": new_dialect("sqlite"),
}

JOBS: Final = job_table(job_model(), None)

NEW: Final = frozenset({"type", "payload", "queue", "max_attempts"})


def spoken(dialect: Dialect) -> dict[str, str]:
    """Return the text of each statement by a name that says what it does."""
    can = capabilities(dialect)
    common = {"type": "send", "run_at": JOBS.now}
    channel = JOBS.channel if can.has_notify else None
    said: dict[str, Any] = {
        "claim": statements.claim(JOBS, can, every_queue=False),
        "claim from every queue": statements.claim(JOBS, can, every_queue=True),
        "next due": statements.next_due(JOBS, every_queue=False),
        "renew": statements.renew(JOBS, can),
        "held": statements.held(JOBS, can),
        "settle": statements.settle(JOBS, can),
        "expired": statements.expired(JOBS),
        "strays": statements.strays(JOBS),
        "endings": statements.endings(JOBS, can),
        "current time": statements.current_time(JOBS),
        "insert job": statements.insert_job(JOBS, can, NEW, is_delayed=False, channel=channel),
        "insert job with a delay": statements.insert_job(JOBS, can, NEW, is_delayed=True, channel=None),
        "insert job at a time": statements.insert_job(JOBS, can, NEW | {"run_at"}, is_delayed=False, channel=None),
        "insert job with a key": statements.insert_job(
            JOBS, can, NEW | {"idempotency_key"}, is_delayed=False, channel=None
        ),
        "insert jobs": statements.insert_jobs(JOBS, can, common, has_keys=False),
        "insert jobs with keys": statements.insert_jobs(JOBS, can, common, has_keys=True),
        "jobs by key": statements.by_key(JOBS, ["a", "b"]),
        "job by key": statements.object_by_key(JOBS, "a"),
        "ready of type": statements.ready_of_type(JOBS, "send"),
    }
    if can.has_notify:
        said["notify"] = statements.notify(can, JOBS.channel)
        said["listen"] = Listen(JOBS.channel)
    return {name: compiled(statement, dialect) for name, statement in said.items()}


def compiled(statement: Executable, dialect: Dialect) -> str:
    """Return the statement as it is sent, but for the parameters."""
    lines = str(statement.compile(dialect=dialect)).splitlines()  # type: ignore[attr-defined]  # what we say compiles
    return "\n".join(line.rstrip() for line in lines).strip()


def page(dialect: Dialect) -> str:
    """Return all the statements as one text."""
    return "".join(f"-- {name}\n{said};\n\n" for name, said in spoken(dialect).items()).rstrip() + "\n"


def path(name: str) -> Path:
    """Return where the page of a database is kept."""
    return PAGES / f"{name}.sql"


if __name__ == "__main__":
    for name, dialect in DIALECTS.items():
        path(name).write_text(page(dialect))
