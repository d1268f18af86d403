"""Times that only plain SQL can write: each is its own row's, and breaks nothing for the others."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import find_jobs, stats
from sqla_jobs.operations import leases
from tests.operations import operating
from tests.operations.leasing import HOUR, MINUTE, SECOND, TABLE, add, reap, take
from tests.operations.operating import LOOKS, MOVES, STATUSES, Scene, found, jobs
from tests.operations.scheduling import engine_of
from tests.operations.shop import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


def ids(claimed: list[Any]) -> list[int]:
    return [lease.id for lease in claimed]


@pytest.mark.parametrize("own", ["infinity", "-infinity", "12000-01-01 00:00:00+00"])
@pytest.mark.parametrize("column", ["run_at", "slot", "created_at"])
def test_f59_time_that_no_driver_loads_breaks_no_claim(
    postgresql_sessions: sessionmaker[Session], own: str, column: str
) -> None:
    """One row with a time past Python's years, set by SQL, is claimed or waits, and the others are claimed."""
    with postgresql_sessions.begin() as session:
        others = [add(session, ago=HOUR), add(session, ago=MINUTE)]
        odd = add(session, ago=SECOND)
        done = add(session, status="done")
        for job_id in (odd, done):
            session.execute(text(f"UPDATE job SET {column} = '{own}' WHERE id = :id"), {"id": job_id})

    with postgresql_sessions.begin() as session:
        claimed = ids(take(session))

        assert [job_id for job_id in claimed if job_id != odd] == others
        is_due = column != "run_at" or own == "-infinity"
        assert (odd in claimed) == is_due


@pytest.mark.parametrize("own", ["-infinity", "", "0", "2024-01-01", "2024-01-01T00:00:00Z", "yesterday"])
@pytest.mark.parametrize("column", ["run_at", "slot"])
def test_f59_time_that_is_no_time_breaks_no_claim(
    sqlite_sessions: sessionmaker[Session], own: str, column: str
) -> None:
    """On SQLite a time is text, and anybody may write any text: the other jobs are claimed."""
    with sqlite_sessions.begin() as session:
        others = [add(session, ago=HOUR), add(session, ago=MINUTE)]
        odd = add(session, ago=SECOND)
        session.execute(text(f"UPDATE job SET {column} = :own WHERE id = :id"), {"id": odd, "own": own})

    with sqlite_sessions.begin() as session:
        claimed = ids(take(session))

        assert [job_id for job_id in claimed if job_id != odd] == others


@pytest.mark.parametrize(
    ("own", "expected"), [("infinity", (3600 - 5, 3601)), ("12000-01-01 00:00:00+00", (3600 - 5, 3601))]
)
def test_f59_wait_for_due_jobs_passes_over_times_that_never_come(
    postgresql_sessions: sessionmaker[Session], own: str, expected: tuple[float, float]
) -> None:
    """A row that is due at the end of time keeps no other waiting, and alone it is only very far away."""
    with postgresql_sessions.begin() as session:
        odd = add(session)
        session.execute(
            text("UPDATE job SET run_at = CAST(:own AS timestamptz) WHERE id = :id"), {"own": own, "id": odd}
        )
        alone = leases.seconds_until_due(session, TABLE, leases.Demand(("send",), None))
        add(session, ago=-HOUR)

        seconds = leases.seconds_until_due(session, TABLE, leases.Demand(("send",), None))

    assert seconds is not None
    assert alone is not None
    assert expected[0] < seconds < expected[1]
    assert alone > timedelta(days=365 * 9000).total_seconds()


@pytest.mark.parametrize("own", ["infinity", "-infinity", "12000-01-01 00:00:00+00"])
@pytest.mark.parametrize("column", ["run_at", "slot", "started_at", "created_at", "locked_until"])
def test_f59_time_that_no_driver_loads_breaks_no_reap(
    postgresql_sessions: sessionmaker[Session], own: str, column: str
) -> None:
    """One row with a time past Python's years, set by SQL, keeps no other from being reaped."""
    with postgresql_sessions.begin() as session:
        late = clock.read(session) - MINUTE
        gone = {"status": "running", "attempts": 1, "claims": 1, "locked_by": "gone", "locked_until": late}
        before, odd, after = (add(session, ago=HOUR, started_at=late - HOUR, **gone) for _ in range(3))
        session.execute(text(f"UPDATE job SET {column} = '{own}' WHERE id = :id"), {"id": odd})

    with postgresql_sessions.begin() as session:
        reaped = {settlement.lease.id for settlement in reap(session)}

    is_late = column != "locked_until" or own == "-infinity"
    assert reaped == ({before, odd, after} if is_late else {before, after})


ODD_TIMES = {
    "postgresql": ["infinity", "-infinity", "12000-01-01 00:00:00+00", "0044-03-15 00:00:00 BC"],
    "sqlite": ["infinity", "-infinity", "12000-01-01 00:00:00.000000", "", "yesterday", "5", "2024-01-01"],
}


def test_f59_times_that_no_driver_loads_break_no_look_no_move_and_no_figure(scene: Scene) -> None:
    """Rows of every status with such times are listed once each, shown, explained, counted, grouped and moved."""
    with scene.transaction() as session:
        odd = {
            odd_row(session, status, own): own for own in ODD_TIMES[scene.engine.dialect.name] for status in STATUSES
        }
        usual = [operating.add(session, status) for status in STATUSES]

    assert sorted(found(scene, limit=1)) == sorted([*odd, *usual])
    with scene.transaction() as session:
        for job in find_jobs(session, jobs).jobs:
            assert (job.run_at is None) == (odd.get(job.id, "2024-01-01") != "2024-01-01")
        for name, look in LOOKS.items():
            for job_id in [*odd] if name in {"show", "why"} else [0]:
                look(session, jobs, job_id)
        figures = stats(session, jobs)
        each = len(odd) // len(STATUSES) + 1
        assert (figures.running, figures.due + figures.later) == (each, each)
        assert (figures.failed, figures.dead) == ({"send": each}, {"send": each})
        for name in ("requeue a batch", "cancel a batch", "requeue", "cancel", "delete"):
            for job_id in [*odd] if name in {"requeue", "cancel", "delete"} else [0]:
                MOVES[name](session, jobs, job_id)
        assert sorted(session.execute(text("SELECT id FROM job")).scalars()) == usual


def odd_row(session: Session, status: str, own: str) -> int:
    """Insert a row of which every time that its status lets be odd is *own*."""
    job_id = operating.add(session, status)
    times = ["run_at", "created_at", "started_at", "last_lease_expired_at", "slot"]
    times += {"running": ["locked_until"], "ready": []}.get(status, ["finished_at"])
    update = f"UPDATE job SET {', '.join(f'{name} = :own' for name in times)} WHERE id = :id"
    session.execute(text(update), {"id": job_id, "own": own})
    return job_id
