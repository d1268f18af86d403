"""Requeue, cancel and delete: of ids, or of all that a filter names, in batches that are transactions of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import typer
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.cli.filters import DeadFilters
from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.stops import NO, Stop, refused
from sqla_jobs.cli.terminal import Page, facts_of
from sqla_jobs.cli.texts import plural
from sqla_jobs.errors import SqlaJobsError
from sqla_jobs.operations.batches import Batch, Count, cancel_batch, count_jobs, delete_batch, requeue_batch
from sqla_jobs.operations.dead_letters import (
    CANCEL,
    DELETE,
    REQUEUE,
    Answer,
    Verb,
    cancel_jobs,
    delete_jobs,
    requeue_jobs,
)
from sqla_jobs.operations.listing import JobFilter, check_id
from sqla_jobs.operations.registry import Jobs

T = TypeVar("T")

_IDS_AT_ONCE: Final = 500

_NAMED: Final = 10
"""Ids that a question names."""

_PANEL: Final = "How"

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Jobs; or name them by the options below.")]


@dataclass(frozen=True)
class Care:
    """How careful a command is that changes many rows."""

    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.", rich_help_panel=_PANEL)
    ] = False
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.", rich_help_panel=_PANEL)] = False


@dataclass(frozen=True)
class BulkCare(Care):
    """The same, where no filter means all of them."""

    is_all: Annotated[bool, typer.Option("--all", help="All of them.", rich_help_panel=_PANEL)] = False


Operation = Callable[[Session], T]


@dataclass(frozen=True, slots=True)
class Move:
    """One way to move jobs.

    :ivar name: what is done, as an order
    """

    name: str
    verb: Verb
    by_id: Callable[[Jobs[Any], Sequence[int]], Operation[list[Answer]]]
    by_filter: Callable[[Jobs[Any], JobFilter, str | None], Operation[Batch]]

    @property
    def statuses(self) -> tuple[str, ...]:
        """Of jobs that can be moved so."""
        return tuple(sorted(self.verb.statuses))


def requeueing(max_attempts: int | None) -> Move:
    """Make failed and dead jobs ready again."""
    return Move(
        "Requeue",
        REQUEUE,
        lambda jobs, ids: lambda session: requeue_jobs(session, jobs, ids, max_attempts=max_attempts),
        lambda jobs, where, after: (
            lambda session: requeue_batch(session, jobs, where, after=after, max_attempts=max_attempts)
        ),
    )


def cancelling(reason: str) -> Move:
    """End ready and running jobs."""
    return Move(
        "Cancel",
        CANCEL,
        lambda jobs, ids: lambda session: cancel_jobs(session, jobs, ids, reason=reason),
        lambda jobs, where, after: lambda session: cancel_batch(session, jobs, where, after=after, reason=reason),
    )


DELETING: Final = Move(
    "Delete",
    DELETE,
    lambda jobs, ids: lambda session: delete_jobs(session, jobs, ids),
    lambda jobs, where, after: lambda session: delete_batch(session, jobs, where, after=after),
)


def move(cli: Cli, how: Move, ids: list[int] | None, which: DeadFilters, care: BulkCare) -> None:
    """Move the jobs that are meant; ends with 1 if some could not be moved."""
    if ids and (which.given or care.is_all):
        raise refused("name jobs by their ids or by options, not both")
    if ids:
        _move_ids(cli, how, [check_id(each) for each in dict.fromkeys(ids)], care)
        return
    if not which.given and not care.is_all:
        raise refused(
            f"which jobs? Give ids, or options such as --type, or --all for every job that can be {how.verb.past}"
        )
    where = which.filter(cli.jobs.table, how.statuses)
    if wrong := [status for status in where.statuses if status not in how.verb.statuses]:
        raise refused(f"jobs that are {wrong[0]} are not {how.verb.past}: {how.verb.advice}")
    _move_filtered(cli, how, where, care)


def _move_ids(cli: Cli, how: Move, ids: list[int], care: Care) -> None:
    if care.is_dry:
        _tell_answers(cli, how, cli.rehearse(how.by_id(cli.jobs, ids)), is_dry=True)
        return
    named = ", ".join(map(str, ids[:_NAMED])) + (", …" if len(ids) > _NAMED else "")
    sure(cli, care, f"{how.name} {plural(len(ids), 'job')} ({named})?")
    answers = list[Answer]()
    in_batches(cli, how.verb.past, _id_batches(cli, how, ids, answers), total=len(ids))
    _tell_answers(cli, how, answers, is_dry=False)


def _id_batches(cli: Cli, how: Move, ids: list[int], answers: list[Answer]) -> Iterator[Batch]:
    for start in range(0, len(ids), _IDS_AT_ONCE):
        part = cli.run(how.by_id(cli.jobs, ids[start : start + _IDS_AT_ONCE]))
        answers += part
        changed = sum(answer.is_changed for answer in part)
        yield Batch(changed, len(part) - changed, after=None)


def _tell_answers(cli: Cli, how: Move, answers: list[Answer], *, is_dry: bool) -> None:
    texts = [
        f"job {answer.job_id} would be {how.verb.past}" if is_dry and answer.is_changed else answer.text
        for answer in answers
    ]
    changed = sum(answer.is_changed for answer in answers)
    document = {
        "dry_run": is_dry,
        "changed": changed,
        "skipped": len(answers) - changed,
        "jobs": [
            facts_of(answer, ("job_id", "is_changed", "status")) | {"text": text}
            for answer, text in zip(answers, texts, strict=True)
        ],
    }
    cli.terminal.show(document, lambda: Page([*texts]))
    if changed < len(answers):
        raise typer.Exit(NO)


def _move_filtered(cli: Cli, how: Move, where: JobFilter, care: Care) -> None:
    jobs = cli.jobs
    count = cli.read(lambda session: count_jobs(session, jobs, where))
    if care.is_dry:
        tell_count(cli, how.verb.past, count)
        return
    changed = skipped = 0
    if count.count:
        sure(cli, care, f"{how.name} {plural(count.count, 'job', is_capped=count.is_capped)}?")
        batches = until_the_end(lambda after: cli.run(how.by_filter(jobs, where, after)))
        changed, skipped = in_batches(cli, how.verb.past, batches, total=None if count.is_capped else count.count)
    tell_moved(cli, how.verb.past, changed, skipped)


def until_the_end(batch_after: Callable[[str | None], Batch]) -> Iterator[Batch]:
    """Go on from batch to batch."""
    after = None
    while True:
        yield (batch := batch_after(after))
        if (after := batch.after) is None:
            return


def in_batches(cli: Cli, past: str, batches: Iterable[Batch], *, total: int | None) -> tuple[int, int]:
    """Go over *batches* behind a progress bar, and give how many jobs were changed and skipped.

    :param past: what is done to them
    :param total: jobs; None where that is not known
    """
    changed = skipped = 0
    bar, advance = cli.terminal.progress(past, total)
    try:
        with bar:
            for batch in batches:
                changed += batch.changed
                skipped += batch.skipped
                advance(batch.changed + batch.skipped)
    except BaseException as error:
        if changed or not isinstance(error, Stop | SqlaJobsError):
            # The answer to a commit may be what got lost.
            is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
            rest = "perhaps the next batch, too: look, and run it again" if is_lost else "the others left as they were"
            cli.terminal.note(f"stopped: {plural(changed, 'job')} {past} before that, {rest}")
        raise
    return changed, skipped


def tell_count(cli: Cli, past: str, count: Count) -> None:
    """Print how many jobs would be moved."""
    text = f"{plural(count.count, 'job', is_capped=count.is_capped)} would be {past}"
    document = {"dry_run": True, "count": count.count, "is_capped": count.is_capped}
    cli.terminal.show(document, lambda: Page([text]))


def tell_moved(cli: Cli, past: str, changed: int, skipped: int) -> None:
    """Print how many jobs were moved; ends with 1 if some were passed over."""
    text = f"{plural(changed, 'job')} {past}"
    if skipped:
        text += f", {skipped:,} passed over: somebody has locked or moved them; run it again for those that are left"
    cli.terminal.show({"dry_run": False, "changed": changed, "skipped": skipped}, lambda: Page([text]))
    if skipped:
        raise typer.Exit(NO)


def sure(cli: Cli, care: Care, question: str) -> None:
    """Ask, unless told not to; a no ends the command.

    :raises Stop: nobody is there to ask
    """
    if not care.is_sure and not cli.terminal.confirm(question):
        cli.terminal.note("nothing was changed")
        raise typer.Exit(NO)
