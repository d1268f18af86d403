"""`sqla-jobs dead …`: the dead letters, which are the failed and the dead jobs."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sqla_jobs.cli.commands import command
from sqla_jobs.cli.filters import DeadFilters, Paging
from sqla_jobs.cli.jobs import MaxAttempts, tell_jobs
from sqla_jobs.cli.moving import BulkCare, Ids, move, requeueing
from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.terminal import Listing, Page, facts_of
from sqla_jobs.cli.texts import LARGEST, clock, counted, line
from sqla_jobs.operations.groups import FailureGroup, failure_groups
from sqla_jobs.operations.listing import find_jobs
from sqla_jobs.rules.masking import masked_text
from sqla_jobs.status import DEAD_LETTERS

group = typer.Typer(help="Look at failed and dead jobs, alone and in groups, and requeue them.", no_args_is_help=True)

_STATUSES: Final = tuple(sorted(DEAD_LETTERS))

_OF_A_GROUP: Final = ("key", "place", "types", "count", "first_seen", "last_seen", "sample_id")


@command(group, "list")
def list_dead(cli: Cli, *, which: DeadFilters, part: Paging) -> None:
    """List failed and dead jobs, newest first."""
    tell_jobs(cli, find_jobs, which.filter(cli.jobs.table, _STATUSES), part, "dead list")


@command(group, "groups")
def groups(
    cli: Cli,
    *,
    which: DeadFilters,
    cap: Annotated[
        int, typer.Option("--cap", min=1, max=LARGEST, help="How many jobs to look at, newest first.")
    ] = 10_000,
) -> None:
    """Group failures by the kind of error and its place in the code."""
    where = which.filter(cli.jobs.table, _STATUSES)
    found = cli.read(lambda session: failure_groups(session, cli.jobs, where, cap=cap))
    cli.terminal.show(
        {
            "groups": [facts_of(each, _OF_A_GROUP) | {"error": masked_text(each.error)} for each in found.groups],
            "is_capped": found.is_capped,
        },
        lambda: Page([_table(found.groups) if found.groups else "no failures"]),
    )
    if found.is_capped and not cli.terminal.is_json:
        cli.terminal.note(f"only the newest {cap:,} failures were looked at")


@command(group, "requeue")
def requeue(cli: Cli, *, which: DeadFilters, care: BulkCare, ids: Ids = None, max_attempts: MaxAttempts = None) -> None:
    """Make failed and dead jobs ready again, due now, with all their attempts; `--group KEY` for a whole group."""
    move(cli, requeueing(max_attempts), ids, which, care)


def _table(groups: tuple[FailureGroup, ...]) -> Listing:
    rows = [
        (
            *(each.key, counted(each.count), clock(each.first_seen), clock(each.last_seen), str(each.sample_id)),
            line(f"{masked_text(each.error)} in {', '.join(each.types)}" + (f", {each.place}" if each.place else "")),
        )
        for each in groups
    ]
    columns = ("group", "jobs", "first", "last", "newest job", "failure")
    return Listing(columns, rows, numbers=frozenset({"jobs", "newest job"}), has_remarks=True)
