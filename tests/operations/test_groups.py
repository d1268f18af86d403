from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import Session

from sqla_jobs.errors import GiveUp, InvalidOption
from sqla_jobs.operations.batches import count_jobs, requeue_batch
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.groups import failure_groups
from sqla_jobs.operations.listing import JobFilter, find_jobs
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.testing import drain
from tests.operations.operating import HOUR, MINUTE, NOW, Job, Note, Scene, add, clock, jobs
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from sqla_jobs.operations.groups import FailureGroups


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def session(app_engine: Engine) -> Iterator[Session]:
    with Session(Scene(app_engine).engine) as session:
        yield session


def trace(error: str, line: int = 3) -> str:
    return f'Traceback (most recent call last):\n  File "/srv/app/pay.py", line {line}, in pay\n    pay()\n{error}'


def told(found: FailureGroups) -> list[tuple[str, str | None, int]]:
    return [(group.error, group.place, group.count) for group in found.groups]


def test_failures_are_grouped_by_class_and_place(session: Session) -> None:
    """Largest first, each with its types, its ends, and its newest job; texts and numbers make no difference."""
    refused = [
        add(session, "dead", 9 * HOUR, type="send", last_error=trace("shop.Refused: card 1")),
        add(session, "failed", HOUR, type="mail", last_error=trace("shop.Refused: card 2")),
        add(session, "dead", 5 * HOUR, type="mail", last_error=trace("shop.Refused: card 3\nDETAIL: 3")),
    ]
    elsewhere = add(session, "dead", 7 * HOUR, last_error=trace("shop.Refused: card 1", line=4))
    vanished = [
        add(session, "dead", 8 * HOUR, last_error="the worker a:b:1:c vanished: the lease of attempt 1 ran out"),
        add(session, "dead", 6 * HOUR, last_error="the worker d:e:2:f vanished: the lease of attempt 5 ran out"),
    ]
    undated = add(session, "dead", finished_at=None, last_error=None)

    found = failure_groups(session, jobs)

    assert not found.is_capped
    assert told(found) == [
        ("shop.Refused", "pay.py:3 in pay", 3),
        ("the worker # vanished: the lease of attempt # ran out", None, 2),
        ("(no error text)", None, 1),
        ("shop.Refused", "pay.py:4 in pay", 1),
    ]
    assert [group.types for group in found.groups] == [("mail", "send"), ("send",), ("send",), ("send",)]
    assert [group.sample_id for group in found.groups] == [refused[1], vanished[1], undated, elsewhere]
    assert [(group.first_seen, group.last_seen) for group in found.groups] == [
        (NOW - 9 * HOUR, NOW - HOUR),
        (NOW - 8 * HOUR, NOW - 6 * HOUR),
        (None, None),
        (NOW - 7 * HOUR, NOW - 7 * HOUR),
    ]
    assert len({group.key for group in found.groups}) == 4


def test_group_is_found_counted_and_requeued_alone(session: Session) -> None:
    """Its key is a filter like the others, and none of another group is touched, nor a job that is not dead."""
    ids = [add(session, "dead", number * MINUTE, last_error=trace("OSError: gone")) for number in range(1, 6)]
    others = [add(session, "dead", number * MINUTE, last_error=trace("OSError: gone", line=9)) for number in (1, 3)]
    done = add(session, "done", last_error=trace("OSError: gone"))
    group = failure_groups(session, jobs).groups[0]
    where = JobFilter(group=group.key, status=("failed", "dead"))

    found = [job.id for job in find_jobs(session, jobs, where).jobs]
    count = count_jobs(session, jobs, where)
    changed, after = 0, None
    while changed == 0 or after is not None:
        batch = requeue_batch(session, jobs, JobFilter(group=group.key), after=after, limit=2)
        changed, after = changed + batch.changed, batch.after

    assert (group.count, found, count.count, changed) == (5, ids, 5, 5)
    statuses = {job.id: job.status for job in find_jobs(session, jobs).jobs}
    assert {job_id: status for job_id, status in statuses.items() if status == "ready"} == dict.fromkeys(ids, "ready")
    assert {statuses[job_id] for job_id in others} == {"dead"}
    assert statuses[done] == "done"


def test_filter_says_which_failures_are_grouped(session: Session) -> None:
    """Without a status it is the dead letters; another one may be named, and the rest of the filter holds, too."""
    add(session, "dead", HOUR, last_error="OSError: x")
    add(session, "failed", HOUR, type="mail", last_error="OSError: x")
    add(session, "ready", HOUR, attempts=1, last_error="KeyError: 'y'")
    add(session, "done", HOUR, last_error="TypeError: no JSON")
    add(session, "dead", 9 * HOUR, last_error="RuntimeError")

    # Without a place, those of another type are a group of their own.
    found = sorted(error for error, _, _ in told(failure_groups(session, jobs)))
    assert found == ["OSError", "OSError", "RuntimeError"]
    for where, groups in {
        JobFilter(status="ready"): [("KeyError", None, 1)],
        JobFilter(type="mail"): [("OSError", None, 1)],
        JobFilter(older_than=8 * HOUR): [("RuntimeError", None, 1)],
        JobFilter(error="ERROR: X", status="dead"): [("OSError", None, 1)],
        JobFilter(queue="nowhere"): [],
    }.items():
        assert told(failure_groups(session, jobs, where)) == groups


@pytest.mark.parametrize("cap", [1, 3, 9])
def test_cap_leaves_out_the_oldest_and_says_so(session: Session, cap: int) -> None:
    """Of more failures than the cap the newest are grouped, and those alone; what the filter leaves out counts not."""
    for number in (3, 1, 2, 4):
        add(session, "dead", number * HOUR, last_error=f"Error{number}: x")
        add(session, "dead", number * HOUR, type="mail")

    found = failure_groups(session, jobs, JobFilter(type="send"), cap=cap)

    assert [group.error for group in found.groups] == [f"Error{number}" for number in range(1, min(cap, 4) + 1)]
    assert found.is_capped is (cap < 4)


def test_failures_of_real_runs_are_grouped_by_what_raised_them(session: Session) -> None:
    """What the library writes when handlers raise is read again: a place in the handler's file; none for GiveUp."""
    registry = Jobs(Job, now=clock.now)

    @registry.handler(max_attempts=1)
    def pay(card: int) -> int:
        if card == 0:
            raise GiveUp("no card at all")
        return 1 // (card - 1)

    for card in (0, 1, 1, 2):
        enqueue(session, pay, card=card)
    drain(session, registry)

    first, second = failure_groups(session, registry).groups

    assert (first.error, first.count, first.types) == ("ZeroDivisionError", 2, ("pay",))
    assert (first.place or "").startswith("test_groups.py:")
    assert (first.place or "").endswith(" in pay")
    assert (second.error, second.place, second.count) == ("GiveUp", None, 1)


def test_failures_of_the_database_are_grouped_by_the_handler_that_met_them(session: Session) -> None:
    """However deep in SQLAlchemy a flush fails, its place is a line of the handler's: two handlers, two groups."""
    registry = Jobs(Job, now=clock.now)

    @registry.handler(max_attempts=1)
    def first(session: Session, job_id: int) -> None:
        session.add(Note(job_id=job_id))
        session.flush()

    @registry.handler(max_attempts=1)
    def second(session: Session, job_id: int) -> None:
        session.add(Note(job_id=job_id))
        session.flush()

    for handler in (first, second):
        for job_id in (10**6, 10**6 + 1):
            enqueue(session, handler, job_id=job_id)
    drain(session, registry)

    found = failure_groups(session, registry).groups

    assert {group.error for group in found} == {"sqlalchemy.exc.IntegrityError"}
    assert sorted(((group.place or "").rpartition(" ")[2], group.count) for group in found) == [
        ("first", 2),
        ("second", 2),
    ]


@pytest.mark.parametrize(("given", "says"), [(0, "cap is from 1 to"), ("5", "cap is an int"), (True, "cap is an int")])
def test_cap_that_is_none_is_refused(given: Any, says: str) -> None:
    """It is refused before anything is asked of the database."""
    with Session() as session, pytest.raises(InvalidOption, match=says):
        failure_groups(session, jobs, cap=given)
