"""The options that say which jobs are meant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from sqla_jobs.cli.columns import read_columns
from sqla_jobs.cli.texts import duration
from sqla_jobs.operations.listing import JobFilter
from sqla_jobs.schema.tables import MappedTable

_PANEL: Final = "Which jobs"

AGE: Final[dict[str, Any]] = {"parser": duration, "metavar": "DURATION", "rich_help_panel": _PANEL}


@dataclass(frozen=True)
class DeadFilters:
    """Which of the jobs that have a last error; all the options that are given must be true of a job."""

    type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Of this type.", rich_help_panel=_PANEL)
    ] = None
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="In this queue.", rich_help_panel=_PANEL)
    ] = None
    older_than: Annotated[
        timedelta | None,
        typer.Option("--older-than", help="Finished, claimed or due for longer: 90s, 15m, 2h, 7d.", **AGE),
    ] = None
    newer_than: Annotated[
        timedelta | None, typer.Option("--newer-than", help="Finished, claimed or due for less.", **AGE)
    ] = None
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="TEXT", help="With this in its last error.", rich_help_panel=_PANEL),
    ] = None
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="KEY", help="Of this group of `dead groups`.", rich_help_panel=_PANEL),
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="With this idempotency key, to the letter.", rich_help_panel=_PANEL),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME=VALUE",
            help="With this in a column of the app's own; repeat it for several.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in vars(self).items() if value is not None and value != []}

    def filter(self, table: MappedTable, default: Iterable[str] | None) -> JobFilter:
        """Give the filter for the rows of *table*.

        :param default: the statuses, where none is named
        """
        given: dict[str, Any] = {"status": default, **self.given}
        if self.columns:
            given["columns"] = read_columns(table, self.columns)
        return JobFilter(**given)


@dataclass(frozen=True)
class Filters(DeadFilters):
    """The same, for jobs of every status."""

    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", metavar="STATUS", help="ready, running, done, failed, dead; repeat it.", rich_help_panel=_PANEL
        ),
    ] = None


@dataclass(frozen=True)
class Paging:
    """Which part of a list."""

    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many.")] = 50
    after: Annotated[str | None, typer.Option("--after", help="Go on where a list ended.")] = None
