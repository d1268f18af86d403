"""Claim, renew, settle and reap: the verbs that keep the fence.

Each takes a session and one short transaction of its caller, who commits. On a database without row locks that
transaction must hold the write lock from its first statement.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import Executable

from sqla_jobs.operations.stored import instant, parsed
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.settlement import Settlement
from sqla_jobs.schema import statements
from sqla_jobs.schema.dialects import Capabilities, as_rows, capabilities
from sqla_jobs.schema.tables import JobTable

Key = tuple[int, int]


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
    return [_lease(row) for row in sorted(rows, key=_age)]


def _age(row: Row[Any]) -> tuple[float, int]:
    return (-math.inf if row.due is None else row.due, row.id)


def seconds_until_due(session: Session, jobs: JobTable, demand: Demand) -> float | None:
    """Give the seconds until the first ready job of *demand* is due, at most 0 if one is; None if there is none."""
    if not demand.types:
        return None
    statement = statements.next_due(jobs, every_queue=demand.queues is None)
    seconds = _execute(session, jobs, statement, demand.parameters).scalar_one()
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
    if not settlements:
        return frozenset()
    parameters = {"rows": as_rows([_settle_row(settlement) for settlement in settlements])}
    rows = _execute(session, jobs, statements.settle(jobs, _can(session, jobs)), parameters)
    return frozenset((row.id, row.claims) for row in rows)


def endings(session: Session, jobs: JobTable, leases: Sequence[Lease]) -> dict[Key, str]:
    """Give the status, by `Lease.key`, of the rows that no later claim has touched: how those attempts ended."""
    if not leases:
        return {}
    can = _can(session, jobs)
    parameters = {"rows": as_rows([_fence_row(lease) for lease in leases])}
    rows = _execute(session, jobs, statements.endings(jobs, can), parameters)
    return {(row.id, row.claims): row.status for row in rows}


def expired(session: Session, jobs: JobTable, *, limit: int) -> list[Lease]:
    """Lock up to *limit* running jobs whose lease is over, passing over locked ones. Settle them before the commit."""
    rows = _execute(session, jobs, statements.expired(jobs), {"limit": limit})
    return [_lease(row) for row in rows]


def strays(session: Session, jobs: JobTable, *, locked_by: str, held: frozenset[Key]) -> list[Lease]:
    """Give the running jobs that bear *locked_by* and are not in *held*: claims whose answer was lost."""
    rows = _execute(session, jobs, statements.strays(jobs), {"locked_by": locked_by})
    return [lease for lease in map(_lease, rows) if lease.key not in held]


def reap(session: Session, jobs: JobTable, decide: Callable[[Lease], Settlement], *, limit: int) -> list[Settlement]:
    """Settle up to *limit* jobs whose lease is over as *decide* says, and give what was written.

    The rows stay locked between the look and the update, so no heartbeat comes between.
    """
    settlements = [decide(lease) for lease in expired(session, jobs, limit=limit)]
    written = settle(session, jobs, settlements)
    return [settlement for settlement in settlements if settlement.lease.key in written]


def _can(session: Session, jobs: JobTable) -> Capabilities:
    return capabilities(session.get_bind(mapper=jobs.mapper).dialect)


def _execute(session: Session, jobs: JobTable, statement: Executable, parameters: dict[str, Any]) -> Any:
    return session.execute(statement, parameters, bind_arguments={"mapper": jobs.mapper})


def _keys(
    session: Session, jobs: JobTable, statement: Executable, leases: Sequence[Lease], **more: Any
) -> frozenset[Key]:
    rows = as_rows([_fence_row(lease) for lease in leases])
    return frozenset((row.id, row.claims) for row in _execute(session, jobs, statement, {"rows": rows, **more}))


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
    return Lease(
        id=row.id,
        type=row.type,
        queue=row.queue,
        payload=parsed(row.payload),
        attempt=row.attempts,
        max_attempts=row.max_attempts,
        refunds=row.refunds,
        claims=row.claims,
        locked_by=row.locked_by,
        started_at=instant(row.started_at),
        slot=instant(row.slot),
        errors=_listed(parsed(row.errors)),
    )


def _listed(errors: Any) -> list[Any]:
    """Give the row's errors; whatever else somebody wrote there is dropped at the next failure."""
    return [*errors] if isinstance(errors, list) else []
