"""Counts, names and locks that SQLite stores though the column's type says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from sqla_jobs.operations import leases
from sqla_jobs.rules.settlement import Failed, Outcome, Returned, decide
from tests.operations.leasing import BACKOFF, HOUR, MINUTE, TABLE, add, reap, take

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from sqla_jobs.rules.lease import Lease

NONE = ("x'0300000000000000'", "'abc'", "9e999")
"""What are no counts; the first is what sqlite3 stores for `numpy.int64(3)`."""

ODD = [
    *(f"{column} = {value}" for column in ("attempts", "max_attempts", "refunds") for value in NONE),
    *(f"claims = {value}" for value in ("x'ff00'", "'abc'", "9e999")),
    "locked_by = x'ff00'",
    "queue = x'ff00'",
]


def set_odd(session: Session, job_id: int, odd: str) -> None:
    session.execute(text(f"UPDATE job SET {odd} WHERE id = :id"), {"id": job_id})


def status(session: Session, job_id: int) -> str:
    return str(session.execute(text("SELECT status FROM job WHERE id = :id"), {"id": job_id}).scalar_one())


def settle(session: Session, claimed: list[Lease], outcome: Outcome) -> None:
    """End all of them at once, as a worker's settler does."""
    leases.settle(session, TABLE, [decide(lease, outcome, backoff=BACKOFF, draw=0.5) for lease in claimed])


@pytest.mark.parametrize("odd", [each for each in ODD if not each.startswith("locked_by")])
def test_row_of_no_numbers_hurts_only_itself_when_claimed(sqlite_sessions: sessionmaker[Session], odd: str) -> None:
    """What somebody wrote into one row keeps no other from being claimed, renewed, failed and done beside it."""
    with sqlite_sessions.begin() as session:
        odd_id, other = add(session, ago=HOUR), add(session, ago=MINUTE)
        set_odd(session, odd_id, odd)

    for outcome in (Failed("boom"), Returned()):
        with sqlite_sessions.begin() as session:
            session.execute(text("UPDATE job SET run_at = created_at"))
            claimed = take(session)
        assert other in {lease.id for lease in claimed}
        with sqlite_sessions.begin() as session:
            leases.renew(session, TABLE, claimed, lease=HOUR)
            settle(session, claimed, outcome)

    with sqlite_sessions() as session:
        assert status(session, other) == "done"


@pytest.mark.parametrize("odd", ODD)
def test_row_of_no_numbers_hurts_only_itself_when_reaped(sqlite_sessions: sessionmaker[Session], odd: str) -> None:
    """Nor is another lease that has run out left over for it."""
    with sqlite_sessions.begin() as session:
        past: Any = {"status": "running", "claims": 1, "attempts": 1, "locked_by": "gone"}
        odd_id, other = add(session, **past), add(session, **past)
        set_odd(session, odd_id, odd)

    with sqlite_sessions.begin() as session:
        assert other in {settlement.lease.id for settlement in reap(session)}

    with sqlite_sessions() as session:
        assert status(session, other) == "ready"


@pytest.mark.parametrize("odd", ["claims = x'ff00'", "claims = 9e999", "locked_by = x'ff00'"])
def test_fence_that_can_not_be_said_never_holds(sqlite_sessions: sessionmaker[Session], odd: str) -> None:
    """Nobody can say which claim such a row is, so it stays as it is, and nobody is told otherwise."""
    with sqlite_sessions.begin() as session:
        odd_id = add(session, status="running", claims=1, attempts=1, locked_by="gone")
        set_odd(session, odd_id, odd)

    with sqlite_sessions.begin() as session:
        assert reap(session) == []
        assert status(session, odd_id) == "running"


@pytest.mark.parametrize("column", ["claims", "attempts", "max_attempts", "refunds"])
def test_number_of_no_64_bits_hurts_only_its_row(sqlite_sessions: sessionmaker[Session], column: str) -> None:
    """An end that is written alone is said with parameters, of which no driver takes a larger one."""
    with sqlite_sessions.begin() as session:
        set_odd(session, add(session), f"{column} = 1e300")
        claimed = take(session)

    with sqlite_sessions.begin() as session:
        settle(session, claimed, Returned())

    assert len(claimed) == 1


def test_reaper_when_rows_before_the_others_name_no_claim(sqlite_sessions: sessionmaker[Session]) -> None:
    """It goes past rows whose fence can't be said, however many: those behind them are given back."""
    with sqlite_sessions.begin() as session:
        odd = [add(session, ago=HOUR) for _ in range(5)]
        other = add(session, ago=MINUTE)
        take(session)
        session.execute(text("UPDATE job SET locked_until = NULL"))
        for job_id in odd:
            set_odd(session, job_id, "claims = 'abc'")

    with sqlite_sessions.begin() as session:
        reaped = reap(session, limit=2)

    assert [settlement.lease.id for settlement in reaped] == [other]
