"""Claim, renew, settle and reap: the verbs that keep the fence.

Each takes a session and one short transaction of its caller, who commits. On a database without row locks that
transaction must hold the write lock from its first statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Any, cast

from sqlalchemy import Row
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import Executable

from sqla_jobs.operations.stored import instant, parsed, whole
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.registry import MAX_ATTEMPTS
from sqla_jobs.rules.settlement import Settlement
from sqla_jobs.schema import statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import Capabilities, as_rows, capabilities
from sqla_jobs.schema.tables import JobTable
from sqla_jobs.status import JobStatus

Key = tuple[int, int]

_AGE = itemgetter(12, 0)
"""Of a row that a claim returns: since when it is due, then its id."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a worker takes: jobs of these types, from these queues (None: from all)."""

    types: tuple[str, ...]
    queues: tuple[str, ...] | None

    @property
    def parameters(self) -> dict[str, Any]:
        """The statement's parameters."""
        return {"types": self.types} if self.queues is None else {"types": self.types, "queues": self.queues}


def claim(
    session: Session, jobs: JobTable, demand: Demand, *, limit: int, locked_by: str, lease: timedelta
) -> list[Lease]:
    """Claim up to *limit* due jobs, oldest `run_at` first, for *lease* from now. Other claimers pass over them."""
    if limit < 1 or not demand.types:
        return []
    statement = statements.claim(jobs, _can(session, jobs), every_queue=demand.queues is None)
    parameters = demand.parameters | {"limit": limit, "locked_by": locked_by, "lease": lease.total_seconds()}
    rows = _execute(session, jobs, statement, parameters).all()
    return [_lease(row) for row in sorted(rows, key=_AGE)]


def due(session: Session, jobs: JobTable, demand: Demand, *, limit: int, but: Collection[int]) -> list[int]:
    """Lock up to *limit* due jobs, oldest `run_at` first, but for the ids *but*, and give their ids.

    For `claim_these` in the same transaction: a claim that fails does not say which row it failed for.
    """
    statement = statements.due_but(jobs, _can(session, jobs), every_queue=demand.queues is None)
    return [*_execute(session, jobs, statement, demand.parameters | {"limit": limit} | _ids(but)).scalars()]


def claim_these(
    session: Session, jobs: JobTable, ids: Collection[int], *, locked_by: str, lease: timedelta
) -> list[Lease]:
    """Claim the jobs that `due` has locked."""
    if not ids:
        return []
    parameters = {"locked_by": locked_by, "lease": lease.total_seconds()} | _ids(ids)
    rows = _execute(session, jobs, statements.claim_these(jobs, _can(session, jobs)), parameters).all()
    return [_lease(row) for row in sorted(rows, key=_AGE)]


def _ids(ids: Collection[int]) -> dict[str, Any]:
    return {"rows": as_rows([{"id": id_} for id_ in ids])}


def seconds_until_due(session: Session, jobs: JobTable, demand: Demand, *, but: Collection[int] = ()) -> float | None:
    """Give the seconds until the first ready job of *demand* is due, at most 0 if one is; None if there is none.

    :param but: ids of jobs that don't count
    """
    if not demand.types:
        return None
    statement, parameters = statements.next_due(jobs, every_queue=demand.queues is None), demand.parameters
    if but:
        statement = statements.next_due_but(jobs, _can(session, jobs), every_queue=demand.queues is None)
        parameters |= _ids(but)
    seconds = _execute(session, jobs, statement, parameters).scalar_one()
    return None if seconds is None else float(seconds)


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a heartbeat found: `renewed`, `unknown` (locked by somebody, and still ours), and `lost`, by `Lease.key`."""

    renewed: frozenset[Key]
    unknown: frozenset[Key]
    lost: frozenset[Key]


def renew(session: Session, jobs: JobTable, leases: Sequence[Lease], *, lease: timedelta) -> Renewal:
    """Extend *leases* to *lease* from now, expired ones too, and tell apart what could not be extended."""
    if not leases:
        return Renewal(frozenset(), frozenset(), frozenset())
    can = _can(session, jobs)
    renewed = _keys(session, jobs, statements.renew(jobs, can), leases, lease=lease.total_seconds())
    missing = [held for held in leases if held.key not in renewed]
    unknown = _keys(session, jobs, statements.held(jobs, can), missing) if missing else frozenset[Key]()
    return Renewal(renewed, unknown, frozenset(held.key for held in missing if held.key not in unknown))


def settle(session: Session, jobs: JobTable, settlements: Sequence[Settlement]) -> frozenset[Key]:
    """Write how attempts ended, and give the `Lease.key` of those whose fence still held. The others changed nothing.

    It waits for rows that others have locked, so that the answer is final.
    """
    plain = [settlement.lease for settlement in settlements if _is_plain(settlement)]
    others = [_settle_row(settlement) for settlement in settlements if not _is_plain(settlement)]
    matched = _complete(session, jobs, plain) if plain else frozenset[Key]()
    if others:
        statement = statements.settle(jobs, _can(session, jobs))
        rows = _execute(session, jobs, statement, {"rows": as_rows(others)})
        matched |= {(id_, claims) for id_, claims in rows}
    return matched


def _is_plain(settlement: Settlement) -> bool:
    """Tell whether the row shall say that the job is done, and no more."""
    return settlement.status is JobStatus.DONE and settlement.result is None and settlement.error is None


def _complete(session: Session, jobs: JobTable, leases: Sequence[Lease]) -> frozenset[Key]:
    if len(leases) > 1:
        return _keys(session, jobs, statements.complete(jobs, _can(session, jobs)), leases)
    lease = leases[0]
    held = {"held_id": lease.id, "held_claims": lease.claims, "held_by": lease.locked_by}
    # On the connection, and without RETURNING: each job with a session says this, and the detours show.
    statement = statements.complete_one(jobs)
    connection = session.connection(bind_arguments={"mapper": jobs.mapper, "clause": statement})
    is_matched = connection.execute(statement, said(held)).rowcount == 1
    return frozenset([lease.key] if is_matched else [])


def endings(session: Session, jobs: JobTable, leases: Sequence[Lease]) -> dict[Key, str]:
    """Give the status, by `Lease.key`, of the rows that no later claim has touched: how those attempts ended."""
    if not leases:
        return {}
    can = _can(session, jobs)
    parameters = {"rows": as_rows([_fence_row(lease) for lease in leases])}
    rows = _execute(session, jobs, statements.endings(jobs, can), parameters)
    return {(row.id, row.claims): row.status for row in rows}


def expired(session: Session, jobs: JobTable, *, limit: int, but: Collection[int] = ()) -> list[Lease]:
    """Lock up to *limit* running jobs whose lease is over, passing over locked ones. Settle them before the commit.

    :param but: ids of jobs to pass over, too
    """
    statement, parameters = statements.expired(jobs), {"limit": limit}
    if but:
        statement, parameters = statements.expired_but(jobs, _can(session, jobs)), parameters | _ids(but)
    return [_lease(row) for row in _execute(session, jobs, statement, parameters)]


def strays(session: Session, jobs: JobTable, *, locked_by: str, held: frozenset[Key]) -> list[Lease]:
    """Give the running jobs that bear *locked_by* and are not in *held*: claims whose answer was lost."""
    claims = as_rows([{"id": id_, "claims": number} for id_, number in held])
    statement = statements.strays(jobs, _can(session, jobs))
    return [*map(_lease, _execute(session, jobs, statement, {"locked_by": locked_by, "rows": claims}))]


def reap(
    session: Session,
    jobs: JobTable,
    decide: Callable[[Lease], Settlement],
    *,
    limit: int,
    but: Collection[int] = (),
) -> list[Settlement]:
    """Settle up to *limit* jobs whose lease is over as *decide* says, and give what was written.

    The rows stay locked between the look and the update, so no heartbeat comes between.

    :param but: ids of jobs to pass over
    """
    passed = {*but}
    while settlements := [decide(lease) for lease in expired(session, jobs, limit=limit, but=passed)]:
        written = settle(session, jobs, settlements)
        reaped = [settlement for settlement in settlements if settlement.lease.key in written]
        if reaped:
            return reaped
        # They are locked by us, so it is their fences, which can't be said. Others may be behind them.
        passed |= {settlement.lease.id for settlement in settlements}
    return []


def _can(session: Session, jobs: JobTable) -> Capabilities:
    return capabilities(session.get_bind(mapper=jobs.mapper).dialect)


def _execute(session: Session, jobs: JobTable, statement: Executable, parameters: dict[str, Any]) -> Any:
    return session.execute(statement, said(parameters), bind_arguments={"mapper": jobs.mapper})


def _keys(
    session: Session, jobs: JobTable, statement: Executable, leases: Sequence[Lease], **more: Any
) -> frozenset[Key]:
    rows = as_rows([_fence_row(lease) for lease in leases])
    found = _execute(session, jobs, statement, {"rows": rows, **more})
    return frozenset(map(tuple, found))


def _fence_row(lease: Lease) -> dict[str, object]:
    return {"id": lease.id, "claims": lease.claims, "locked_by": lease.locked_by}


def _settle_row(settlement: Settlement) -> dict[str, object]:
    return _fence_row(settlement.lease) | {
        "status": settlement.status,
        "delay": None if settlement.delay is None else settlement.delay.total_seconds(),
        "attempts": settlement.attempts,
        "refunds": settlement.refunds,
        "error": settlement.error,
        "errors": _json(settlement.errors),
        "result": _json(settlement.result),
        "expired": int(settlement.is_expired),
    }


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, allow_nan=False)


def _lease(row: Row[Any]) -> Lease:
    # By place: a hundred rows at a time come here, and each name costs.
    given: tuple[Any, ...] = cast("Any", row)
    id_, type_, queue, payload, attempts, max_attempts, refunds, claims, locked_by, started_at, slot, errors, *_ = given
    if not type(attempts) is type(max_attempts) is type(refunds) is type(claims) is int or isinstance(locked_by, bytes):
        # SQLite stores any type anywhere. A fence of what can't be said never holds: such a row stays as it is.
        attempts, max_attempts = whole(attempts, 1), whole(max_attempts, MAX_ATTEMPTS)
        refunds, claims, locked_by = whole(refunds, 0), whole(claims, -1), str(locked_by)
    return Lease(
        id_,
        type_,
        queue,
        parsed(payload),
        attempts,
        max_attempts,
        refunds,
        claims,
        locked_by,
        instant(started_at),
        None if slot is None else instant(slot),
        () if errors == "[]" else _listed(parsed(errors)),
    )


def _listed(errors: Any) -> tuple[Any, ...]:
    """Give the row's errors; whatever else somebody wrote there is dropped at the next failure."""
    kept: Any = errors
    return tuple(kept) if isinstance(errors, list) else ()
