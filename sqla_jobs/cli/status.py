"""`sqla-jobs status`: the figures of the tables, once, again and again, or against limits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.stops import NO, database_trouble, is_of_database, refused
from sqla_jobs.cli.terminal import Listing, Page, Sheet, facts_of
from sqla_jobs.cli.texts import LARGEST, ago, clock, counted, duration, plural
from sqla_jobs.operations.stats import LaneStats, Stats, stats

_CAP: Final = 10_000

_PANEL: Final = "Limits, for probes: exit code 1 if one is exceeded"

_COUNT: Final[dict[str, Any]] = {"min": 0, "max": LARGEST - 1, "metavar": "N", "rich_help_panel": _PANEL}

_FIGURES: Final = (
    *("at", "oldest_ready", "due", "later", "unknown", "running", "lanes_left_out", "attempts", "expired_last_hour"),
    "leases_over",
    *("failed", "dead", "oldest_transaction", "cap", "capped"),
)

_OF_A_LANE: Final = (
    *("queue", "type", "is_known", "due", "later", "running", "oldest", "is_due_capped", "is_later_capped"),
)

_OF_RUNNING: Final = ("job_id", "type", "queue", "started_at", "age", "locked_by", "locked_until")

_OF_SCHEDULES: Final = (*("enabled", "paused", "retired", "in_error", "slots_missed", "overlaps_skipped", "capped"),)


@dataclass(frozen=True)
class Limits:
    """What is too much; the options are named `--max-…`."""

    max_age: Annotated[
        timedelta | None,
        typer.Option(
            parser=duration, metavar="DURATION", help="That the oldest due job waits.", rich_help_panel=_PANEL
        ),
    ] = None
    max_due: Annotated[int | None, typer.Option(help="Due jobs.", **_COUNT)] = None
    max_dead: Annotated[int | None, typer.Option(help="Dead jobs.", **_COUNT)] = None
    max_failed: Annotated[int | None, typer.Option(help="Failed jobs.", **_COUNT)] = None
    max_expired: Annotated[
        int | None, typer.Option(help="Leases that ran out: in the last hour, or not given back.", **_COUNT)
    ] = None
    max_schedules_in_error: Annotated[int | None, typer.Option(help="Schedules that can't fire.", **_COUNT)] = None

    @property
    def is_given(self) -> bool:
        """Whether there is one."""
        return any(limit is not None for limit in vars(self).values())

    @property
    def cap(self) -> int:
        """Where counts may stop: past every limit."""
        return max([_CAP, *(limit + 1 for limit in vars(self).values() if isinstance(limit, int))])

    def exceeded(self, found: Stats) -> Iterator[tuple[str, str]]:
        """Give the name of each that is exceeded, and how."""
        if self.max_age is not None and (age := oldest_known(found)) is not None and age > self.max_age:
            yield "max_age", f"oldest due job: {ago(age)}, over {ago(self.max_age)}"
        in_error = 0 if found.schedules is None else found.schedules.in_error
        for name, number, what in (
            ("max_due", found.due, "due jobs"),
            ("max_dead", sum(found.dead.values()), "dead jobs"),
            ("max_failed", sum(found.failed.values()), "failed jobs"),
            ("max_expired", found.expired_last_hour + found.leases_over, "leases that ran out"),
            ("max_schedules_in_error", in_error, "schedules in error"),
        ):
            limit: int | None = getattr(self, name)
            if limit is not None and number > limit:
                yield name, f"{what}: {number:,}, over {limit:,}"


def oldest_known(found: Stats) -> timedelta | None:
    """Tell how long the oldest due job waits that this app can run."""
    return max((lane.oldest for lane in found.lanes if lane.is_known and lane.oldest is not None), default=None)


def status(
    cli: Cli,
    *,
    limits: Limits,
    seconds: Annotated[
        float | None,
        typer.Argument(metavar="SECONDS", min=0.1, max=86_400, help="With --watch: how often; 2 unless given."),
    ] = None,
    is_watching: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
) -> None:
    """Show how much waits and how long, what runs, and what has failed."""
    if is_watching:
        if cli.terminal.is_json or limits.is_given:
            raise refused("--watch is for people: leave out --json and --max-…")
        _watch(cli, seconds or 2.0)
        return
    if seconds is not None:
        raise refused("SECONDS goes with --watch: sqla-jobs status --watch 5")
    found = cli.read(lambda session: stats(session, cli.jobs, cap=limits.cap))
    exceeded = dict(limits.exceeded(found))
    cli.terminal.show(_document(found) | {"exceeded": [*exceeded]}, lambda: _page(found))
    for text in exceeded.values():
        cli.terminal.note(text, style="red")
    if exceeded:
        raise typer.Exit(NO)


def _watch(cli: Cli, seconds: float) -> None:
    """Show the figures until Ctrl-C, and leave the last ones; a database that is away is one of them."""
    never = threading.Event()
    view = Group()
    # Where nobody sees them move, they come one below the other.
    live = Live(console=cli.terminal.out, screen=True, auto_refresh=False) if cli.terminal.is_read_by_people else None
    try:
        with live or contextlib.nullcontext():
            for view in _views(cli, seconds):
                if live is None:
                    cli.terminal.write(view)
                else:
                    live.update(view, refresh=True)
                never.wait(seconds)
    except KeyboardInterrupt:
        if live is not None:
            cli.terminal.write(view)


def _views(cli: Cli, seconds: float) -> Iterator[Group]:
    parts: list[Any] = []
    jobs = cli.jobs  # now: what is wrong with the app is no outage
    while True:
        try:
            found = cli.read(lambda session: stats(session, jobs, cap=_CAP))
        except (SQLAlchemyError, OSError) as error:
            if not is_of_database(error):
                raise
            trouble = Text(f"{database_trouble(error, cli.database)}\n", style="bold red")
        else:
            trouble = Text(f"{clock(found.at)}; every {seconds:g} s, until Ctrl-C\n", style="dim")
            parts = [cli.terminal.rendered(part) for part in _page(found).parts]
        yield Group(trouble, *parts)


def _document(found: Stats) -> dict[str, Any]:
    return {
        **facts_of(found, _FIGURES),
        "lanes": [facts_of(lane, _OF_A_LANE) for lane in found.lanes],
        "oldest_running": None if found.oldest_running is None else facts_of(found.oldest_running, _OF_RUNNING),
        "schedules": None if found.schedules is None else facts_of(found.schedules, _OF_SCHEDULES),
    }


def _page(found: Stats) -> Page:
    parts: list[str | Listing | Sheet] = [Sheet([*_summary(found)])]
    if found.lanes:
        parts += ["", _lanes(found.lanes)]
    if found.lanes_left_out:
        parts.append("there are more queues and types than these")
    return Page(parts)


def _summary(found: Stats) -> Iterator[tuple[str, str]]:
    def number(name: str, value: int) -> str:
        return counted(value, is_capped=name in found.capped)

    yield "oldest due", ago(oldest_known(found))
    for name in ("due", "later", "running"):
        yield name, number(name, getattr(found, name))
    if found.unknown:
        yield "no handler here", f"{number('unknown', found.unknown)} ready"
    for name in ("dead", "failed"):
        by_type: dict[str, int] = getattr(found, name)
        types = ", ".join(f"{type_} {count:,}" for type_, count in sorted(by_type.items(), key=lambda each: -each[1]))
        yield name, number(name, sum(by_type.values())) + (f" ({types})" if types else "")
    over = f", {number('leases_over', found.leases_over)} that no worker has given back" if found.leases_over else ""
    yield "leases expired", f"{number('expired_last_hour', found.expired_last_hour)} in the last hour{over}"
    if found.attempts:
        begun = ", ".join(f"{attempts}: {count:,}" for attempts, count in sorted(found.attempts.items()))
        yield "attempts begun", begun + (" of those looked at" if "attempts" in found.capped else "")
    if (oldest := found.oldest_running) is not None:
        yield "oldest running", f"job {oldest.job_id} ({oldest.type}), {ago(oldest.age)}, at {oldest.locked_by}"
    if (schedules := found.schedules) is not None:
        enabled = f"{schedules.enabled:,} enabled ({schedules.in_error:,} in error)"
        others = f"{schedules.paused:,} paused, {schedules.retired:,} retired"
        yield "schedules", f"{enabled}, {others}; {plural(schedules.slots_missed, 'slot')} missed"
    if found.oldest_transaction is not None:
        yield "oldest transaction", ago(found.oldest_transaction)


def _lanes(lanes: tuple[LaneStats, ...]) -> Listing:
    rows = [
        (
            *(lane.queue, lane.type if lane.is_known else f"{lane.type} (no handler)", ago(lane.oldest)),
            counted(lane.due, is_capped=lane.is_due_capped),
            counted(lane.later, is_capped=lane.is_later_capped),
            f"{lane.running:,}",
        )
        for lane in lanes
    ]
    numbers = frozenset({"oldest due", "due", "later", "running"})
    return Listing(("queue", "type", *("oldest due", "due", "later", "running")), rows, numbers=numbers)
