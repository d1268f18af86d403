"""Every statement that we say, as text: `python -m tests.schema.spoken` writes the pages in `tests/schema/statements`.

A page is there to be read, by a DBA too, and its history shows what changed. Look at the change before you keep it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.orm import DeclarativeBase

from sqla_jobs.schema import archiving, listing, reports, schedules, statements
from sqla_jobs.schema.dialects import Listen, capabilities
from sqla_jobs.schema.listing import OF_ONE_KEY, OF_THE_ARCHIVE, Condition, Stretch
from sqla_jobs.schema.mixins import ArchivedJobMixin, ScheduleMixin
from sqla_jobs.schema.tables import archive_table, job_table, schedule_table
from sqla_jobs.status import JobStatus
from tests.schema.models import job_model, new_dialect

if TYPE_CHECKING:
    from sqlalchemy import Dialect, Executable

    from sqla_jobs.schema.dialects import Capabilities

PAGES: Final = Path(__file__).parent / "statements"

DIALECTS: Final[dict[str, Dialect]] = {
    "postgresql": new_dialect("postgresql+psycopg"),
    "sqlite": new_dialect("sqlite"),
}


class Base(DeclarativeBase): ...


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


JOBS: Final = job_table(job_model(), None)
SCHEDULES: Final = schedule_table(Schedule, None)
ARCHIVE: Final = archive_table(ArchivedJob, None)

NEW: Final = ("type", "payload", "queue", "max_attempts")
"""What every new job sets; an insert of one job takes its columns from its parameters."""


def spoken(dialect: Dialect) -> dict[str, str]:
    """Return the text of each statement by a name that says what it does."""
    return {name: compiled(statement, dialect, *KEYS.get(name, ())) for name, statement in built(dialect).items()}


def built(dialect: Dialect) -> dict[str, Any]:
    """Return each statement by a name that says what it does."""
    can = capabilities(dialect)
    common = {"type": "send", "run_at": JOBS.now}
    channel = JOBS.channel if can.has_notify else None

    def inserted(**options: Any) -> Any:
        no: dict[str, Any] = {"has_key": False, "has_time": False, "is_delayed": False, "channel": None}
        return statements.insert_job(JOBS, can, **no | options)

    said: dict[str, Any] = {
        "claim": statements.claim(JOBS, can, every_queue=False),
        "claim from every queue": statements.claim(JOBS, can, every_queue=True),
        "due rows but those that are refused": statements.due_but(JOBS, can, every_queue=False),
        "claim locked rows": statements.claim_these(JOBS, can),
        "next due": statements.next_due(JOBS, every_queue=False),
        "next due but those that are refused": statements.next_due_but(JOBS, can, every_queue=False),
        "renew": statements.renew(JOBS, can),
        "held": statements.held(JOBS, can),
        "settle": statements.settle(JOBS, can),
        "insert payloads": statements.insert_payloads(JOBS, can),
        "complete": statements.complete(JOBS, can),
        "complete one": statements.complete_one(JOBS),
        "expired": statements.expired(JOBS),
        "expired but those that are refused": statements.expired_but(JOBS, can),
        "strays": statements.strays(JOBS, can),
        "endings": statements.endings(JOBS, can),
        "current time": statements.current_time(JOBS),
        "insert job": inserted(channel=channel),
        "insert job with a delay": inserted(is_delayed=True),
        "insert job at a time": inserted(has_time=True),
        "insert job with a key": inserted(has_key=True),
        "insert jobs": statements.insert_jobs(JOBS, can, common, has_keys=False),
        "insert jobs with keys": statements.insert_jobs(JOBS, can, common, has_keys=True),
        "jobs by key": statements.by_key(JOBS, ["a", "b"]),
        "job by key": statements.object_by_key(JOBS, "a"),
        "job by key, whatever the app hides": statements.object_behind(JOBS, "a"),
        "ready of type": statements.ready_of_type(JOBS, "send"),
    }
    if can.has_notify:
        said["notify"] = statements.notify(can, JOBS.channel)
        said["listen"] = Listen(JOBS.channel)
    return said | said_of_schedules(can) | said_by_people(can) | said_in_reports(can) | said_by_archivers(can)


KEYS: Final = {
    "insert job": NEW,
    "insert job with a delay": NEW,
    "insert job at a time": (*NEW, "run_at"),
    "insert job with a key": (*NEW, "idempotency_key"),
}


def said_of_schedules(can: Capabilities) -> dict[str, Any]:
    """Return the statements of a scheduler, and of what people do with schedules."""
    return {
        "look": schedules.look(SCHEDULES, JOBS, can),
        "move": schedules.move(SCHEDULES, can),
        "declared": schedules.declared(SCHEDULES, can),
        "insert schedules": schedules.insert_schedules(SCHEDULES, can),
        "redeclare": schedules.redeclare(SCHEDULES),
        "retire": schedules.retire(SCHEDULES, can),
        "revive": schedules.revive(SCHEDULES, can),
        "schedule by name": schedules.by_name(SCHEDULES, "report"),
        "resume": schedules.enable(SCHEDULES, "report", enabled=True),
        "all names": schedules.all_names(SCHEDULES),
        "listed schedules": schedules.listed(SCHEDULES),
        "archived jobs by key": statements.by_key(ARCHIVE, ["a", "b"]),
    }


def said_by_people(can: Capabilities) -> dict[str, Any]:
    """Return the statements of those who look at jobs and move them by hand."""
    letters = (JobStatus.DEAD, JobStatus.FAILED)
    dead = Stretch((JobStatus.FAILED, JobStatus.DEAD), "finished_at")
    undated = Stretch((JobStatus.DEAD,), "finished_at", is_empty=True)
    lane = Stretch((JobStatus.READY,), "run_at", queue="mail", type="send")
    running = Stretch((JobStatus.RUNNING,), "locked_by")
    told = Condition(type="send", older_than=60.0, error="refused")
    done = Condition(queue="mail", newer_than=60.0, statuses=(JobStatus.DONE, JobStatus.DEAD))
    keyed = Condition(key="order:1", statuses=tuple(JobStatus))
    last = ("2026-11-30 00:00:00", 7)
    return {
        "window of dead letters": listing.window(JOBS, dead, Condition(), after=None),
        "next window of dead letters": listing.window(JOBS, dead, told, after=("2026-11-30 00:00:00", 7)),
        "window of rows ended by hand": listing.window(JOBS, undated, Condition(), after=("", 7)),
        "window of a lane": listing.window(JOBS, lane, Condition(), after=("2026-11-30 00:00:00", 7)),
        "window of running jobs": listing.window(JOBS, running, Condition(), after=("w", 7)),
        "window of one key": listing.window(JOBS, OF_ONE_KEY, keyed, after=None),
        "window of archived jobs": listing.window(ARCHIVE, OF_THE_ARCHIVE, Condition(statuses=letters), after=None),
        "next window of archived jobs": listing.window(ARCHIVE, OF_THE_ARCHIVE, done, after=last),
        "next window of archived jobs of one key": listing.window(ARCHIVE, OF_ONE_KEY, keyed, after=("", 7)),
        "lanes": listing.lanes_of(JOBS),
        "details": listing.details(JOBS),
        "details of an archived job": listing.details(ARCHIVE),
        "jobs ahead": listing.ahead(JOBS),
        "requeue": listing.requeue(JOBS, can, statuses=letters, skip_locked=False),
        "requeue a batch": listing.requeue(JOBS, can, statuses=letters[:1], skip_locked=True),
        "cancel": listing.cancel(JOBS, can, statuses=(JobStatus.READY,), skip_locked=False),
        "remove": listing.remove(JOBS, can, statuses=letters, skip_locked=False),
        "statuses": listing.statuses_of(JOBS, can),
    }


def said_in_reports(can: Capabilities) -> dict[str, Any]:
    """Return the statements of figures."""
    oldest = {"oldest transaction": reports.oldest_transaction()} if can.is_server else {}
    return oldest | {
        "lane counts": reports.lane_counts(JOBS),
        "tallies": reports.tallies(JOBS, can),
        "oldest running": reports.oldest_running(JOBS),
        "schedule counts": reports.schedule_counts(SCHEDULES),
    }


def said_by_archivers(can: Capabilities) -> dict[str, Any]:
    """Return the statements that move finished jobs out of the way."""
    done = archiving.finished(JOBS, JobStatus.DONE, is_first=False)
    return {
        "finished": done,
        "finished, locked": archiving.locked(done, JOBS),
        "finished, counted": archiving.counted(archiving.finished(JOBS, JobStatus.DONE, is_first=True)),
        "undated": archiving.undated(JOBS, JobStatus.DEAD, is_first=True),
        "date": archiving.date(JOBS, can),
        "copy": archiving.copy(JOBS, ARCHIVE, can),
        "remove what was copied": archiving.remove(JOBS, can),
        "archived": archiving.archived(ARCHIVE, is_first=False),
    }


def compiled(statement: Executable, dialect: Dialect, *keys: str) -> str:
    """Return the statement as it is sent with parameters of these *keys*."""
    options = {"column_keys": keys} if keys else {}
    compilable: Any = statement
    lines = str(compilable.compile(dialect=dialect, **options)).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()


def parameters(statement: Any, dialect: Dialect) -> set[str]:
    """Return the names of a statement's parameters, but for those of columns that it writes and for unnamed ones."""
    binds = statement.compile(dialect=dialect).binds
    written = set(statement.table.c.keys()) if statement.is_dml else set[str]()
    return {name for name, bind in binds.items() if not bind.unique} - written


def page(dialect: Dialect) -> str:
    """Return all the statements as one text."""
    return "".join(f"-- {name}\n{said};\n\n" for name, said in spoken(dialect).items()).rstrip() + "\n"


def path(name: str) -> Path:
    """Return where the page of a database is kept."""
    return PAGES / f"{name}.sql"


if __name__ == "__main__":
    for name, dialect in DIALECTS.items():
        path(name).write_text(page(dialect))
