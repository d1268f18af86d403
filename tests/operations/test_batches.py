from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text, update
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.batches import cancel_batch, count_jobs, delete_batch, requeue_batch
from sqla_jobs.operations.listing import JobFilter
from tests.operations.operating import HOUR, MINUTE, NOW, STATUSES, Job, Scene, add, jobs
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from sqla_jobs.operations.batches import Batch


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


FORMS: dict[str, tuple[Callable[..., Batch], set[str], str | None]] = {
    "requeue": (requeue_batch, {"failed", "dead"}, "ready"),
    "cancel": (cancel_batch, {"ready", "running"}, "failed"),
    "delete": (delete_batch, {"done", "failed", "dead"}, None),
}
"""Each form, the statuses that it moves, and what they become."""


def batches(scene: Scene, form: Callable[..., Batch], where: JobFilter, **options: Any) -> list[Batch]:
    """Call it until all has been seen, each time in a transaction of its own."""
    done: list[Batch] = []
    while not done or done[-1].after is not None:
        with scene.transaction() as session:
            done.append(form(session, jobs, where, after=done[-1].after if done else None, **options))
        assert len(done) < 100, "it has no end"
    return done


@pytest.mark.parametrize(("limit", "wanted_type"), [(1, None), (3, None), (3, "send"), (50, "send")])
@pytest.mark.parametrize("name", FORMS)
def test_batches_move_what_the_filter_names_and_nothing_else(
    scene: Scene, name: str, limit: int, wanted_type: str | None
) -> None:
    """Call by call, at most *limit* rows each, every row that the filter names and the form moves is moved once."""
    form, moves, becomes = FORMS[name]
    with scene.transaction() as session:
        before: dict[int, tuple[str, str]] = {}
        for status in STATUSES:
            undated: dict[str, Any] = {"finished_at": None} if status in {"done", "failed", "dead"} else {}
            for type_ in ("send", "mail"):
                before[add(session, status, type=type_)] = (status, type_)
                before[add(session, status, type=type_, queue="mail")] = (status, type_)
                before[add(session, status, type=type_, **undated)] = (status, type_)

    done = batches(scene, form, JobFilter(type=wanted_type), limit=limit)

    wanted = {job_id for job_id, (status, type_) in before.items() if status in moves and wanted_type in {None, type_}}
    assert max(batch.changed for batch in done) <= limit
    assert (sum(batch.changed for batch in done), {batch.skipped for batch in done}) == (len(wanted), {0})
    after = {job_id: becomes if job_id in wanted else status for job_id, (status, _) in before.items()}
    assert scene.statuses() == {job_id: status for job_id, status in after.items() if status is not None}


@pytest.mark.parametrize("name", FORMS)
def test_filter_that_finds_nothing_ends(scene: Scene, name: str) -> None:
    """It looks at one window a call, and says None when all has been seen, also of an empty table."""
    form, moves, _ = FORMS[name]
    assert {batch.changed for batch in batches(scene, form, JobFilter())} == {0}
    with scene.transaction() as session:
        before = {add(session, status): status for status in sorted(moves) for _ in range(7)}

    done = batches(scene, form, JobFilter(error="nowhere"), limit=3)
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    with Session(scene.engine) as session:
        event.listen(scene.engine, "before_cursor_execute", count)
        form(session, jobs, JobFilter(error="nowhere"), limit=3)
        event.remove(scene.engine, "before_cursor_execute", count)

    assert {(batch.changed, batch.skipped) for batch in done} == {(0, 0)}
    assert scene.statuses() == before
    assert statements <= 6


def test_filter_of_a_group_or_a_status_moves_those_alone(scene: Scene) -> None:
    """One of the statuses that a form moves may be named, and ages and errors hold as in a list."""
    with scene.transaction() as session:
        old, new = add(session, "dead", 9 * HOUR), add(session, "dead", MINUTE)
        failed = add(session, "failed", 9 * HOUR)

    batches(scene, requeue_batch, JobFilter(status="dead", older_than=HOUR, error="BROKEN"))

    assert scene.statuses() == {old: "ready", new: "dead", failed: "failed"}


def test_jobs_that_fail_again_at_once_are_not_requeued_again(scene: Scene) -> None:
    """A batch goes on from the newest to the oldest: what has failed meanwhile is behind it, and there is an end."""
    with scene.transaction() as session:
        ids = [add(session, "dead", number * HOUR) for number in range(1, 8)]
        ids.append(add(session, "dead", finished_at=None))

    changed = 0
    after: str | None = None
    for number in range(20):
        with scene.transaction() as session:
            batch = requeue_batch(session, jobs, JobFilter(), after=after, limit=2)
            failing = {"status": "dead", "finished_at": NOW + number * MINUTE}
            session.execute(update(Job).where(Job.status == "ready").values(failing))
        changed += batch.changed
        if (after := batch.after) is None:
            break

    assert after is None
    assert changed == len(ids)


def test_batch_hands_on_what_is_to_be_written(scene: Scene) -> None:
    """A new number of attempts and a reason are those of every row."""
    with scene.transaction() as session:
        dead = [add(session, "dead", attempts=5) for _ in range(2)]
        ready = add(session)
        requeue_batch(session, jobs, JobFilter(), max_attempts=9)
        cancel_batch(session, jobs, JobFilter(), reason="a test \x00 of mine")

    rows = [scene.row(job_id) for job_id in (*dead, ready)]
    assert [row["max_attempts"] for row in rows] == [9, 9, 5]
    assert [(row["status"], row["last_error"]) for row in rows] == [("failed", "a test \\x00 of mine")] * 3


def test_count_is_of_what_a_form_would_move_up_to_its_cap(scene: Scene) -> None:
    """It is exact below the cap, and at least that number above it; other statuses and types are not in it."""
    with scene.transaction() as session:
        for status in STATUSES:
            for type_ in ("send", "mail", "mail"):
                add(session, status, type=type_)
        dead = JobFilter(status=("failed", "dead"), type="mail")

        counts = [count_jobs(session, jobs, dead, cap=cap) for cap in (1, 3, 4, 5)]
        everything = count_jobs(session, jobs)
        nothing = count_jobs(session, jobs, JobFilter(queue="nowhere"))
        moved = requeue_batch(session, jobs, dead)

    assert [(count.count, count.is_capped) for count in counts] == [(1, True), (3, True), (4, False), (4, False)]
    assert (everything.count, everything.is_capped) == (15, False)
    assert (nothing.count, nothing.is_capped) == (0, False)
    assert moved.changed == counts[-1].count


def test_count_of_more_than_the_cap_looks_at_no_more(scene: Scene) -> None:
    """Of twenty-five thousand rows a count sees what it was asked for, in a handful of statements."""
    with scene.transaction() as session:
        add(session, "dead")
        session.execute(
            text(
                "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 25000) "
                "INSERT INTO job (type, status, run_at, created_at, finished_at) "
                "SELECT type, status, run_at, created_at, finished_at FROM numbers, job"
            )
        )
        seen: list[int] = []

        def see(_connection: Any, _cursor: Any, statement: str, *_: object) -> None:
            seen.append(len(statement))

        event.listen(scene.engine, "before_cursor_execute", see)
        first = count_jobs(session, jobs, JobFilter(status="dead"))
        event.remove(scene.engine, "before_cursor_execute", see)
        session.rollback()

    assert (first.count, first.is_capped, len(seen) <= 8) == (10_000, True, True)


untyped: Any = SimpleNamespace(requeue=requeue_batch, cancel=cancel_batch, delete=delete_batch, count=count_jobs)
"""To be called as nobody should."""

BAD_CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "limit 0": (lambda session: untyped.requeue(session, jobs, JobFilter(), limit=0), "limit is from 1 to"),
    "limit too large": (
        lambda session: untyped.delete(session, jobs, JobFilter(), limit=10_001),
        "limit is from 1 to 10000, and is 10001: call it again with after=batch.after",
    ),
    "no place": (lambda session: untyped.cancel(session, jobs, JobFilter(status="running"), after="x"), "after is 'x'"),
    "no attempts": (
        lambda session: untyped.requeue(session, jobs, JobFilter(), max_attempts=0),
        "max_attempts is from",
    ),
    "no reason": (lambda session: untyped.cancel(session, jobs, JobFilter(), reason=""), "reason is a text"),
    "no cap": (lambda session: untyped.count(session, jobs, cap=0), "cap is from 1 to"),
    "no filter": (
        lambda session: untyped.delete(session, jobs, 5),
        r"a JobFilter\(.*\) comes third, and this is a int",
    ),
    "requeue ready": (
        lambda session: untyped.requeue(session, jobs, JobFilter(status=("dead", "ready"))),
        "jobs that are ready are not requeued: only failed and dead jobs are requeued",
    ),
    "cancel done": (
        lambda session: untyped.cancel(session, jobs, JobFilter(status="done")),
        "jobs that are done are not cancelled: only ready and running jobs are cancelled",
    ),
    "delete running": (
        lambda session: untyped.delete(session, jobs, JobFilter(status="running")),
        "jobs that are running are not deleted: only finished jobs are deleted: cancel it first",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_option_that_is_none_is_refused(name: str) -> None:
    """What can't be meant is refused with what to write instead, before anything is asked of the database."""
    call, says = BAD_CALLS[name]

    with Session() as session, pytest.raises(InvalidOption, match=says):
        call(session)
