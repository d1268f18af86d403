"""How long a job waits after its hundred-thousandth attempt, and after a backoff function that is broken."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from sqla_jobs import Backoff
from tests.operations.leasing import HOUR, add, reap, take
from tests.operations.shop import clock
from tests.runtime.app import App, Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from sqla_jobs import Handler
    from tests.runtime.app import Ear

ATTEMPTS = (1, 50, 1_000, 100_000, 2**31 - 2)

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)

SLACK = 2 * MINUTE
"""How long an attempt may take here."""


def add_at(app: App, handler: Handler[Job, ..., [], Any], attempt: int, **values: Any) -> int:
    """Add a job that has had all attempts before that one, and may have more."""
    job_id = app.add(handler.using(max_attempts=2**31 - 1))
    with app.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values({"attempts": attempt - 1} | values))
    return job_id


def waits(app: App, job_id: int) -> timedelta:
    """Give how long after the start of its attempt a job is due again, be it a little too long."""
    row = app.row(job_id)
    assert row.status == "ready"
    assert row.started_at is not None
    return row.run_at - row.started_at


def test_f38_backoff_is_within_its_cap_at_any_attempt(app: App) -> None:
    """Whatever the attempt, the factor and the cap, a failed and a reaped job is due within the cap, and recorded."""

    @app.jobs.handler(backoff=Backoff(base=5 * SECOND, factor=3.7, cap=DAY, jitter=0))
    def capped() -> None:
        raise RuntimeError

    @app.jobs.handler(backoff=Backoff(base=5 * SECOND, factor=1.0, jitter=0))
    def steady() -> None:
        raise RuntimeError

    @app.jobs.handler
    def usual() -> None:
        raise RuntimeError

    expected: list[tuple[int, int, timedelta]] = []
    for attempt in ATTEMPTS:
        is_first = attempt == 1
        for handler, delay in (
            (capped, 5 * SECOND if is_first else DAY),
            (steady, 5 * SECOND),
            (usual, 3.75 * SECOND if is_first else 45 * MINUTE),
        ):
            expected.append((add_at(app, handler, attempt), attempt, delay))

    app.run()

    for job_id, attempt, delay in expected:
        row = app.row(job_id)
        assert delay <= waits(app, job_id) <= delay * 4 / 3 + SLACK
        assert (row.attempts, len(row.errors)) == (attempt, 1)
    assert app.heard() == ["retried"] * len(expected)


def test_f38_backoff_of_a_vanished_worker_is_within_its_cap_at_any_attempt(app: App) -> None:
    """A reaped job waits like a failed one, also where the app's own function overflows."""

    @app.jobs.handler(backoff=Backoff(factor=2.5, cap=DAY, jitter=0))
    def capped() -> None: ...

    @app.jobs.handler(backoff=lambda attempt: 5 * SECOND * 2**attempt)
    def overflowing() -> None: ...

    late = [attempt + 1 for attempt in ATTEMPTS if 1 < attempt <= 100_000]
    in_a_day, within_an_hour = ([add_at(app, each, attempt) for attempt in late] for each in (capped, overflowing))
    with app.sessions.begin() as session:
        gone: dict[str, Any] = {"status": "running", "locked_by": "gone", "claims": 1, "started_at": Job.created_at}
        session.execute(update(Job).values(gone | {"locked_until": Job.created_at}))

    with app.worker() as worker:
        assert worker.reap() == 2 * len(late)

    assert all(DAY <= waits(app, job_id) < DAY + SLACK for job_id in in_a_day)
    assert all(45 * MINUTE <= waits(app, job_id) < 60 * MINUTE + SLACK for job_id in within_an_hour)


LARGEST = 2**31 - 1
"""What the columns hold."""


@pytest.mark.parametrize("column", ["attempts", "claims", "refunds", "lease_expirations", "max_attempts"])
def test_f38_row_whose_numbers_are_full_holds_up_no_other(session: Session, column: str) -> None:
    """A count that can't go on is that row's own affair: the others beside it are claimed and reaped."""
    add(session, ago=HOUR, **{column: LARGEST})
    ready = add(session)
    gone: dict[str, Any] = {"status": "running", "locked_by": "gone", "started_at": clock.read(session) - HOUR}
    gone |= {"attempts": 1, "claims": 1, "locked_until": clock.read(session) - MINUTE}
    full: dict[str, Any] = gone | {column: LARGEST}
    add(session, **full)
    orphan = add(session, **gone)
    session.commit()

    claimed = [lease.id for lease in take(session)]
    reaped = [settlement.lease.id for settlement in reap(session)]

    assert ready in claimed
    assert orphan in reaped


GIFTS: dict[str, object] = {
    "raised ZeroDivisionError": ZeroDivisionError(),
    "raised SystemExit": SystemExit(),
    "gave -1 day, 23:59:59": -SECOND,
    "gave 999999999 days": timedelta.max,
    "gave a float": float("nan"),
    "gave a int": 5,
    "gave a NoneType": None,
}


def test_f38_backoff_function_that_is_broken_loses_no_attempt(app: App, ear: Ear) -> None:
    """Whatever it gives or raises costs a warning; the attempt is recorded, and the default backoff is used."""

    def policy(gift: object) -> Callable[[int], Any]:
        def give(attempt: int) -> object:
            if isinstance(gift, BaseException):
                raise gift
            return gift

        return give

    jobs: list[int] = []
    for number, gift in enumerate(GIFTS.values()):

        @app.jobs.handler(name=f"job {number}", backoff=policy(gift))
        def fail() -> None:
            raise RuntimeError("no")

        jobs.append(app.add(fail))

    app.run()

    for job_id in jobs:
        assert app.row(job_id).attempts == 1
        assert 3.75 * SECOND <= waits(app, job_id) < 5 * SECOND + SLACK
    for problem in GIFTS:
        assert len(ear.lines(f"the backoff function {problem}", level=logging.WARNING)) == 1
