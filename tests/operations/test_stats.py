"""What each figure says of rows that were made by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.operations.stats import MOST_LANES, RunningStats, ScheduleStats, Stats, stats
from tests.engines import fresh_database
from tests.operations.timetable import HALF_PAST, HOUR, Base, Job, Schedule, clock, emptied, set_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)

jobs = Jobs(Job, schedule=Schedule, name="shop", now=clock.now)


@jobs.handler(aliases=["post"])
def send(order_id: int) -> None: ...


@jobs.handler(queue="mail")
def mail(to: str) -> None: ...


@pytest.fixture(scope="module")
def shared_url(postgresql_server: str) -> Iterator[str]:
    """Give the URL of the one PostgreSQL database of this file."""
    with fresh_database(postgresql_server) as url:
        yield url


@pytest.fixture
def postgresql_url(shared_url: str) -> str:
    """Give it with empty tables."""
    return emptied(shared_url)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """Give a session on empty tables, at half past twelve."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        set_clock(session, HALF_PAST)
        yield session


def add(session: Session, count: int = 1, /, **values: Any) -> list[int]:
    """Insert *count* rows, of type `send` unless told otherwise, and give their ids; a timedelta is how long ago."""
    now = clock.read(session)
    row = {"type": "send", "run_at": timedelta(0)} | values
    row = {name: now - value if isinstance(value, timedelta) else value for name, value in row.items()}
    ids = session.scalars(insert(Job).returning(Job.id), [row] * count)
    return list(ids)


def add_schedules(session: Session, **columns: list[Any]) -> None:
    """Insert a schedule for each value of the lists."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    usual = {"job_type": "send", "cron": "0 * * * *"}
    session.execute(insert(Schedule), [usual | {"name": f"schedule {n}"} | row for n, row in enumerate(rows)])


def counted(found: Stats) -> list[tuple[str, str, bool, int, int, int]]:
    """Give the counts of the lanes."""
    return [(each.queue, each.type, each.is_known, each.due, each.later, each.running) for each in found.lanes]


def is_about(age: timedelta | None, wanted: timedelta) -> bool:
    """Tell whether an age is what it was when the rows were made, and the time since then."""
    return age is not None and wanted <= age < wanted + MINUTE


def test_empty_tables_have_zero_everywhere(session: Session) -> None:
    """With no rows there is a figure for everything all the same, and none that means "at least"."""
    found = stats(session, jobs)

    assert found == Stats(
        at=found.at,
        cap=10_000,
        lanes=(),
        lanes_left_out=False,
        attempts={},
        expired_last_hour=0,
        leases_over=0,
        failed={},
        dead={},
        oldest_running=None,
        schedules=ScheduleStats(0, 0, 0, 0, 0, 0, capped=False),
        oldest_transaction=found.oldest_transaction,
        capped=frozenset(),
    )
    assert (found.due, found.later, found.unknown, found.running, found.oldest_ready) == (0, 0, 0, 0, None)
    assert (found.oldest_by_queue, found.oldest_by_type) == ({}, {})


def test_lanes_tell_what_is_due_later_and_running(session: Session) -> None:
    """Jobs are counted by queue and type, in order, an alias being known; finished ones are in no lane."""
    add(session, 3, run_at=MINUTE)
    add(session, 2, run_at=-HOUR)
    add(session, type="mail", queue="mail", run_at=HOUR)
    add(session, type="send", queue="mail", run_at=-MINUTE)
    add(session, 4, type="gone", run_at=2 * HOUR)
    add(session, 5, type="gone", run_at=-DAY)
    add(session, 2, type="post", status="running", started_at=MINUTE)
    add(session, 1, status="running", started_at=MINUTE)
    for status in ("done", "failed", "dead"):
        add(session, 7, type="mail", queue=status, status=status, finished_at=MINUTE, run_at=DAY)

    found = stats(session, jobs)

    assert counted(found) == [
        ("default", "gone", False, 4, 5, 0),
        ("default", "post", True, 0, 0, 2),
        ("default", "send", True, 3, 2, 1),
        ("mail", "mail", True, 1, 0, 0),
        ("mail", "send", True, 0, 1, 0),
    ]
    assert (found.due, found.later, found.unknown, found.running) == (4, 3, 9, 3)
    assert (found.capped, found.lanes_left_out) == (frozenset(), False)


def test_oldest_is_the_age_of_the_oldest_due_job(session: Session) -> None:
    """Per lane, queue and type, and over all, of unknown types too; what is due later has no age."""
    add(session, run_at=MINUTE)
    add(session, run_at=HOUR)
    add(session, run_at=-DAY)
    add(session, type="mail", run_at=3 * HOUR)
    add(session, queue="mail", run_at=2 * HOUR)
    add(session, type="gone", queue="idle", run_at=-HOUR)

    before = stats(session, jobs)
    add(session, type="gone", run_at=DAY)
    found = stats(session, jobs)

    assert is_about(before.oldest_ready, 3 * HOUR)
    assert is_about(found.oldest_ready, DAY)
    lanes = {(lane.queue, lane.type): lane.oldest for lane in found.lanes}
    assert lanes.pop(("idle", "gone")) is None
    wanted = {("default", "gone"): DAY, ("default", "mail"): 3 * HOUR, ("default", "send"): HOUR}
    wanted[("mail", "send")] = 2 * HOUR
    assert sorted(lanes) == sorted(wanted)
    assert all(is_about(lanes[lane], wanted[lane]) for lane in lanes)
    assert list(found.oldest_by_queue) == ["default", "mail"]
    assert is_about(found.oldest_by_queue["default"], DAY)
    assert is_about(found.oldest_by_queue["mail"], 2 * HOUR)
    assert sorted(found.oldest_by_type) == ["gone", "mail", "send"]
    assert is_about(found.oldest_by_type["send"], 2 * HOUR)


def test_time_is_the_registry_s_clock(session: Session) -> None:
    """With a movable clock, what was later becomes due as that moves, and `at` is what it says."""
    add(session, run_at=-HOUR, last_lease_expired_at=MINUTE)
    add(session, status="running", started_at=MINUTE)

    before = stats(session, jobs)
    clock.advance(session, 2 * HOUR)
    after = stats(session, jobs)

    assert [(each.due, each.later, each.expired_last_hour) for each in (before, after)] == [(0, 1, 1), (1, 0, 0)]
    assert timedelta(0) <= before.at - HALF_PAST < MINUTE
    assert timedelta(0) <= after.at - HALF_PAST - 2 * HOUR < MINUTE
    assert is_about(after.oldest_ready, HOUR)
    assert after.oldest_running is not None
    assert is_about(after.oldest_running.age, 2 * HOUR + MINUTE)


def test_attempts_are_those_of_unfinished_jobs(session: Session) -> None:
    """Ready and running jobs are counted by the attempts that they have begun; finished ones are not."""
    for attempts, count in ((0, 4), (1, 2), (7, 1)):
        add(session, count, attempts=attempts)
    add(session, 2, attempts=2, run_at=-DAY)
    add(session, 3, attempts=2, status="running")
    add(session, 9, attempts=5, status="dead", finished_at=HOUR)

    assert list(stats(session, jobs).attempts.items()) == [(0, 4), (1, 2), (2, 5), (7, 1)]


def test_attempts_are_sampled_in_every_lane(session: Session) -> None:
    """One lane with a great many jobs doesn't hide from the sample those of another that are tried again and again."""
    add(session, 50, queue="a")
    add(session, 1, queue="b", attempts=4)

    found = stats(session, jobs, cap=10)

    assert found.attempts == {0: 6, 4: 1}
    assert "attempts" in found.capped


def test_leases_expired_in_the_last_hour_are_counted(session: Session) -> None:
    """Jobs count, whatever became of them, if their lease ran out in the hour up to now."""
    for status in ("ready", "running", "dead"):
        add(session, status=status, last_lease_expired_at=59 * MINUTE)
        add(session, status=status, last_lease_expired_at=61 * MINUTE)
    add(session, last_lease_expired_at=-MINUTE)

    assert stats(session, jobs).expired_last_hour == 3


def test_leases_that_nobody_has_given_back_are_counted(session: Session) -> None:
    """A running job counts from the end of its lease on, also where the row names none, until a reaper comes."""
    add(session, status="running", locked_until=MINUTE)
    add(session, status="running", locked_until=-MINUTE)
    add(session, status="running")

    found = stats(session, jobs)

    assert (found.leases_over, found.running, found.expired_last_hour) == (2, 3, 0)


def test_failed_and_dead_are_counted_by_type(session: Session) -> None:
    """Each status by itself, of known types and others, also where somebody has left `finished_at` empty."""
    add(session, 2, status="failed", finished_at=HOUR)
    add(session, 3, status="dead", finished_at=HOUR)
    add(session, 1, status="dead", finished_at=HOUR, type="gone")
    add(session, 1, status="dead", type="gone")
    add(session, 4, status="done", finished_at=HOUR)

    found = stats(session, jobs)

    assert (found.failed, list(found.dead.items())) == ({"send": 2}, [("gone", 2), ("send", 3)])


def test_oldest_running_is_the_one_that_was_claimed_first(session: Session) -> None:
    """It is told with its lease; rows that were set running by hand come after all that were claimed."""
    add(session, status="running")
    by_hand = stats(session, jobs).oldest_running
    add(session, 3, status="running", locked_by="a", started_at=MINUTE)
    (oldest,) = add(
        session, type="gone", queue="q", status="running", locked_by="b", started_at=HOUR, locked_until=-MINUTE
    )
    found = stats(session, jobs).oldest_running

    assert by_hand is not None
    assert (by_hand.type, by_hand.started_at, by_hand.age, by_hand.locked_by) == ("send", None, None, None)
    stored = session.execute(select(Job.started_at, Job.locked_until).where(Job.id == oldest)).one()
    assert found is not None
    assert found == RunningStats(oldest, "gone", "q", stored.started_at, found.age, "b", stored.locked_until)
    assert is_about(found.age, HOUR)


def test_schedules_are_counted_by_what_becomes_of_them(session: Session) -> None:
    """A retired one is that and nothing else, and one in error is enabled; lost slots are summed over all."""
    now = clock.read(session)
    add_schedules(
        session,
        enabled=[True, True, True, False, False, True],
        retired_at=[None, None, None, None, now, now],
        last_error=["not a cron", None, None, "not a cron", None, "not a cron"],
        slots_missed=[1, 0, 5, 0, 0, 10],
        overlaps_skipped=[0, 2, 0, 3, 0, 0],
    )

    assert stats(session, jobs).schedules == ScheduleStats(
        enabled=3, paused=1, retired=2, in_error=1, slots_missed=16, overlaps_skipped=5, capped=False
    )
    assert stats(session, Jobs(Job, now=clock.now)).schedules is None


def test_counts_stop_at_the_cap_and_say_so(session: Session) -> None:
    """Each figure that has reached the cap is named, by itself, and none goes past it."""
    many, few = 5, 2
    reaching: dict[str, dict[str, Any]] = {
        "due": {"run_at": MINUTE},
        "later": {"run_at": -HOUR},
        "unknown": {"type": "gone"},
        "running": {"status": "running"},
        "failed": {"status": "failed", "finished_at": MINUTE},
        "dead": {"status": "dead", "finished_at": MINUTE},
        "expired_last_hour": {"status": "done", "last_lease_expired_at": MINUTE},
    }
    # What is made of the same rows is reached with it.
    alongside = {"running": ["attempts", "oldest_running", "leases_over"]} | {
        name: ["attempts"] for name in ("due", "later", "unknown")
    }
    for figure, columns in reaching.items():
        session.execute(delete(Job))
        add(session, few, **columns)
        below = stats(session, jobs, cap=many)
        add(session, many, **columns)
        found = stats(session, jobs, cap=many)

        count: Any = getattr(found, figure)
        assert count == ({"send": many} if isinstance(count, dict) else many)
        assert found.capped == {figure, *alongside.get(figure, ())}
        assert below.capped == frozenset()


def test_lanes_say_which_of_their_counts_have_reached_the_cap(session: Session) -> None:
    """Due and later jobs of each lane have a cap of their own."""
    add(session, 4, queue="a")
    add(session, 4, queue="b", run_at=-HOUR)
    add(session, 2, queue="c")

    lanes = stats(session, jobs, cap=3).lanes

    assert [(lane.due, lane.is_due_capped, lane.later, lane.is_later_capped) for lane in lanes] == [
        (3, True, 0, False),
        (0, False, 3, True),
        (2, False, 0, False),
    ]


def test_newest_dead_letters_are_those_within_the_cap(session: Session) -> None:
    """Of more dead letters than are looked at, the oldest are left out."""
    add(session, 3, status="dead", type="gone", finished_at=DAY)
    add(session, 2, status="dead", finished_at=HOUR)

    found = stats(session, jobs, cap=3)

    assert found.dead == {"gone": 1, "send": 2}
    assert found.capped == {"dead"}


def test_schedules_past_the_cap_are_not_looked_at(session: Session) -> None:
    """The figures of schedules mean "at least", then."""
    add_schedules(session, slots_missed=[1, 1, 1, 1])

    found = stats(session, jobs, cap=3)

    assert found.schedules == ScheduleStats(3, 0, 0, 0, 3, 0, capped=True)
    assert found.capped == {"schedules"}


def test_many_lanes_share_the_caps(session: Session) -> None:
    """Over twenty lanes, each is counted to its share of twenty caps, and says where it has stopped."""
    for number in range(30):
        add(session, 8 if number else 6, queue=f"queue {number:2}")

    lanes = stats(session, jobs, cap=10).lanes

    assert [(lane.due, lane.is_due_capped) for lane in lanes] == [(6, False), *[(7, True)] * 29]


def test_lanes_past_a_thousand_are_left_out(session: Session) -> None:
    """A thousand lanes are told of; one more, ready or running, is said to be missing, and then the sums, too."""
    rows = [{"type": "send", "queue": f"{number:04}", "run_at": HALF_PAST} for number in range(MOST_LANES)]
    session.execute(insert(Job), rows)

    all_of_them = stats(session, jobs)
    (extra,) = add(session, queue="zoo")
    with_ready = stats(session, jobs)
    session.execute(update(Job).where(Job.id == extra).values(status="running"))
    with_running = stats(session, jobs)

    assert (len(all_of_them.lanes), all_of_them.lanes_left_out, all_of_them.capped) == (MOST_LANES, False, frozenset())
    for found in (with_ready, with_running):
        assert (len(found.lanes), found.lanes_left_out) == (MOST_LANES, True)
        assert found.lanes[-1].queue == f"{MOST_LANES - 1:04}"
        assert found.capped == {"due", "later", "unknown", "running"}


@pytest.mark.parametrize("cap", [0, -1, True, 1.5, "1", 2**31, None])
def test_cap_that_is_none_is_refused(session: Session, cap: Any) -> None:
    """A cap is a positive number, and what else is handed in is told so before anything is asked."""
    with pytest.raises(InvalidOption, match=r"cap is (an int|from 1 to)"):
        stats(session, jobs, cap=cap)


def test_wrong_arguments_are_told(session: Session) -> None:
    """A session comes first and a registry second; the message says which is wrong."""
    wrong: Any = [session, jobs]

    with pytest.raises(InvalidOption, match=r"a Jobs comes second: stats\(session, jobs\); this is a Session"):
        stats(session, wrong[0])
    with pytest.raises(InvalidOption, match="a Session or an AsyncSession is wanted first, and not a Jobs"):
        stats(wrong[1], jobs)


def test_largest_cap_overflows_nothing(session: Session) -> None:
    """The largest cap there is, times its lanes, is still a number for the database."""
    for number in range(21):
        add(session, queue=f"queue {number}")

    assert stats(session, jobs, cap=2**31 - 1).due == 21


def test_stats_may_read_only(session: Session) -> None:
    """It works where nothing can be written, on a replica say, and takes no lock on a row."""
    add(session, status="running", started_at=MINUTE)
    session.commit()
    is_file = session.get_bind().dialect.name == "sqlite"
    session.execute(text("PRAGMA query_only = ON" if is_file else "SET TRANSACTION READ ONLY"))

    assert stats(session, jobs).running == 1

    session.execute(text("PRAGMA query_only = OFF" if is_file else "SELECT 1"))
