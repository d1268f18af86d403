from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, select
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from tests.operations.blocking import PATIENCE
from tests.operations.leasing import HOUR, MINUTE, SECOND, add, changes, row, start_of, take
from tests.operations.shop import Job, Note, clock, timed_mail, timed_send

if TYPE_CHECKING:
    pass


def ids(claimed: list[Any]) -> list[int]:
    return [lease.id for lease in claimed]


def test_claim_gives_the_lease_as_a_value(session: Session) -> None:
    """A lease has all that a worker needs to run the job and to settle it."""
    job = enqueue(session, timed_mail, to="ann")
    session.commit()

    (lease,) = take(session, by="host:1")

    assert (lease.id, lease.type, lease.queue, lease.payload) == (job.id, "mail", "mail", {"to": "ann"})
    assert (lease.attempt, lease.max_attempts, lease.refunds, lease.claims) == (1, 3, 0, 1)
    assert (lease.locked_by, lease.slot, lease.errors) == ("host:1", None, ())
    assert lease.key == (job.id, 1)
    assert start_of(lease).tzinfo is UTC


def test_claim_changes_exactly_what_it_must(session: Session) -> None:
    """The row is running, counts the attempt and the claim, and says who has it until when. All else stays."""
    job_id = add(session, ago=HOUR, attempts=2, claims=7, last_error="boom", errors=[{"error": "boom"}])
    before = row(session, job_id)

    (lease,) = take(session, by="host:1", lease=MINUTE)

    assert changes(before, row(session, job_id)) == {
        "status": "running",
        "attempts": 3,
        "claims": 8,
        "locked_by": "host:1",
        "locked_until": start_of(lease) + MINUTE,
        "started_at": lease.started_at,
    }
    assert (lease.attempt, lease.claims, lease.errors) == (3, 8, ({"error": "boom"},))


def test_claimed_job_is_not_claimed_again(session: Session) -> None:
    """A running job is nobody else's, also when its lease is over: the reaper gives it back, not the claim."""
    add(session, ago=HOUR)
    take(session, lease=SECOND)
    clock.advance(session, HOUR)

    assert take(session, by="w2") == []


@pytest.mark.parametrize("status", ["running", "done", "failed", "dead"])
def test_only_ready_jobs_are_claimed(session: Session, status: str) -> None:
    """A job that runs or has ended is never claimed, however due it looks."""
    add(session, ago=HOUR, status=status)

    assert take(session) == []


def test_oldest_jobs_are_claimed_first(session: Session) -> None:
    """The order is by `run_at` and then by id, over all queues and types; leases come in that order."""
    ages = [3, 7, 1, 7, 9, 2]
    added = [
        add(session, ago=age * SECOND, queue=f"q{number % 3}", type=("send", "mail")[number % 2])
        for number, age in enumerate(ages)
    ]

    claimed = take(session, limit=4)

    by_age = sorted(range(len(ages)), key=lambda number: (-ages[number], number))
    assert ids(claimed) == [added[number] for number in by_age[:4]]
    assert ids(take(session)) == [added[number] for number in by_age[4:]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["send", "mail", "unknown"]),
            st.sampled_from(["a", "b", "c"]),
            st.integers(-3, 5),
            st.sampled_from(["ready", "ready", "ready", "running", "done"]),
        ),
        max_size=12,
    ),
    limit=st.integers(1, 6),
    queues=st.sampled_from([None, ("a",), ("a", "c")]),
)
def test_claim_is_the_oldest_of_what_is_served(
    session: Session, rows: list[tuple[str, str, int, str]], limit: int, queues: tuple[str, ...] | None
) -> None:
    """Whatever is in the table, exactly the oldest due rows of known types and served queues are claimed."""
    session.execute(delete(Job))
    expected: list[tuple[int, int]] = []
    for type_, queue, age, status in rows:
        job_id = add(session, type=type_, queue=queue, ago=age * MINUTE, status=status)
        if type_ != "unknown" and status == "ready" and age >= 0 and (queues is None or queue in queues):
            expected.append((-age, job_id))

    claimed = take(session, limit=limit, queues=queues)

    assert ids(claimed) == [job_id for _, job_id in sorted(expected)[:limit]]


def test_claim_never_exceeds_its_limit(session: Session) -> None:
    """However many jobs of however many kinds are due, no more than the limit are claimed, and none twice."""
    enqueue_many(session, [timed_send.using(queue=f"q{number % 7}").job(order_id=number) for number in range(100)])
    enqueue_many(session, [timed_mail.job(to="ann") for _ in range(20)])

    claims = [take(session, limit=limit) for limit in (1, 17, 50, 1000)]

    assert [len(claim) for claim in claims] == [1, 17, 50, 52]
    assert len({lease.id for claim in claims for lease in claim}) == 120


@pytest.mark.parametrize("limit", [0, -1])
def test_claim_of_nothing_says_nothing(session: Session, limit: int) -> None:
    """Without a free slot, or without a handler, the database isn't asked."""
    add(session, ago=HOUR)
    said: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *args: said.append(args[2]))

    assert take(session, limit=limit) == []
    assert take(session, types=()) == []
    assert said == []


def test_unknown_types_stay_as_they_are(session: Session) -> None:
    """A job that this worker doesn't know is left for one that does: no attempt, no lease, and none behind it waits."""
    unknown = [add(session, ago=HOUR, type=f"unknown-{number % 3}") for number in range(30)]
    known = add(session, ago=SECOND)
    before = [row(session, job_id) for job_id in unknown]

    claimed = take(session, limit=5)

    assert ids(claimed) == [known]
    assert [row(session, job_id) for job_id in unknown] == before


def test_queues_that_are_not_served_stay_as_they_are(session: Session) -> None:
    """A worker of some queues touches no other; without queues it serves all."""
    bulk, elsewhere = add(session, ago=MINUTE, queue="bulk"), add(session, ago=HOUR, queue="elsewhere")
    before = row(session, elsewhere)

    assert ids(take(session, queues=["bulk", "no such queue"])) == [bulk]
    assert row(session, elsewhere) == before
    assert ids(take(session)) == [elsewhere]


def test_queue_names_are_compared_by_every_letter(session: Session) -> None:
    """Queues and types that differ in case, in spaces or by a sign are others."""
    for name in ("Bulk", "bulk ", "bul_", "%", "bulk'"):
        add(session, ago=HOUR, queue=name)
        add(session, ago=HOUR, type=name, queue="bulk")

    assert take(session, queues=["bulk"]) == []
    assert len(take(session, queues=["bulk'"])) == 1


def test_later_jobs_are_not_touched_before_they_are_due(session: Session) -> None:
    """A job is claimed at its time by the database's clock, and not a moment before."""
    job_id = add(session, ago=-HOUR)
    before = row(session, job_id)

    early = take(session)
    untouched = row(session, job_id)
    clock.advance(session, HOUR - MINUTE)
    still_early = take(session)
    clock.advance(session, 2 * MINUTE)

    assert (early, still_early) == ([], [])
    assert untouched == before
    assert ids(take(session)) == [job_id]


def test_two_claimers_get_different_jobs(postgresql_sessions: sessionmaker[Session]) -> None:
    """While one claim's transaction is open another passes over its rows, at once, and gets the next ones."""
    with postgresql_sessions.begin() as session:
        enqueue_many(session, [timed_send.job(order_id=number) for number in range(10)])

    with postgresql_sessions() as first, postgresql_sessions() as second:
        mine, others = take(first, limit=4, by="w1"), take(second, limit=4, by="w2")
        second.commit()
        first.commit()

    assert (len(mine), len(others)) == (4, 4)
    assert not set(ids(mine)) & set(ids(others))
    assert ids(mine + others) == sorted(ids(mine + others))


def test_many_claimers_at_once_share_the_jobs(sessions: sessionmaker[Session]) -> None:
    """Claimers on connections of their own get each job once, whatever order they come in."""
    with sessions.begin() as session:
        enqueue_many(session, [timed_send.using(queue=f"q{n % 3}").job(order_id=n) for n in range(90)])

    def claimer(number: int) -> list[int]:
        mine: list[int] = []
        for _ in range(15):
            with sessions.begin() as session:
                mine += ids(take(session, limit=4, by=f"w{number}"))
        return mine

    with ThreadPoolExecutor(4) as threads:
        shares = [share.result(PATIENCE) for share in [threads.submit(claimer, number) for number in range(4)]]

    everything = [job_id for share in shares for job_id in share]
    assert len(everything) == len(set(everything)) == 90


def test_locked_rows_of_one_kind_hide_no_other(postgresql_sessions: sessionmaker[Session]) -> None:
    """Rows that somebody holds locked are passed over: due jobs of other types and queues are claimed meanwhile."""
    with postgresql_sessions.begin() as session:
        held = [add(session, ago=HOUR) for _ in range(5)]
        free = [add(session, ago=MINUTE, type="mail"), add(session, ago=MINUTE, queue="bulk")]

    with postgresql_sessions() as holder, postgresql_sessions() as session:
        holder.execute(select(Job.id).where(Job.id.in_(held)).with_for_update())

        assert ids(take(session, limit=3)) == free


def test_locked_rows_at_the_head_hide_nothing_behind_them(postgresql_sessions: sessionmaker[Session]) -> None:
    """More locked rows than a claim takes don't stop it: it gets those behind, up to its limit."""
    with postgresql_sessions.begin() as session:
        held = [add(session, ago=HOUR) for _ in range(20)]
        free = [add(session, ago=MINUTE) for _ in range(5)]

    with postgresql_sessions() as holder, postgresql_sessions() as session:
        holder.execute(select(Job.id).where(Job.id.in_(held)).with_for_update())

        assert ids(take(session, limit=3)) == free[:3]


def test_claim_locks_no_more_than_it_takes(postgresql_sessions: sessionmaker[Session]) -> None:
    """What a claim passes over or leaves stays free for the next, also where it had to look behind locked rows."""
    with postgresql_sessions.begin() as session:
        held = [add(session, ago=HOUR, queue=f"q{number % 4}") for number in range(8)]
        free = [add(session, ago=MINUTE, queue=f"q{number % 4}") for number in range(12)]
        free += [add(session, ago=MINUTE, type="mail", queue=f"q{number % 4}") for number in range(8)]

    with postgresql_sessions() as holder, postgresql_sessions() as first, postgresql_sessions() as second:
        holder.execute(select(Job.id).where(Job.id.in_(held)).with_for_update())
        claims = [ids(take(first, limit=5)), ids(take(second, limit=100))]

    assert [len(claim) for claim in claims] == [5, 15]
    assert sorted(claims[0] + claims[1]) == sorted(free)


def test_child_row_in_an_open_transaction_does_not_hide_the_job(postgresql_sessions: sessionmaker[Session]) -> None:
    """A row that refers to the job by a foreign key, uncommitted, locks its key: the job is claimed all the same."""
    with postgresql_sessions.begin() as session:
        job_id = add(session, ago=HOUR)

    with postgresql_sessions() as app, postgresql_sessions() as session:
        app.add(Note(job_id=job_id))
        app.flush()

        assert ids(take(session)) == [job_id]
        session.commit()
        app.commit()
