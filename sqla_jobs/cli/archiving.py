"""`sqla-jobs archive`: one pass of the archiver, now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from sqla_jobs.cli.moving import Care, in_batches, sure, tell_moved
from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.stops import refused
from sqla_jobs.cli.terminal import Page
from sqla_jobs.cli.texts import duration, plural
from sqla_jobs.operations.archive import preview
from sqla_jobs.operations.batches import Count
from sqla_jobs.rules.retention import Retention
from sqla_jobs.runtime.archiver import Archiver
from sqla_jobs.status import JobStatus

_AGE: Final[dict[str, Any]] = {
    "parser": duration,
    "metavar": "DURATION",
    "rich_help_panel": "How old; what the app's worker has as retention, unless given",
}


@dataclass(frozen=True)
class Ages:
    """How long ago jobs ended, by their status."""

    done: Annotated[timedelta | None, typer.Option("--done", help="Jobs that were done longer ago.", **_AGE)] = None
    failed: Annotated[timedelta | None, typer.Option("--failed", help="Those that failed.", **_AGE)] = None
    dead: Annotated[timedelta | None, typer.Option("--dead", help="Those that died.", **_AGE)] = None
    archived: Annotated[
        timedelta | None, typer.Option("--archived", help="Delete from the archive what came in longer ago.", **_AGE)
    ] = None

    def retention(self, default: Retention | None) -> Retention:
        """Give what is to be done."""
        if any(age is not None for age in vars(self).values()):
            return Retention(**vars(self))
        if default is None:
            raise refused(
                "which jobs? The app's worker has no retention: --done 1d, --failed 30d, --dead 90d, --archived 1d"
            )
        return default


def archive(cli: Cli, *, ages: Ages, care: Care) -> None:
    """Move finished jobs into the archive, or delete them where there is none; workers with a retention do so too."""
    retention = ages.retention(cli.worker.retention)
    jobs = cli.jobs
    counts = cli.read(lambda session: preview(session, jobs, retention))
    past = "archived" if jobs.archive is not None else "deleted"
    if care.is_dry:
        document = {
            "dry_run": True,
            "counts": [
                {"status": status, "count": count.count, "is_capped": count.is_capped}
                for status, count in counts.items()
            ],
        }
        cli.terminal.show(document, lambda: Page([f"{text} would be {verb}" for text, verb in _told(counts, past)]))
        return
    changed = skipped = 0
    total = sum(count.count for count in counts.values())
    if total:
        sure(cli, care, "; ".join(f"{text} to be {verb}" for text, verb in _told(counts, past)) + ": go on?")
        is_capped = any(count.is_capped for count in counts.values())
        passing = Archiver(jobs, cli.connector, retention).one_pass()
        changed, skipped = in_batches(cli, past, passing, total=None if is_capped else total)
    tell_moved(cli, past, changed, skipped)


def _told(counts: Mapping[JobStatus | None, Count], past: str) -> list[tuple[str, str]]:
    """Say how many there are of each status, and what is done to them."""
    return [
        (
            plural(count.count, f"{status or 'archived'} job", is_capped=count.is_capped),
            past if status is not None else "deleted",
        )
        for status, count in counts.items()
    ]
