from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidOption, UnknownJob
from sqla_jobs.operations.batches import count_jobs
from sqla_jobs.operations.dead_letters import cancel_jobs, delete_jobs, requeue_jobs
from sqla_jobs.operations.listing import FoundJob, JobFilter, find_jobs, show_job
from tests.operations.operating import (
    HOUR,
    LOOKS,
    MINUTE,
    NOW,
    STATUSES,
    Job,
    Scene,
    add,
    found,
    jobs,
)
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

HALF_HOUR = HOUR / 2


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


# --- order and pages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 50])
def test_list_begins_with_what_runs_and_ends_with_what_ended_first(scene: Scene, limit: int) -> None:
    """Running jobs by worker; ready ones by queue, type and time; finished ones newest first, undated before them."""
    with scene.transaction() as session:
        new = partial(add, session)
        wanted = {
            "done long ago": new("done", 9 * HOUR),
            "dead": new("dead", 3 * HOUR),
            "done": new("done", 2 * HOUR),
            "failed at the same time": new("failed", 2 * HOUR),
            "dead by hand": new("dead", finished_at=None),
            "done by hand": new("done", finished_at=None),
            "ready in mail": new(type="mail", queue="mail"),
            "ready, of another type": new(type="report"),
            "ready later": new(ago=-HOUR),
            "ready": new(ago=HOUR),
            "ready at the same time": new(ago=HOUR),
            "running at w2": new("running", locked_by="w2"),
            "running at w1": new("running", 5 * HOUR, locked_by="w1"),
            "running nowhere": new("running", locked_by=None, started_at=None),
        }

    names = {job_id: name for name, job_id in wanted.items()}
    assert [names[job_id] for job_id in found(scene, limit=limit)] == [
        *("running nowhere", "running at w1", "running at w2"),
        *("ready, of another type", "ready", "ready at the same time", "ready later", "ready in mail"),
        *("done by hand", "dead by hand", "failed at the same time", "done", "dead", "done long ago"),
    ]


ERRORS = [None, "", "100% sure", "100 sure", "A_b", "Axb", "c:/temp", "c:temp"]

rows = st.lists(
    st.fixed_dictionaries(
        {
            "status": st.sampled_from(STATUSES),
            "queue": st.sampled_from(["default", "mail"]),
            "type": st.sampled_from(["send", "mail", "elsewhere"]),
            "hours": st.integers(-2, 3),
            "worker": st.sampled_from([None, "w1", "w2"]),
            "is_dated": st.booleans(),
            "error": st.sampled_from(ERRORS),
        }
    ),
    min_size=4,
    max_size=14,
)

filters = st.builds(
    JobFilter,
    status=st.none() | st.lists(st.sampled_from(STATUSES), min_size=1, max_size=3),
    type=st.sampled_from([None, None, "send", "elsewhere"]),
    queue=st.sampled_from([None, None, "mail"]),
    older_than=st.sampled_from([None, None, HALF_HOUR, 3 * HALF_HOUR]),
    newer_than=st.sampled_from([None, None, 3 * HALF_HOUR]),
    error=st.sampled_from([None, None, None, "%", "_", "a_B", "/", "100", "SURE"]),
)


def wanted_order(row: dict[str, Any]) -> Any:
    """Say where a row stands in the list."""
    match row["status"]:
        case "running":
            return (0, row["worker"] is not None, row["worker"] or "", row["id"])
        case "ready":
            return (1, row["queue"], row["type"], -row["hours"], row["id"])
        case _:
            return (2, row["is_dated"], row["hours"] if row["is_dated"] else 0, -row["id"])


def is_wanted(row: dict[str, Any], where: JobFilter) -> bool:
    """Say whether a filter names a row."""
    is_dated = row["is_dated"] or row["status"] in {"ready", "running"}
    return (
        row["status"] in where.statuses
        and where.type in {None, row["type"]}
        and where.queue in {None, row["queue"]}
        and (where.older_than is None or (is_dated and row["hours"] * HOUR > where.older_than))
        and (where.newer_than is None or (is_dated and row["hours"] * HOUR < where.newer_than))
        and (where.error is None or where.error.lower() in (row["error"] or "").lower())
    )


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows, where=filters, limit=st.integers(1, 6))
def test_pages_give_each_job_that_the_filter_names_once(
    scene: Scene, rows: list[dict[str, Any]], where: JobFilter, limit: int
) -> None:
    """Whatever the table holds, and whatever is looked for, the pages together are the list, and the count is its."""
    scene.clear()
    with scene.transaction() as session:
        for row in rows:
            columns: dict[str, Any] = {"queue": row["queue"], "type": row["type"], "last_error": row["error"]}
            if row["status"] == "running":
                columns["locked_by"] = row["worker"]
            if row["status"] in {"done", "failed", "dead"} and not row["is_dated"]:
                columns["finished_at"] = None
            row["id"] = add(session, row["status"], row["hours"] * HOUR, **columns)

    ids = found(scene, where, limit=limit)
    with scene.transaction() as session:
        count = count_jobs(session, jobs, where)

    assert ids == [row["id"] for row in sorted(rows, key=wanted_order) if is_wanted(row, where)]
    assert (count.count, count.is_capped) == (len(ids), False)


def test_pages_when_rows_move_between_them_give_those_that_stay_once(scene: Scene) -> None:
    """A page goes on behind the last row of the one before, also when that row has left, and others have come."""
    with scene.transaction() as session:
        dead = [add(session, "dead", number * HOUR) for number in range(1, 7)]
        first = find_jobs(session, jobs, JobFilter(status="dead"), limit=2)

    with scene.transaction() as session:
        requeue_jobs(session, jobs, dead[1])
        delete_jobs(session, jobs, dead[2])
        add(session, "dead", MINUTE)
    with scene.transaction() as session:
        second = find_jobs(session, jobs, JobFilter(status="dead"), limit=50, after=first.after)

    assert [job.id for job in first.jobs] == dead[:2]
    assert [job.id for job in second.jobs] == dead[3:]
    assert second.after is None


def test_pages_when_a_lane_empties_between_them_go_on_with_the_next(scene: Scene) -> None:
    """The place in a list may be in a queue that has no ready jobs any more, or before one that has some now."""
    with scene.transaction() as session:
        in_default = [add(session, ago=number * HOUR) for number in (3, 2, 1)]
        later = add(session, type="tidy", queue="zoo")
        first = find_jobs(session, jobs, JobFilter(status="ready"), limit=1)

    with scene.transaction() as session:
        cancel_jobs(session, jobs, in_default)
        new = add(session, type="mail", queue="mail")
        add(session, type="mail", queue="a")
    with scene.transaction() as session:
        second = find_jobs(session, jobs, JobFilter(status="ready"), after=first.after)

    assert [job.id for job in second.jobs] == [new, later]


# --- filters --------------------------------------------------------------------------------------------------------


def test_age_counts_since_the_status_began(scene: Scene) -> None:
    """A ready job ages from when it was due, a running one from its claim, a finished one from its end."""
    long_ago: dict[str, Any] = {"run_at": NOW - 9 * HOUR, "created_at": NOW - 9 * HOUR}
    ids = [
        scene.add(ago=-HOUR, created_at=NOW - 9 * HOUR),
        scene.add("running", HOUR, **long_ago),
        scene.add("dead", HOUR, started_at=NOW - 9 * HOUR, **long_ago),
    ]
    older, newer = JobFilter(older_than=2 * HOUR), JobFilter(newer_than=2 * HOUR)

    before = sorted(found(scene, older)), sorted(found(scene, newer))
    scene.move_to(NOW + 2 * HOUR)
    between = sorted(found(scene, older)), sorted(found(scene, newer))
    scene.move_to(NOW + 4 * HOUR)
    after = sorted(found(scene, older)), sorted(found(scene, newer))

    assert before == ([], ids)
    assert between == (ids[1:], ids[:1])
    assert after == (ids, [])


def test_filter_that_finds_one_of_many_goes_on_until_it_has_it(scene: Scene) -> None:
    """A filter that no index serves looks on behind a window without a match, and a page of one ends there."""
    wanted = [scene.add("dead", 9 * HOUR, last_error="OSError: rare"), scene.add("dead", last_error="OSError: rare")]
    scene.sql(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1200) "
        "INSERT INTO job (type, status, run_at, created_at, finished_at, last_error) "
        "SELECT 'send', 'dead', run_at, created_at, :at, 'ValueError: usual' FROM numbers, job WHERE job.id = :id",
        id=wanted[0],
        at="2027-05-03 08:00:00.000000" + ("+00" if scene.is_postgresql else ""),
    )

    assert found(scene, JobFilter(error="rare"), limit=1) == wanted[::-1]
    assert found(scene, JobFilter(error="nowhere")) == []


def test_archived_jobs_are_in_no_list(scene: Scene) -> None:
    """A list is of the job table."""
    scene.add("done", id=5, is_archived=True)
    live = scene.add("done")

    assert found(scene) == [live]


# --- what is shown --------------------------------------------------------------------------------------------------


def test_found_job_has_its_row_and_the_line_that_names_its_error(scene: Scene) -> None:
    """Times are aware, the error is its last line of use, clipped, and a handler's alias is a known type."""
    trace = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in pay\n    pay()\nValueError: no card\nDETAIL: x'
    )
    job_id = scene.add(
        "dead", HOUR, type="dispatch", last_error=trace, run_at=NOW - 2 * HOUR, max_attempts=7, locked_by="w9"
    )
    unknown = scene.add("failed", 2 * HOUR, type="sned", last_error="é" * 400)
    fine = scene.add("done", 3 * HOUR)

    with scene.transaction() as session:
        first, second, third = find_jobs(session, jobs).jobs

    assert first == FoundJob(
        id=job_id,
        type="dispatch",
        queue="default",
        status="dead",
        run_at=NOW - 2 * HOUR,
        attempts=1,
        max_attempts=7,
        created_at=NOW - HOUR,
        started_at=NOW - HOUR,
        finished_at=NOW - HOUR,
        locked_by="w9",
        locked_until=None,
        error="ValueError: no card",
        is_known=True,
        archived_at=None,
    )
    assert first.run_at is not None
    assert first.run_at.tzinfo is UTC
    assert (second.id, second.is_known, len((second.error or "").encode())) == (unknown, False, 300)
    assert (third.id, third.error) == (fine, None)


@pytest.mark.parametrize("is_archived", [False, True])
def test_shown_job_has_all_of_its_row(scene: Scene, is_archived: bool) -> None:
    """Everything of ours is shown, of a live job and of an archived one, and when that was so."""
    columns: dict[str, Any] = {
        "payload": {"order_id": 5},
        "errors": [{"attempt": 1, "started_at": None, "worker": "w1", "error": "boom"}],
        "result": {"a": [1]},
        "trace": {"t": "1"},
        "idempotency_key": "k",
        "refunds": 2,
        "claims": 4,
        "lease_expirations": 3,
        "last_lease_expired_at": NOW - HOUR,
        "schedule_id": 8,
        "slot": NOW - 2 * HOUR,
        "last_error": "first\nsecond",
    }
    more: dict[str, Any] = {"id": 77, "is_archived": True} if is_archived else {}
    job_id = scene.add("dead", HOUR, **columns, **more)

    with scene.transaction() as session:
        shown = show_job(session, jobs, job_id)

    assert {name: getattr(shown, name) for name in columns} == columns
    assert (shown.id, shown.status, shown.error, shown.archived_at) == (
        job_id,
        "dead",
        "first",
        NOW - HOUR if is_archived else None,
    )
    assert NOW <= shown.seen_at < NOW + MINUTE
    assert (shown.is_due, shown.is_lease_over) == (True, True)
    assert shown == replace(shown, seen_at=NOW)


def test_job_that_is_nowhere_is_unknown(scene: Scene) -> None:
    """The error says the id, and what may have become of it."""
    with scene.transaction() as session, pytest.raises(UnknownJob, match=r"no job 404: it was deleted, or") as caught:
        show_job(session, jobs, 404)

    assert (caught.value.job_id, isinstance(caught.value, LookupError)) == (404, True)


def test_object_that_the_session_has_just_added_is_found(scene: Scene) -> None:
    """Pending objects are flushed as by any statement of the session, and changes of loaded ones, too."""
    with scene.transaction() as session:
        job = Job(type="send", run_at=NOW, created_at=NOW)
        session.add(job)
        (listed,) = find_jobs(session, jobs).jobs
        job.queue = "mail"
        assert (listed.id, show_job(session, jobs, job.id).queue) == (job.id, "mail")


# --- what is refused, and what is not done --------------------------------------------------------------------------


def token(*parts: object) -> str:
    """Write the place in a list as one is written, with these parts."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


NO_PLACES: list[Any] = [
    *("", "x", "!!", "bm9uZQ", "ä", "\ud800", 5, b"x", "W10", token(1, 2), token("a", "", "", True, None, None)),
    *(token(2, "", "", True, "2027-05-03 12:00:00", "x"), token(2, "", "", True, "2027-05-03 12:00:00", 2**70)),
    *(
        token(float("inf"), "", "", True, None, None),
        token(-1, "", "", True, None, None),
        token(9, "", "", True, None, None),
    ),
    *(token(3, "", "", True, "2027-05-03 12:00:00", 1), token(2, "", "", True, "2027-05-03 12:00:00\x00", 1)),
    *(token(0, "", "", True, "w\x00", 1), token(0, "", "", True, "w\ud800", 1), "W" * 5000),
]


@pytest.mark.parametrize("after", NO_PLACES)
def test_place_that_no_page_gave_is_refused(after: Any) -> None:
    """It is refused before the database stumbles over it, which would end the caller's transaction."""
    with (
        Session() as session,
        pytest.raises(InvalidOption, match="no page of such a list gave that: leave it out to begin"),
    ):
        find_jobs(session, jobs, JobFilter(status="dead"), after=after)


untyped: Any = SimpleNamespace(find=find_jobs, show=show_job, filter=JobFilter)
"""To be called as nobody should."""

BAD_CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "limit 0": (lambda session: untyped.find(session, jobs, limit=0), "limit is from 1 to"),
    "limit text": (lambda session: untyped.find(session, jobs, limit="5"), "limit is an int"),
    "limit true": (lambda session: untyped.find(session, jobs, limit=True), "limit is an int"),
    "limit too large": (lambda session: untyped.find(session, jobs, limit=10_001), "go on with after=page.after"),
    "status": (
        lambda _: untyped.filter(status="deadly"),
        "status is one of ready, running, done, failed, dead, or",
    ),
    "statuses": (lambda _: untyped.filter(status=["dead", None]), "status is one of"),
    "number as status": (lambda _: untyped.filter(status=5), "status is one of"),
    "no status": (lambda _: untyped.filter(status=[]), "status is empty; leave it out for jobs of every status"),
    "type": (lambda _: untyped.filter(type=jobs.handlers), "type is a str"),
    "empty queue": (lambda _: untyped.filter(queue=""), "queue is empty; leave it out"),
    "NUL in an error": (lambda _: untyped.filter(error="a\x00"), "error has a NUL"),
    "age": (lambda _: untyped.filter(older_than=5), r"older_than is a timedelta.*timedelta\(seconds=…\)"),
    "negative age": (lambda _: untyped.filter(newer_than=-HOUR), "newer_than is from"),
    "status for a filter": (
        lambda session: untyped.find(session, jobs, "dead"),
        r"a JobFilter\(status=…, type=…\) comes third, and this is a str",
    ),
    "wrong order": (lambda session: untyped.find(jobs, session), "a Jobs comes second, and this is a Session"),
    "no session": (lambda _: untyped.find(jobs, jobs), "a Session or an AsyncSession is wanted first, and not a Jobs"),
    "model for a registry": (lambda session: untyped.show(session, Job, 1), "a Jobs comes second, and this is a"),
    "text for an id": (lambda session: untyped.show(session, jobs, "5"), "a job's id is an int, and this is a str"),
    "truth for an id": (lambda session: untyped.show(session, jobs, True), "a job's id is an int"),
    "id of more bits": (lambda session: untyped.show(session, jobs, 2**63), "a job's id has 64 bits"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_option_that_is_none_is_refused(name: str) -> None:
    """What can't be meant is refused with what to write instead, before anything is asked of the database."""
    call, says = BAD_CALLS[name]

    with Session() as session, pytest.raises(InvalidOption, match=says):
        call(session)


def test_look_writes_nothing_and_locks_nothing(scene: Scene) -> None:
    """Every look works in a transaction in which the database refuses to write, or to lock a row."""
    with scene.transaction() as session:
        ids = [add(session, status) for status in STATUSES]
        ids.append(add(session, "done", id=999, is_archived=True))

    with scene.transaction() as session:
        session.execute(text("SET TRANSACTION READ ONLY" if scene.is_postgresql else "PRAGMA query_only = ON"))
        for look in LOOKS.values():
            for job_id in ids:
                look(session, jobs, job_id)
        if not scene.is_postgresql:
            session.execute(text("PRAGMA query_only = OFF"))
