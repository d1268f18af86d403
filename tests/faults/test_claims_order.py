"""Jobs that come back again and again, and those behind them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sqla_jobs import enqueue_many
from sqla_jobs.runtime import warden
from tests.operations.leasing import HOUR, MINUTE, add, reap, take, take_one
from tests.operations.shop import clock
from tests.runtime.app import AT_ONCE, LONG, PATIENCE, App

if TYPE_CHECKING:
    import pytest
    from sqlalchemy.orm import Session


def test_f18_jobs_that_always_fail_starve_nobody(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 jobs that fail and are due again at once take their turn, and 200 good ones behind them have theirs."""
    # On a busy machine what was claimed ahead would be given back, and have its turn later.
    monkeypatch.setattr(warden, "LONGEST_LOCAL_WAIT", LONG)
    ran: list[bool] = []
    good_ones = threading.Semaphore(0)

    @app.jobs.handler(max_attempts=1_000_000, backoff=AT_ONCE)
    def work(fails: bool) -> None:
        ran.append(fails)
        if fails:
            raise RuntimeError("as always")
        good_ones.release()

    with app.sessions.begin() as session:
        enqueue_many(session, [work.job(fails=number < 200) for number in range(400)])

    with app.worker(concurrency=1):  # of two threads one may be held up for long
        assert all(good_ones.acquire(timeout=PATIENCE) for _ in range(200))

    last = max(number for number, fails in enumerate(ran) if not fails)
    assert ran[:last].count(True) == 200


def test_f18_recovered_job_keeps_its_place_before_fresh_ones(session: Session) -> None:
    """Its place is by the time that its backoff gave it: behind what was due before, and ahead of what comes after."""
    lease = take_one(session)
    clock.advance(session, HOUR)
    reap(session)
    older = add(session)
    clock.advance(session, MINUTE)
    fresh = [add(session) for _ in range(5)]

    assert [again.id for again in take(session, limit=3)] == [older, lease.id, fresh[0]]
