from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from sqla_jobs.operations import leases
from tests.operations.leasing import HOUR, MINUTE, SECOND, TABLE, add


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
