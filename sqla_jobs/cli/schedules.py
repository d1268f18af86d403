"""`sqla-jobs schedules …`: look at schedules, fire them by hand, pause and resume them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final

import typer
from sqlalchemy.orm import Session

from sqla_jobs.cli.commands import command
from sqla_jobs.cli.moving import Care, sure
from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.terminal import Listing, Page, facts_of
from sqla_jobs.cli.texts import ago, clock, instant, line, plural
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.schedules import (
    FoundSchedule,
    Slot,
    backfill,
    list_schedules,
    pause,
    preview,
    preview_backfill,
    resume,
    trigger,
)
from sqla_jobs.rules.masking import masked, masked_text

group = typer.Typer(help="Look at schedules, fire, pause and resume them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A schedule's name.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Schedules' names.")]
IsDry = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]

_TIME: Final[dict[str, Any]] = {"parser": instant, "metavar": "TIME"}

_OF_A_SCHEDULE: Final = (
    *("id", "name", "job_type", "queue", "cron", "timezone", "offset", "enabled", "catch_up", "catch_up_limit"),
    *("overlap", "declared_by", "retired_at", "next_run_at", "last_slot", "slots_missed", "overlaps_skipped"),
    *("created_at", "is_known"),
)

_OF_A_SLOT: Final = ("at", "local", "offset", "run_at")


@command(group, "list")
def list_all(
    cli: Cli,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many.")] = 1000,
    after: Annotated[str | None, typer.Option("--after", metavar="NAME", help="Go on behind this one.")] = None,
) -> None:
    """List schedules by name: of whoever made them, paused, retired and broken ones too."""
    found = cli.read(lambda session: list_schedules(session, cli.jobs, limit=limit, after=after))
    following = found[-1].name if len(found) == limit else None
    cli.terminal.show(
        {"schedules": [_document(each) for each in found], "after": following},
        lambda: Page([_table(found) if found else "no schedules; those of the code come when a worker starts"]),
    )
    if following is not None and not cli.terminal.is_json:
        cli.terminal.note(f"there may be more: sqla-jobs schedules list --after '{following}'")


@command(group, "preview")
def preview_slots(
    cli: Cli,
    *,
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="How many slots.")] = 5,
) -> None:
    """Show the next slots of a schedule, as if it were neither paused nor retired."""
    slots = cli.read(lambda session: preview(session, cli.jobs, name, count=count))
    cli.terminal.show(
        {"name": name, "slots": [_slot_document(slot) for slot in slots]}, lambda: Page([_slot_table(slots)])
    )


@command(group, "trigger")
def trigger_now(cli: Cli, *, name: Name, is_dry: IsDry = False) -> None:
    """Enqueue one job of a schedule now, whatever its slots; also of one that is paused."""

    def store(session: Session) -> tuple[int, str, str]:
        job = trigger(session, cli.jobs, name)
        return job.id, job.type, job.queue

    job_id, type_, queue = cli.rehearse(store) if is_dry else cli.run(store)
    text = f"a job {type_} in queue {queue} would be enqueued" if is_dry else f"job {job_id}: {type_} in queue {queue}"
    document = {"dry_run": is_dry, "name": name, "job_id": None if is_dry else job_id, "type": type_, "queue": queue}
    cli.terminal.show(document, lambda: Page([text]))


@command(group, "pause")
def pause_now(cli: Cli, *, names: Names, is_dry: IsDry = False) -> None:
    """Fire no more slots of schedules until they are resumed; jobs that are there already run."""
    _enable(cli, names, pause, "paused", is_dry=is_dry)


@command(group, "resume")
def resume_now(cli: Cli, *, names: Names, is_dry: IsDry = False) -> None:
    """Fire the slots of schedules again, from now on."""
    _enable(cli, names, resume, "resumed", is_dry=is_dry)


@command(group, "backfill")
def backfill_slots(
    cli: Cli,
    *,
    name: Name,
    care: Care,
    start: Annotated[datetime, typer.Option("--from", help="The first slot may be at this time.", **_TIME)],
    end: Annotated[datetime, typer.Option("--to", help="The last slot is before this time.", **_TIME)],
) -> None:
    """Enqueue the jobs of past slots that have none. Times are ISO 8601 with an offset: 2026-03-01T06:00+01:00."""
    slots = cli.read(lambda session: preview_backfill(session, cli.jobs, name, start, end))
    missing = [slot for slot in slots if slot.job_id is None]
    if not care.is_dry and missing:
        sure(cli, care, f"Enqueue {plural(len(missing), 'job')} of {name!r}, due at once?")
        slots = cli.run(lambda session: backfill(session, cli.jobs, name, start, end))
    new = missing if care.is_dry else [slot for slot in slots if slot.is_new]
    text = f"{plural(len(new), 'job')} of {plural(len(slots), 'slot')}"
    cli.terminal.show(
        {
            "dry_run": care.is_dry,
            "name": name,
            "enqueued": 0 if care.is_dry else len(new),
            "missing": len(missing),
            "slots": [_slot_document(slot) | facts_of(slot, ("job_id", "is_archived", "is_new")) for slot in slots],
        },
        lambda: Page(
            [_backfill_table(slots), f"{text} would be enqueued" if care.is_dry else f"{text} enqueued"]
            if slots
            else ["no slots in that time"]
        ),
    )


def _enable(
    cli: Cli, names: list[str], change: Callable[[Session, Jobs[Any], str], None], past: str, *, is_dry: bool
) -> None:
    def store(session: Session) -> None:
        for name in names:
            change(session, cli.jobs, name)

    if is_dry:
        cli.rehearse(store)
    else:
        cli.run(store)
    would = "would be " if is_dry else ""
    document = {"dry_run": is_dry, "names": names, "enabled": past == "resumed"}
    cli.terminal.show(document, lambda: Page([f"{name}: {would}{past}" for name in names]))


def _document(found: FoundSchedule) -> dict[str, Any]:
    return {
        **facts_of(found, _OF_A_SCHEDULE),
        "state": _state(found),
        "payload": masked(found.payload),
        "last_error": None if found.last_error is None else masked_text(found.last_error),
    }


def _state(found: FoundSchedule) -> str:
    if found.retired_at is not None:
        return "retired"
    if not found.enabled:
        return "paused"
    return "error" if found.last_error is not None else "enabled"


def _table(found: list[FoundSchedule]) -> Listing:
    rows = [
        (
            *(each.name, each.cron, each.timezone, each.job_type if each.is_known else f"{each.job_type} (no handler)"),
            *(_state(each), clock(each.next_run_at), str(each.slots_missed), line(masked_text(each.last_error or ""))),
        )
        for each in found
    ]
    columns = ("name", "cron", "timezone", "type", "state", "next", "missed", "error")
    return Listing(columns, rows, numbers=frozenset({"missed"}), has_remarks=True)


def _slot_document(slot: Slot) -> dict[str, Any]:
    # The wall clock of the schedule's zone is the point of it: it keeps its offset.
    return facts_of(slot, _OF_A_SLOT) | {"local": slot.local.isoformat()}


def _slot_table(slots: list[Slot]) -> Listing:
    rows = [(clock(slot.at), _wall(slot.local), ago(slot.offset)) for slot in slots]
    return Listing(("slot", "local time", "job due after"), rows)


def _backfill_table(slots: list[Slot]) -> Listing:
    rows = [(clock(slot.at), _wall(slot.local), _job(slot)) for slot in slots]
    return Listing(("slot", "local time", "job"), rows)


def _job(slot: Slot) -> str:
    if slot.job_id is None:
        return "none"
    return f"{slot.job_id}{' (archived)' if slot.is_archived else ''}{' (new)' if slot.is_new else ''}"


def _wall(local: datetime) -> str:
    return f"{local:%a %Y-%m-%d %H:%M:%S %z}"
