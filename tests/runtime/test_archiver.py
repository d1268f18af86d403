from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Connection, Engine, event, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs import InvalidOption, Worker
from sqla_jobs.rules.retention import LARGEST_BATCH, Retention
from sqla_jobs.runtime import archiver as module
from sqla_jobs.runtime.archiver import Archiver
from sqla_jobs.runtime.connections import Connector, Opening
from tests.engines import build_async_engine
from tests.operations import archives
from tests.operations.archives import (
    DAY,
    HOUR,
    ArchivedJob,
    Job,
    Note,
    Part,
    clock,
    columns,
    empty,
    ids,
    jobs,
    made,
    made_once,
    no_archive,
)
from tests.runtime.app import ended, sync_url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from tests.runtime.app import Ear

WARNING: Final = logging.WARNING

SOME: Final = Retention(done=HOUR, failed=HOUR, dead=HOUR)

MakeArchiver = Callable[..., Archiver]


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def shared(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with made_once(request.param, request) as engine:
        yield engine


@pytest.fixture
def app(shared: Engine) -> Engine:
    """Give an engine on empty tables, on each kind of database in turn."""
    empty(shared)
    return shared


@pytest.fixture
def pg_app(postgresql_url: str) -> Iterator[Engine]:
    """Give an engine on a PostgreSQL database of the test's own, for triggers and locks."""
    with made(postgresql_url) as engine:
        yield engine


@pytest.fixture
def make_archiver() -> Iterator[Callable[..., Archiver]]:
    """Give a function that makes an archiver to tick by hand."""
    with ExitStack() as ends:

        def make(engine: Engine, retention: Retention = SOME) -> Archiver:
            connector = Connector.of_app(engine, Opening(engine))
            ends.callback(connector.close)
            return Archiver(jobs, connector, retention)

        yield make


def add(engine: Engine, **options: Any) -> list[int]:
    """Insert jobs that have ended, commit, and give their ids."""
    with Session(engine) as session, session.begin():
        return archives.add(session, **options)


def live(engine: Engine) -> list[int]:
    """Give the ids of all jobs."""
    with Session(engine) as session:
        return ids(session, Job)


def archived(engine: Engine) -> list[int]:
    """Give the ids of all jobs in the archive."""
    with Session(engine) as session:
        return ids(session, ArchivedJob)


def execute(engine: Engine, *statements: Any, **parameters: Any) -> None:
    """Execute, each text in turn, and commit."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement) if isinstance(statement, str) else statement, parameters)


def advance(engine: Engine, by: timedelta) -> None:
    """Move the clock."""
    with engine.begin() as connection:
        clock.advance(connection, by)


def passed(archiver: Archiver) -> tuple[int, int]:
    """Do one pass; give how many rows were moved, and how many stay."""
    batches = list(archiver.one_pass())
    return sum(batch.changed for batch in batches), sum(batch.skipped for batch in batches)


def test_worker_archives_what_is_old(app: Engine, ear: Ear) -> None:
    """Its archiver starts with it, moves each status by its own age, and says so in a line."""
    moved = [*add(app), *add(app, status="dead", ago=2 * DAY)]
    kept = [*add(app, status="failed"), *add(app, status="dead", ago=DAY - HOUR)]

    with Worker(jobs, sessionmaker(app), listen=False, retention=Retention(done=HOUR, dead=DAY)):
        ear.wait_for("1 dead jobs are archived")

    assert archived(app) == moved
    assert live(app) == kept
    assert ear.lines("1 done jobs are archived")
    assert ear.lines(level=WARNING) == []


def test_worker_with_async_sessions_archives_as_well(async_url: str, ear: Ear) -> None:
    """Through each async driver, with places, times and ids as they give and take them."""
    with made(sync_url_of(async_url)) as engine:
        moved = add(engine, count=2 * LARGEST_BATCH + 1)
        async_sessions = async_sessionmaker(build_async_engine(async_url))

        with Worker(jobs, async_sessions=async_sessions, listen=False, retention=SOME):
            ear.wait_for(f"{len(moved):,} done jobs are archived")

        assert archived(engine) == moved


def test_archive_that_is_to_be_emptied_must_be_there(app: Engine) -> None:
    """A worker with `archived` and no archive is refused at once, and not at its first pass; so is what is none."""
    with pytest.raises(InvalidOption, match=r"has no archive: Jobs\(…, archive=ArchivedJob\)"):
        Worker(no_archive, sessionmaker(app), retention=Retention(archived=DAY))
    with pytest.raises(InvalidOption, match="retention is a Retention, and is a timedelta"):
        Worker(jobs, sessionmaker(app), retention=DAY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def same_limit(limit: int, *, seconds: float) -> int:
    """Give the size of the next batch, however long this one took."""
    assert seconds >= 0
    return limit


def test_tick_is_one_batch(app: Engine, make_archiver: MakeArchiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it waits about as long as that took, and after the last one for half a minute or more."""
    monkeypatch.setattr(module, "next_limit", same_limit)
    add(app, count=2 * LARGEST_BATCH + 7)
    add(app, count=3, status="failed")
    archiver = make_archiver(app, Retention(done=HOUR, failed=HOUR, archived=HOUR))

    left: list[int] = []
    waits: list[float] = []
    while not waits or waits[-1] < 29:
        waits.append(archiver.tick())
        left.append(len(live(app)))

    assert left == [510, 10, 3, 0, 0]
    assert 30 <= waits[-1] <= 60
    advance(app, HOUR)
    assert passed(archiver) == (2 * LARGEST_BATCH + 10, 0)
    assert archived(app) == []


def test_jobs_that_do_not_say_when_they_ended_count_from_now(app: Engine, make_archiver: MakeArchiver) -> None:
    """A person that ends jobs by plain SQL leaves no time: they are dated, kept for their age, and then moved."""
    odd = [*add(app, status="dead", ago=None, count=3), *add(app, ago=None)]
    untouched = add(app, status="ready", ago=None) + add(app, status="running", ago=None)
    archiver = make_archiver(app)

    assert passed(archiver) == (0, 0)
    with Session(app) as session:
        assert [job.id for job in session.scalars(select(Job)) if job.finished_at is None] == untouched
    assert passed(archiver) == (0, 0)
    advance(app, HOUR)
    assert passed(archiver) == (4, 0)

    assert archived(app) == odd
    assert live(app) == untouched


def _refer(app: Engine, bad: list[int]) -> None:
    execute(app, insert(Note).values([{"job_id": job_id} for job_id in bad]))


def _refer_until_the_commit(app: Engine, bad: list[int]) -> None:
    execute(app, insert(Note).values([{"late_job_id": job_id} for job_id in bad]))


def _make_unfit_for_the_archive(app: Engine, bad: list[int]) -> None:
    execute(app, "UPDATE job SET page = -1 WHERE id <= :last", last=bad[-1])


def _put_into_the_archive(app: Engine, bad: list[int]) -> None:
    with Session(app) as session:
        rows = [columns(session, Job, job_id) for job_id in bad]
    execute(app, insert(ArchivedJob).values([row | {"archived_at": row["run_at"]} for row in rows]))


@pytest.mark.parametrize("spoil", [_refer, _refer_until_the_commit, _make_unfit_for_the_archive, _put_into_the_archive])
def test_bad_rows_stay_and_hold_up_no_other(
    app: Engine, make_archiver: MakeArchiver, ear: Ear, spoil: Callable[[Engine, list[int]], None]
) -> None:
    """Whatever a row can't be moved for, all behind it are moved in the same pass, and it is told of once."""
    everything = add(app, count=30)
    bad, good = everything[:3], everything[3:]
    spoil(app, bad)
    archiver = make_archiver(app)

    assert passed(archiver) == (27, 3)
    assert live(app) == bad
    for _ in range(2):
        good += add(app, ago=HOUR)
        assert passed(archiver)[0] == 1

    assert live(app) == bad
    assert set(archived(app)) - set(bad) == set(good)
    assert [line.split()[1] for line in ear.lines("can't be archived, and stays", level=WARNING)] == list(map(str, bad))


def test_full_batch_of_bad_rows_hides_none_behind_it(
    app: Engine, make_archiver: MakeArchiver, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried one by one, ten have a line of their own and the others one, and the pass goes on behind them."""
    monkeypatch.setattr(module, "LARGEST_BATCH", 50)
    everything = add(app, count=95)
    bad = everything[:60]
    _refer(app, bad)

    assert passed(make_archiver(app)) == (35, len(bad))
    assert live(app) == bad
    assert len(ear.lines("can't be archived, and stays: IntegrityError", level=WARNING)) == 10
    assert len(ear.lines(f"{len(bad) - 10} more finished jobs can't be archived", level=WARNING)) == 1


def test_bad_rows_are_tried_again_only_now_and_then(
    app: Engine, make_archiver: MakeArchiver, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes begin behind them, so that a thousand of them cost nothing; once in a while one takes in all rows."""
    (bad, *_) = add(app, count=3)
    _refer(app, [bad])
    archiver = make_archiver(app)

    first, second = passed(archiver), passed(archiver)
    monkeypatch.setattr(archiver, "_full_pass_at", 0.0)  # an hour later
    third = passed(archiver)
    monkeypatch.setattr(archiver, "_full_pass_at", 0.0)
    execute(app, "DELETE FROM note")
    fourth = passed(archiver)

    assert [first, second, third, fourth] == [(2, 1), (0, 0), (0, 1), (1, 0)]
    assert live(app) == []
    assert len(ear.lines("can't be archived", level=WARNING)) == 1


KEEPERS: Final = {
    "postgresql": (
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {act}; END $$",
        "CREATE TRIGGER keep BEFORE DELETE ON job FOR EACH ROW WHEN (OLD.queue = 'kept') EXECUTE FUNCTION keep()",
        "DROP FUNCTION keep CASCADE",
    ),
    "sqlite": (
        "CREATE TRIGGER keep BEFORE DELETE ON job WHEN OLD.queue = 'kept' BEGIN {act}; END",
        "DROP TRIGGER keep",
    ),
}

ACTS: Final = {
    "quietly": {"postgresql": "RETURN NULL", "sqlite": "SELECT RAISE(IGNORE)"},
    "by an error": {"postgresql": "RAISE EXCEPTION 'no'", "sqlite": "SELECT RAISE(ABORT, 'no')"},
}


@pytest.mark.parametrize("how", ACTS)
def test_row_that_a_trigger_keeps_is_in_one_table_only(
    app: Engine, make_archiver: MakeArchiver, ear: Ear, how: str
) -> None:
    """The app's own rule holds: such a job stays where it is, with no copy in the archive, and the others go."""
    *creates, drop = KEEPERS[app.dialect.name]
    kept, moved = add(app, queue="kept"), add(app, count=4)
    execute(app, *(create.replace("{act}", ACTS[how][app.dialect.name]) for create in creates))

    result = passed(make_archiver(app))
    execute(app, drop)

    assert result == (4, 1)
    assert (live(app), archived(app)) == (kept, moved)
    assert len(ear.lines("can't be archived, and stays", level=WARNING)) == 1


def test_rows_that_others_are_at_are_left_for_later(pg_app: Engine, make_archiver: MakeArchiver, ear: Ear) -> None:
    """Neither a locked job nor one whose own rows are locked holds up a pass, and nobody is warned of it."""
    archiver = make_archiver(pg_app)
    everything = add(pg_app, count=4)
    execute(pg_app, insert(Part).values(job_id=everything[0]))

    with pg_app.connect() as other:
        other.execute(text("SELECT id FROM part FOR SHARE"))
        other.execute(text("SELECT id FROM job WHERE id = :id FOR SHARE"), {"id": everything[2]})
        first = passed(archiver)
    second = passed(archiver)

    assert (first, second) == ((2, 1), (2, 0))
    assert archived(pg_app) == everything
    assert ear.lines(level=WARNING) == []


DAWDLE: Final = (
    """CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
           IF (SELECT sum(attempts) FROM gone) > 20 THEN
               RAISE 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
           END IF;
           RETURN NULL;
       END $$""",
    """CREATE TRIGGER dawdle AFTER DELETE ON job REFERENCING OLD TABLE AS gone
       FOR EACH STATEMENT EXECUTE FUNCTION dawdle()""",
)
"""Each attempt of a deleted row takes a hundredth of a second, and a statement a fifth at most: or so it seems."""


def test_batches_shrink_under_a_statement_timeout(pg_app: Engine, make_archiver: MakeArchiver, ear: Ear) -> None:
    """Rows that are slow to delete are moved in fewer at a time; one that is too slow for ever is passed over."""
    everything = add(pg_app, count=40, attempts=1)
    execute(pg_app, *DAWDLE)
    execute(pg_app, "UPDATE job SET attempts = 100 WHERE id = :id", id=everything[10])

    assert passed(make_archiver(pg_app)) == (39, 1)
    assert live(pg_app) == [everything[10]]

    assert len(ear.lines("statement timeout", level=WARNING)) == 1


def test_archive_that_is_missing_is_told_of_once(app: Engine, make_archiver: MakeArchiver, ear: Ear) -> None:
    """What is wrong with all rows alike is no outage, and no row's fault: it is tried again at every pass."""
    archiver = make_archiver(app)
    add(app, count=3)
    execute(app, "ALTER TABLE archived_job RENAME TO elsewhere")

    waits = [archiver.tick() for _ in range(3)]
    execute(app, "ALTER TABLE elsewhere RENAME TO archived_job")
    archiver.tick()

    assert len(archived(app)) == 3
    assert min(waits) >= 30
    assert len(ear.lines("finished jobs can't be archived", level=WARNING)) == 1
    assert len(ear.lines(level=WARNING)) == 1


@pytest.mark.parametrize("place", ["INSERT INTO archived_job", "DELETE FROM job"])
def test_pass_that_the_database_ends_is_begun_again(app: Engine, make_archiver: MakeArchiver, place: str) -> None:
    """Half a batch is none: what an outage has cut off is where it was, and the next pass moves it."""
    everything = add(app, count=LARGEST_BATCH + 10)
    fails = iter([False, True])

    def fail(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if place in statement and next(fails, False):
            error = Exception("server closed the connection unexpectedly")
            raise OperationalError(statement, None, error, connection_invalidated=True)

    # Connections of ours on SQLite are without the events of the app's engine.
    target: Any = Engine if app.dialect.name == "sqlite" else app
    event.listen(target, "before_cursor_execute", fail)
    archiver = make_archiver(app)
    archiver.tick()
    with pytest.raises(OperationalError):
        archiver.tick()
    event.remove(target, "before_cursor_execute", fail)

    assert (len(live(app)), len(archived(app))) == (10, LARGEST_BATCH)
    archiver.tick()
    assert archived(app) == everything


def test_archivers_at_the_same_time_move_each_row_once(app: Engine, make_archiver: MakeArchiver) -> None:
    """Each passes over what another has in hand, or waits its turn where there is one writer."""
    everything = add(app, count=4 * LARGEST_BATCH)
    archivers = [make_archiver(app) for _ in range(3)]

    with ExitStack() as threads:
        for archiver in archivers:
            threads.enter_context(ended(threading.Thread(target=passed, args=(archiver,), daemon=True)))

    assert archived(app) == everything
    assert live(app) == []
