from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs.operations import leases
from tests.operations.leasing import HOUR, MINUTE, SECOND, TABLE, add

if TYPE_CHECKING:
    pass


def demand(*types: str, queues: tuple[str, ...] | None = None) -> leases.Demand:
    return leases.Demand(types, queues)


def test_seconds_until_due_are_those_of_the_first_job(session: Session) -> None:
    """The first ready job that is served says how long to wait, later ones and others don't."""
    add(session, ago=-MINUTE)
    add(session, ago=-HOUR)
    add(session, ago=HOUR, type="unknown")
    add(session, ago=HOUR, status="running")
    add(session, ago=-SECOND, queue="bulk")

    assert leases.seconds_until_due(session, TABLE, demand("send", "mail")) == pytest.approx(1, abs=0.9)
    seconds = leases.seconds_until_due(session, TABLE, demand("send", queues=("default",)))
    assert seconds == pytest.approx(60, abs=0.9)


def test_seconds_until_due_are_none_when_nothing_waits(session: Session) -> None:
    """Nothing ready that is served: nothing to wait for."""
    add(session, status="done")
    add(session, type="unknown")
    add(session, queue="bulk")

    assert leases.seconds_until_due(session, TABLE, demand("send", queues=("default",))) is None
    assert leases.seconds_until_due(session, TABLE, demand()) is None


def test_seconds_until_due_are_not_above_zero_when_a_job_is_due(session: Session) -> None:
    """A job that is due is no time away."""
    add(session, ago=MINUTE)

    seconds = leases.seconds_until_due(session, TABLE, demand("send"))

    assert seconds is not None
    assert seconds <= 0


@pytest.mark.parametrize(
    ("own", "expected"), [("infinity", (3600 - 5, 3601)), ("12000-01-01 00:00:00+00", (3600 - 5, 3601))]
)
def test_seconds_until_due_pass_over_times_that_never_come(
    postgresql_sessions: sessionmaker[Session], own: str, expected: tuple[float, float]
) -> None:
    """A row that is due at the end of time keeps no other waiting, and alone it is only very far away."""
    with postgresql_sessions.begin() as session:
        odd = add(session)
        session.execute(
            text("UPDATE job SET run_at = CAST(:own AS timestamptz) WHERE id = :id"), {"own": own, "id": odd}
        )
        alone = leases.seconds_until_due(session, TABLE, demand("send"))
        add(session, ago=-HOUR)

        seconds = leases.seconds_until_due(session, TABLE, demand("send"))

    assert seconds is not None
    assert alone is not None
    assert expected[0] < seconds < expected[1]
    assert alone > timedelta(days=365 * 9000).total_seconds()
