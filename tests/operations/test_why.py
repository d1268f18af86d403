from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidOption, UnknownJob
from sqla_jobs.operations.dead_letters import requeue_jobs
from sqla_jobs.operations.why import BACKLOG_CAP, why
from tests.operations.operating import HOUR, MINUTE, NOW, SECOND, Scene, add, jobs
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

HALF_A_MINUTE = MINUTE / 2
"""What each time is away from the next figure, so that no second that passes shows."""

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 3, in pay\n    pay()\nOSError: no route'


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


@pytest.fixture
def session(scene: Scene) -> Iterator[Session]:
    with Session(scene.engine) as session:
        yield session


FAILED_ONCE = {"attempts": 1, "claims": 1, "last_error": TRACE}

EXPLAINED: dict[str, tuple[dict[str, Any], str, str]] = {
    "due later": (
        {"ago": -3 * HOUR - HALF_A_MINUTE, "type": "mail", "queue": "mail"},
        "due_later",
        "job 1 (mail, queue mail) is due later at 2027-05-03 15:00:30 UTC (in 3 h)",
    ),
    "snoozed": ({"ago": -HALF_A_MINUTE - 2 * MINUTE, "claims": 1}, "due_later", "… is due later at … (in 2 min)"),
    "due again": (
        {"ago": -HALF_A_MINUTE - 3 * timedelta(days=1), "max_attempts": 7, **FAILED_ONCE},
        "waits_for_retry",
        "… waits for attempt 2 of 7, due at 2027-05-06 12:00:30 UTC (in 3 d); the last error: OSError: no route",
    ),
    "refunded": (
        {"ago": HALF_A_MINUTE - 2 * HOUR, "refunds": 2, "last_error": "OSError: gone"},
        "waits_for_retry",
        "… waits for attempt 1 of 5, due at … (in 119 min); the last error: OSError: gone",
    ),
    "unknown and near": (
        {"type": "sned", "ago": HOUR + HALF_A_MINUTE},
        "unknown_type",
        (
            "… is due at 2027-05-03 10:59:30 UTC (60 min ago); no handler named 'sned' (did you mean 'send'?) "
            "in registry 'shop': a worker that has one will take it"
        ),
    ),
    "unknown and later": (
        {"type": "xyz", "ago": -3 * HOUR - HALF_A_MINUTE},
        "due_later",
        "… is due later at … (in 3 h); no handler named 'xyz' in registry 'shop': a worker that has one will take it",
    ),
    "unknown and due again": (
        {"type": "xyz", "ago": -3 * HOUR, **FAILED_ONCE},
        "waits_for_retry",
        "… the last error: OSError: no route; no handler named 'xyz' in registry 'shop': …",
    ),
    "alone": (
        {},
        "in_backlog",
        (
            "job 1 (send, queue default) is due at 2027-05-03 11:00:00 UTC (60 min ago), and the first in its queue: "
            "the next worker that serves queue 'default' takes it; does one run?"
        ),
    ),
    "requeued": ({"last_error": TRACE}, "in_backlog", "… and the first in its queue: …"),
    "leased": (
        {"status": "running", "attempts": 2, "locked_until": NOW + HOUR},
        "running",
        (
            "… is running, attempt 2 of 5: the lease is held by w1 until 2027-05-03 13:00:00 UTC, "
            "and was claimed at 2027-05-03 11:00:00 UTC (60 min ago)"
        ),
    ),
    "lease over": (
        {"status": "running", "locked_until": NOW - HALF_A_MINUTE - HOUR},
        "lease_expired",
        (
            "… had attempt 1 of 5 running at w1, whose lease ran out at 2027-05-03 10:59:30 UTC (60 min ago): "
            "a worker's reaper gives it back; does one run?"
        ),
    ),
    "no lease": (
        {"status": "running", "locked_until": None},
        "lease_expired",
        "… had attempt 1 of 5 running at w1, whose lease ran out: a worker's reaper gives it back; does one run?",
    ),
    "done": (
        {"status": "done", "attempts": 3, "ago": 2 * HOUR},
        "done",
        "… is done at 2027-05-03 10:00:00 UTC (2 h ago), at attempt 3 by w1",
    ),
    "done, by hand": (
        {"status": "done", "attempts": 0, "locked_by": None, "finished_at": None},
        "done",
        "… is done, at attempt 0",
    ),
    "failed": (
        {"status": "failed", "last_error": "GiveUp: no such order"},
        "failed",
        "… has failed for good at … (60 min ago): GiveUp: no such order; requeue it to run it",
    ),
    "dead": (
        {"status": "dead", "attempts": 5, "last_error": TRACE},
        "dead",
        "… is dead at … (60 min ago), after attempt 5 of 5: OSError: no route; requeue it to run it",
    ),
    "dead, by hand": (
        {"status": "dead", "last_error": None, "finished_at": None},
        "dead",
        "… is dead, after attempt 1 of 5; requeue it to run it",
    ),
    "archived": (
        {"status": "dead", "is_archived": True, "ago": 3 * HOUR, "archived_at": NOW - HOUR, "id": 1},
        "archived",
        (
            "… is dead at 2027-05-03 09:00:00 UTC (3 h ago), after attempt 1 of 5: ValueError: broken; "
            "it is in the archive at 2027-05-03 11:00:00 UTC (60 min ago)"
        ),
    ),
}
"""What the row has, the reason, and the text, in which … stands for anything."""


@pytest.mark.parametrize("name", EXPLAINED)
def test_reason_is_told_with_the_figures_that_matter(scene: Scene, name: str) -> None:
    """Each state has a reason for programs and a sentence for people: times in UTC, how far off, by whom, what next."""
    row, reason, words = EXPLAINED[name]
    job_id = scene.add(**row)

    with scene.transaction() as session:
        told = why(session, jobs, job_id)

    assert (told.job_id, told.status, told.reason) == (job_id, row.get("status", "ready"), reason)
    assert str(told) == told.text
    text = told.text.replace(f"job {job_id} (", "job 1 (")
    parts = words.split("…")
    assert text.startswith(parts[0])
    assert text.endswith(parts[-1])
    assert all(part.strip() in text for part in parts)


@pytest.mark.parametrize("own", ["infinity", "12000-01-01 00:00:00+00"])
def test_time_that_no_datetime_holds_is_told_without_it(scene: Scene, own: str) -> None:
    """A lease or due time of 'infinity' is in the future, and so is one past Python's years where times are no text."""
    ready, running = scene.add(), scene.add("running")
    scene.sql("UPDATE job SET run_at = :own WHERE id = :id", id=ready, own=own)
    scene.sql("UPDATE job SET locked_until = :own WHERE id = :id", id=running, own=own)

    with scene.transaction() as session:
        first, second = why(session, jobs, ready), why(session, jobs, running)

    is_future = scene.is_postgresql or own == "infinity"
    assert (first.reason, second.reason) == (("due_later", "running") if is_future else ("in_backlog", "lease_expired"))
    if is_future:
        assert first.text == f"job {ready} (send, queue default) is due later"
        assert "the lease is held by w1 until a time out of range, and was claimed at 2027" in second.text


def test_backlog_counts_what_a_claim_would_take_before(session: Session) -> None:
    """Due jobs of its queue and of known types, by time and then by id; no others."""
    before = [add(session, ago=2 * HOUR), add(session, ago=HOUR + SECOND, type="mail"), add(session, ago=HOUR)]
    job_id = add(session, ago=HOUR)
    add(session, ago=HOUR)
    add(session, ago=HOUR - SECOND)
    add(session, ago=2 * HOUR, type="unknown")
    add(session, ago=2 * HOUR, queue="mail")
    add(session, "running", 2 * HOUR)
    add(session, "dead", 2 * HOUR)
    earlier = add(session, ago=2 * HOUR, type="dispatch")

    told = [why(session, jobs, each) for each in (job_id, earlier, before[2])]

    assert [each.reason for each in told] == ["in_backlog"] * 3
    assert told[0].text.endswith("(60 min ago), and 4 due jobs of its queue go before it")
    assert "(2 h ago), and one job of its queue goes before it" in told[1].text
    assert told[2].text.endswith("and 3 due jobs of its queue go before it")


def test_backlog_of_more_than_can_be_counted_says_so(session: Session) -> None:
    """Of each type so many are counted, and then the figure is a least."""
    job_id, first = add(session), add(session, ago=2 * HOUR)
    session.execute(
        text(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count) "
            "INSERT INTO job (type, run_at, created_at) "
            "SELECT 'send', run_at, created_at FROM numbers, job WHERE job.id = :id"
        ),
        {"count": BACKLOG_CAP + 5, "id": first},
    )
    add(session, ago=2 * HOUR, type="mail")

    told = why(session, jobs, job_id)

    assert told.text.endswith(f"and at least {BACKLOG_CAP + 1} due jobs of its queue go before it")


def test_requeued_job_waits_for_no_retry(session: Session) -> None:
    """A dead letter that was requeued is in the backlog, whatever error it still shows."""
    job_id = add(session, "dead", attempts=5)
    requeue_jobs(session, jobs, job_id)

    assert why(session, jobs, job_id).reason == "in_backlog"


def test_job_that_is_nowhere_is_unknown(session: Session) -> None:
    """There is nothing to explain, and the error says what may have become of it; what is no id is refused."""
    with pytest.raises(UnknownJob, match="there is no job 404: it was deleted, or its transaction was rolled back"):
        why(session, jobs, 404)
    with pytest.raises(InvalidOption, match="a job's id is an int, and this is a str"):
        why(session, jobs, "404")  # type: ignore[call-overload]
