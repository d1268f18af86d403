"""What people do with jobs: requeue dead letters, cancel what has not ended, delete what has.

Each takes a Session or an AsyncSession (then it is awaited), never commits, and takes effect with the transaction. They
take ids, and answer for each; `operations.batches` does the same to all that a filter names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, overload

from sqlalchemy import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.util import identity_key
from sqlalchemy.sql.base import Executable

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.callers import flush
from sqla_jobs.operations.enqueue import capabilities_of, run_on
from sqla_jobs.operations.enqueue_many import tell
from sqla_jobs.operations.listing import WINDOW, check_id, check_jobs
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.failure import clip, mask, storable
from sqla_jobs.rules.registry import check_number
from sqla_jobs.rules.settlement import LAST_ERROR_BYTES
from sqla_jobs.schema import listing as statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import as_rows
from sqla_jobs.schema.tables import MappedTable
from sqla_jobs.status import DEAD_LETTERS, FINISHED, JobStatus

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one job.

    :ivar is_changed: it was moved; otherwise nothing has happened to it
    :ivar status: what it has now; None if there is no such row
    :ivar text: the same in words
    """

    job_id: int
    is_changed: bool
    status: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Verb:
    """One way to move jobs."""

    past: str
    statuses: frozenset[JobStatus]
    becomes: JobStatus | None
    advice: str
    statement: Callable[..., Executable]


REQUEUE = Verb("requeued", DEAD_LETTERS, JobStatus.READY, "only failed and dead jobs are requeued", statements.requeue)
CANCEL = Verb(
    "cancelled",
    frozenset({JobStatus.READY, JobStatus.RUNNING}),
    JobStatus.FAILED,
    "only ready and running jobs are cancelled",
    statements.cancel,
)
DELETE = Verb("deleted", FINISHED, None, "only finished jobs are deleted: cancel it first", statements.remove)


@overload
def requeue_jobs(
    session: Session | scoped_session[Any],
    jobs: Jobs[Any],
    ids: int | Iterable[int],
    /,
    *,
    max_attempts: int | None = None,
) -> list[Answer]: ...
@overload
def requeue_jobs(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    ids: int | Iterable[int],
    /,
    *,
    max_attempts: int | None = None,
) -> Coroutine[Any, Any, list[Answer]]: ...
def requeue_jobs(session: Any, jobs: Jobs[Any], ids: int | Iterable[int], /, *, max_attempts: int | None = None) -> Any:
    """Make failed and dead jobs ready again, due now, with all their attempts. Errors and `claims` stay.

    Answers for each id in turn; one that can't be requeued is left as it is. Waits for rows that others have locked.

    :param max_attempts: from now on; None leaves it
    :raises InvalidOption: an id or the number is none
    """
    more = {"new_max_attempts": check_attempts(max_attempts)}
    return _by_id(session, jobs, REQUEUE, ids, more)


@overload
def cancel_jobs(
    session: Session | scoped_session[Any], jobs: Jobs[Any], ids: int | Iterable[int], /, *, reason: str = ...
) -> list[Answer]: ...
@overload
def cancel_jobs(
    session: AsyncSession | async_scoped_session[Any],
    jobs: Jobs[Any],
    ids: int | Iterable[int],
    /,
    *,
    reason: str = ...,
) -> Coroutine[Any, Any, list[Answer]]: ...
def cancel_jobs(session: Any, jobs: Jobs[Any], ids: int | Iterable[int], /, *, reason: str = "cancelled") -> Any:
    """End ready and running jobs as `failed`.

    A running handler sees `current_job().cancelled` at its worker's next heartbeat, within a third of the lease; what
    it writes through its session will not be committed. Answers for each id in turn. No `jobs.on(…)` hears of it.

    :param reason: kept as the job's last error
    :raises InvalidOption: an id or the reason is none
    """
    return _by_id(session, jobs, CANCEL, ids, {"reason": check_reason(reason)})


@overload
def delete_jobs(
    session: Session | scoped_session[Any], jobs: Jobs[Any], ids: int | Iterable[int], /
) -> list[Answer]: ...
@overload
def delete_jobs(
    session: AsyncSession | async_scoped_session[Any], jobs: Jobs[Any], ids: int | Iterable[int], /
) -> Coroutine[Any, Any, list[Answer]]: ...
def delete_jobs(session: Any, jobs: Jobs[Any], ids: int | Iterable[int], /) -> Any:
    """Delete done, failed and dead jobs; it frees their keys. Answers for each id in turn.

    One that rows of yours refer to stays, and is answered.

    :raises InvalidOption: an id is none
    """
    return _by_id(session, jobs, DELETE, ids, {})


def check_attempts(given: int | None) -> int | None:
    """Give a number of attempts, or None."""
    return None if given is None else check_number("max_attempts", given, least=1)


def check_reason(given: object) -> str:
    """Give a reason as it can be stored.

    :raises InvalidOption: it is none
    """
    if not isinstance(given, str) or not given.strip():
        raise InvalidOption("reason is a text that says why: cancel_jobs(…, reason='the order was withdrawn')")
    return clip(storable(mask(given)), LAST_ERROR_BYTES)


def _by_id(session: Any, jobs: Jobs[Any], verb: Verb, ids: object, more: dict[str, Any]) -> Any:
    check_jobs(jobs)
    if isinstance(ids, str) or not isinstance(ids, int | Iterable):
        raise InvalidOption(f"ids is a job's id, or several, and is a {type(ids).__name__}")
    wanted = [check_id(each) for each in (cast("Iterable[object]", ids) if isinstance(ids, Iterable) else (ids,))]

    def move(sync: Session) -> list[Answer]:
        flush(sync)
        moved: set[int] = set()
        unique = sorted(set(wanted))
        for start in range(0, len(unique), WINDOW):
            ids = unique[start : start + WINDOW]
            statuses = tuple(sorted(verb.statuses))
            moved |= moved_of(sync, jobs, verb, ids, more, statuses=statuses, skip_locked=False)
        left = [each for each in unique if each not in moved]
        found = _statuses(sync, jobs, jobs.table, left)
        archived = {} if jobs.archive is None else _statuses(sync, jobs, jobs.archive, left)
        return [_answer(each, verb, moved, found, archived) for each in wanted]

    return run_on(session, move)


def moved_of(
    session: Session,
    jobs: Jobs[Any],
    verb: Verb,
    ids: Sequence[int],
    more: dict[str, Any],
    *,
    statuses: tuple[JobStatus, ...],
    skip_locked: bool,
) -> set[int]:
    """Move the rows of *ids* that are in these statuses by now, and give theirs."""
    can = capabilities_of(session, jobs)
    statement = verb.statement(jobs.table, can, statuses=statuses, skip_locked=skip_locked)
    rows = _executed(session, jobs, statement, ids, more)
    if verb.becomes is JobStatus.READY and rows:
        tell(session, jobs, {row.queue for row in rows})
    moved = {row.id for row in rows}
    for each in moved:
        # Objects of the session know nothing of it.
        known = session.identity_map.get(identity_key(jobs.table.mapper.base_mapper.class_, each))
        if known is not None:
            session.expire(known)
    return moved


def _executed(
    session: Session, jobs: Jobs[Any], statement: Executable, ids: Sequence[int], more: dict[str, Any]
) -> list[Row[Any]]:
    """Execute it for *ids*; where rows of the app's refer to some of them, for the others."""
    parameters = more | {"rows": as_rows([{"id": each} for each in ids])}
    try:
        with session.begin_nested():
            return [*session.execute(statement, said(parameters), bind_arguments={"mapper": jobs.table.mapper})]
    except IntegrityError:
        if len(ids) == 1:
            return []
    middle = len(ids) // 2
    halves = (ids[:middle], ids[middle:])
    return [row for half in halves for row in _executed(session, jobs, statement, half, more)]


def _statuses(session: Session, jobs: Jobs[Any], table: MappedTable, ids: Sequence[int]) -> dict[int, str]:
    if not ids:
        return {}
    statement = statements.statuses_of(table, capabilities_of(session, jobs))
    rows = as_rows([{"id": each} for each in ids])
    found = session.execute(statement, said({"rows": rows}), bind_arguments={"mapper": table.mapper})
    return {row.id: row.status for row in found}


def _answer(job_id: int, verb: Verb, moved: set[int], found: dict[int, str], archived: dict[int, str]) -> Answer:
    if job_id in moved:
        return Answer(
            job_id, is_changed=True, status=verb.becomes and verb.becomes.value, text=f"job {job_id} is {verb.past}"
        )
    if job_id in found and found[job_id] in verb.statuses:
        text = f"job {job_id} is {found[job_id]}, and is not {verb.past}: rows of yours refer to it"
        return Answer(job_id, is_changed=False, status=found[job_id], text=text)
    if job_id in found:
        text = f"job {job_id} is {found[job_id]}, and is not {verb.past}: {verb.advice}"
        return Answer(job_id, is_changed=False, status=found[job_id], text=text)
    if job_id in archived:
        text = f"job {job_id} ({archived[job_id]}) is in the archive, and is not {verb.past}"
        return Answer(job_id, is_changed=False, status=archived[job_id], text=text)
    return Answer(job_id, is_changed=False, status=None, text=f"there is no job {job_id}")
