"""`sqla-jobs jobs …`: look at jobs, and move them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, cast

import typer
from sqlalchemy.orm import Session

from sqla_jobs.cli.commands import command
from sqla_jobs.cli.filters import Filters, Paging
from sqla_jobs.cli.moving import DELETING, BulkCare, Ids, cancelling, move, requeueing
from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.stops import refused
from sqla_jobs.cli.terminal import Listing, Page, Sheet, facts_of
from sqla_jobs.cli.texts import LARGEST, ago, clock, line
from sqla_jobs.operations.listing import (
    FoundJob,
    JobDetails,
    JobFilter,
    JobPage,
    find_archived_jobs,
    find_jobs,
    show_job,
)
from sqla_jobs.operations.why import why
from sqla_jobs.rules.masking import masked, masked_text
from sqla_jobs.schema.statements import current_time

group = typer.Typer(help="Look at jobs, and move them.", no_args_is_help=True)

JobId = Annotated[int, typer.Argument(metavar="ID", help="A job's id.")]
MaxAttempts = Annotated[
    int | None, typer.Option("--max-attempts", min=1, max=LARGEST, help="How many attempts they have from now on.")
]

IN_A_LIST: Final = (
    *("id", "type", "queue", "status", "run_at", "attempts", "max_attempts", "created_at", "started_at"),
    *("finished_at", "locked_by", "locked_until", "is_known", "archived_at"),
)

_IN_FULL: Final = (
    *("idempotency_key", "refunds", "claims", "lease_expirations", "last_lease_expired_at", "schedule_id", "slot"),
    "seen_at",
)


@command(group, "list")
def list_jobs(
    cli: Cli,
    *,
    which: Filters,
    part: Paging,
    is_archived: Annotated[
        bool, typer.Option("--archived", help="Those in the archive instead; what came in last comes first.")
    ] = False,
) -> None:
    """List jobs: the running first, then the ready in their order, then the finished, newest first."""
    if not is_archived:
        tell_jobs(cli, find_jobs, which.filter(cli.jobs.table, None), part, "jobs list")
        return
    if cli.jobs.archive is None:
        raise refused("this app keeps no archive: Jobs(…, archive=ArchivedJob), a model with ArchivedJobMixin")
    tell_jobs(cli, find_archived_jobs, which.filter(cli.jobs.archive, None), part, "jobs list --archived")


@command(group, "show")
def show(cli: Cli, *, job_id: JobId) -> None:
    """Show all of one job, also of an archived one; secrets are masked."""
    job = cli.read(lambda session: show_job(session, cli.jobs, job_id))
    cli.terminal.show(_full(job), lambda: _sheet(job))


@command(group, "why")
def tell_why(cli: Cli, *, job_id: JobId) -> None:
    """Say why a job is not running, or that it is."""
    found = cli.read(lambda session: why(session, cli.jobs, job_id))
    text = masked_text(found.text)
    cli.terminal.show(facts_of(found, ("job_id", "status", "reason")) | {"text": text}, lambda: Page([text]))


@command(group, "requeue")
def requeue(cli: Cli, *, which: Filters, care: BulkCare, ids: Ids = None, max_attempts: MaxAttempts = None) -> None:
    """Make failed and dead jobs ready again, due now, with all their attempts."""
    move(cli, requeueing(max_attempts), ids, which, care)


@command(group, "cancel")
def cancel(
    cli: Cli,
    *,
    which: Filters,
    care: BulkCare,
    ids: Ids = None,
    reason: Annotated[str, typer.Option("--reason", help="Kept as their last error.")] = "cancelled",
) -> None:
    """End ready and running jobs as failed; a running handler sees it at its worker's next heartbeat."""
    move(cli, cancelling(reason), ids, which, care)


@command(group, "delete")
def delete(cli: Cli, *, which: Filters, care: BulkCare, ids: Ids = None) -> None:
    """Delete done, failed and dead jobs."""
    move(cli, DELETING, ids, which, care)


def tell_jobs(cli: Cli, find: Callable[..., JobPage], where: JobFilter, part: Paging, name: str) -> None:
    """Print a page of the jobs that *find* gives."""

    def look(session: Session) -> tuple[datetime, JobPage]:
        jobs = cli.jobs
        bind = {"mapper": jobs.table.mapper}
        now: datetime = session.scalars(current_time(jobs.table), bind_arguments=bind).one()
        return now, find(session, jobs, where, limit=part.limit, after=part.after)

    now, page = cli.read(look)
    cli.terminal.show(
        {"at": now, "jobs": [_brief(job) for job in page.jobs], "after": page.after, "looked_at": page.looked_at},
        lambda: Page([_table(page.jobs, now) if page.jobs else "no such jobs"]),
    )
    if page.after is None or cli.terminal.is_json:
        return
    is_short = len(page.jobs) < part.limit
    more = f"looked at {page.looked_at:,} jobs; there may be more" if is_short else "there are more"
    cli.terminal.note(f"{more}: sqla-jobs {name} … --after {page.after}")


def _brief(job: FoundJob) -> dict[str, Any]:
    return facts_of(job, IN_A_LIST) | {"error": None if job.error is None else masked_text(job.error)}


_MASKED: Final = ("payload", "result", "trace", "last_error", "errors", "idempotency_key")


def _full(job: JobDetails) -> dict[str, Any]:
    return {
        **_brief(job),
        **facts_of(job, _IN_FULL),
        **{name: _masked(getattr(job, name)) for name in _MASKED},
    }


def _table(jobs: Sequence[FoundJob], now: datetime) -> Listing:
    rows = [
        (
            *(str(job.id), _type(job), job.queue, job.status, _when(job, now), f"{job.attempts}/{job.max_attempts}"),
            line(masked_text(job.error or "")),
        )
        for job in jobs
    ]
    columns = ("id", "type", "queue", "status", "when", "attempts", "error")
    return Listing(columns, rows, numbers=frozenset({"id"}), has_remarks=True)


def _type(job: FoundJob) -> str:
    return job.type if job.is_known else f"{job.type} (no handler)"


def _when(job: FoundJob, now: datetime) -> str:
    """Say how long ago the status began, or that its time is still to come."""
    match job.status:
        case "ready":
            at, word = job.run_at, "due "
        case "running":
            at, word = job.started_at, "claimed "
        case _:
            at, word = job.finished_at, ""
    if at is None:
        return "-"
    return f"{word}in {ago(at - now)}" if at > now else f"{word}{ago(now - at)} ago"


def _sheet(job: JobDetails) -> Page:
    rows = [
        ("id", str(job.id)),
        ("type", _type(job)),
        ("queue", job.queue),
        ("status", job.status),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        *((name, clock(at)) for name in _TIMES if (at := getattr(job, name)) is not None),
        *((name, masked_text(str(value))) for name in _NUMBERS if (value := getattr(job, name))),
        ("payload", _json(job.payload)),
        *([("result", _json(job.result))] if job.result is not None else []),
        *([("trace", _json(job.trace))] if job.trace is not None else []),
        *map(_attempt, history := _history(job.errors)),
    ]
    if job.last_error and not (history and _error(history[-1]) == job.last_error):
        rows.append(("last error", "\n" + masked_text(job.last_error)))
    return Page([Sheet([(name.replace("_", " "), value) for name, value in rows])])


_TIMES: Final = (
    *("created_at", "run_at", "slot", "started_at", "finished_at", "archived_at", "locked_until"),
    "last_lease_expired_at",
)

_NUMBERS: Final = ("locked_by", "idempotency_key", "claims", "refunds", "lease_expirations", "schedule_id")


def _history(errors: object) -> list[object]:
    """Give the entries; somebody may have written anything there."""
    return cast("list[object]", errors) if isinstance(errors, list) else []


def _attempt(error: object) -> tuple[str, str]:
    if not isinstance(error, dict):
        return "attempt", _json(error)
    entry = cast("dict[str, object]", error)
    by = f"{entry.get('started_at')} by {entry.get('worker')}"
    return f"attempt {entry.get('attempt')}", f"{by}\n{masked_text(str(_error(entry)))}"


def _error(entry: object) -> object:
    return cast("dict[str, object]", entry).get("error") if isinstance(entry, dict) else None


def _json(value: object) -> str:
    try:
        text = json.dumps(masked(value), indent=2, ensure_ascii=False)
    except RecursionError:
        return "(nested too deep to be shown)"
    return f"\n{text}" if "\n" in text else text


def _masked(value: object) -> Any:
    """Mask it; what is nested too deep to be written is None, as is what can't be read."""
    try:
        found = masked(value)
        json.dumps(found, indent=2)
    except RecursionError:
        return None
    return found
