"""Real schedulers, killed and frozen while they fire the slots of one schedule."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import delete, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tests.crash.app import build_app_engine
from tests.crash.processes import Crew, Process
from tests.crash.schedulers import (
    BEGIN,
    ENDED,
    INSERT,
    MOVE,
    ArchivedJob,
    Job,
    Made,
    Schedule,
    clock,
    create_tables,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import TracebackType
    from typing import Self

    from tests.servers import PostgresServer

MINUTE: Final = timedelta(minutes=1)


class SchedulingProcess(Process):
    """A worker of the app in `schedulers`."""

    def ticked(self) -> None:
        """Wait until its first tick is over: it has planned, and fired what was due before it started."""
        self._crew.wait(lambda said: said.process is self and said.event == "looked", times=2)

    def set_trap(self) -> None:
        """Set its trap, once its first tick is over."""
        self.ticked()
        self.open_gate()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Wait, after the block, until it has written what it has decided, be it to rows that had changed."""
        since = len(self._crew.heard())
        yield
        self._crew.wait(lambda said: said.process is self and said.event == "moved", since=since)

    def stands_still(self) -> None:
        """Wait until its trap has frozen it."""
        self.expect("sprung")
        self.wait_until_frozen()


class SchedulingCrew(Crew):
    """Starts workers of the app in `schedulers`."""

    def start(self, url: str, **options: Any) -> SchedulingProcess:
        process = SchedulingProcess(self, {"url": url, "role": "schedule", **options})
        self._processes.append(process)
        return process


class Stage:
    """A database with one schedule of *size* slots: the first minutes of a year, and none before or after.

    However slow the machine is, there is none but those, for the clock is moved to the last hour of the year before.
    """

    def __init__(self, url: str, *, size: int) -> None:
        self.url = url
        self.crew = SchedulingCrew()
        self.engine = build_app_engine(url)
        create_tables(self.engine)
        with self.engine.begin() as connection:
            start = datetime(clock.read(connection).year + 1, 1, 1, tzinfo=UTC)
        self.slots = [start + MINUTE * number for number in range(size)]
        self.cron = f"0-{size - 1} 0 1 1 *"
        self._to(start - 30 * MINUTE)

    def start(self, **options: Any) -> SchedulingProcess:
        """Start a worker."""
        return self.crew.start(self.url, **{"cron": self.cron, **options})

    def begin(self, number: int) -> None:
        """Move the clock to just after a slot."""
        self._to(self.slots[number] + timedelta(seconds=1))

    def ran(self, number: int, *, times: int = 1) -> None:
        """Wait until the job of a slot has been run, by whomever."""
        self.crew.wait(lambda said: said.is_about("ran", slot=_text(self.slots[number])), times=times)

    def row(self) -> dict[str, Any]:
        """Give all that the schedule's row says."""
        with self.engine.begin() as connection:
            return dict(connection.execute(select(Schedule.__table__)).mappings().one())

    def jobs(self) -> list[Job]:
        """Give the jobs that are there, by slot."""
        with Session(self.engine) as session:
            return list(session.scalars(select(Job).order_by(Job.slot)))

    def edit(self, **columns: Any) -> None:
        """Edit the schedule by a statement of our own."""
        with self.engine.begin() as connection:
            connection.execute(Schedule.__table__.update().values(columns))  # type: ignore[attr-defined]

    def check_made_once(self, count: int) -> None:
        """One job was made for each of the first *count* slots, ever, and none besides; none was missed."""
        with Session(self.engine) as session:
            made = sorted(session.scalars(select(Made.key)))
        row = self.row()
        assert made == [f"schedule:{row['id']}:{_text(slot)}" for slot in self.slots[:count]]
        assert row["last_slot"] == self.slots[count - 1]
        assert (row["slots_missed"], row["overlaps_skipped"], row["last_error"]) == (0, 0, None)

    def forget_jobs(self) -> None:
        """Delete all jobs."""
        with self.engine.begin() as connection:
            connection.execute(delete(Job))

    def tidy(self, chance: random.Random) -> None:
        """Delete half of the done jobs, and move the others to the archive."""
        names = [column.name for column in Job.__table__.columns]
        with self.engine.begin() as connection:
            done = list(connection.scalars(select(Job.id).where(Job.status == "done").order_by(Job.id)))
            archived = chance.sample(done, len(done) // 2)
            moved = select(*Job.__table__.columns).where(Job.id.in_(archived))
            connection.execute(insert(ArchivedJob).from_select(names, moved))
            connection.execute(delete(Job).where(Job.id.in_(done)))

    def _to(self, at: datetime) -> None:
        with self.engine.begin() as connection:
            clock.advance(connection, at - clock.read(connection))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            stack.callback(self.engine.dispose)
            stack.enter_context(self.crew)


@pytest.fixture
def stage(postgresql_url: str) -> Iterator[Stage]:
    with Stage(postgresql_url, size=60) as stage:
        yield stage


@pytest.fixture
def any_stage(database_url: str) -> Iterator[Stage]:
    with Stage(database_url, size=60) as stage:
        yield stage


def _text(slot: datetime) -> str:
    return f"{slot:%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.slow
def test_f49_every_slot_has_one_job_when_schedulers_are_killed_and_frozen_at_random(stage: Stage) -> None:
    """Four of them make exactly 60 jobs of 60 slots, although done ones are deleted and archived as they go on."""
    chance = random.Random(49)
    frozen = stage.start(place=BEGIN["postgresql"])
    frozen.set_trap()
    stage.begin(0)
    frozen.stands_still()
    workers = [stage.start() for _ in range(3)]
    stage.ran(0)

    for number in range(1, 60):
        stage.begin(number)
        if number == 20:
            frozen.signal(signal.SIGCONT)
            workers.append(frozen)
        if number % 7 == 0:
            victim = chance.randrange(len(workers))
            workers[victim].kill()
            workers[victim] = stage.start()
        if chance.random() < 0.5:
            stage.ran(number)
            stage.tidy(chance)
    for number in range(60):
        stage.ran(number)

    assert [worker.stopped() for worker in workers] == [0] * 4
    stage.check_made_once(60)
    kept = [job.slot for job in stage.jobs()]
    assert len(kept) < 60
    assert len(set(kept)) == len(kept)


@pytest.mark.slow
def test_f51_scheduler_stalled_between_look_and_write_changes_nothing_when_it_goes_on(any_stage: Stage) -> None:
    """Another has decided its slot and the next, or a person has edited the row: its late write matches nothing."""
    stage = any_stage
    stalled = [stage.start(place=BEGIN[stage.engine.dialect.name], act="stalls") for _ in range(2)]
    for process in stalled:
        process.set_trap()
    stage.begin(0)
    for process in stalled:
        process.expect("sprung")
    other = stage.start()
    for number in range(2):
        stage.ran(number)
        stage.begin(number + 1)
    stage.ran(2)
    stage.forget_jobs()
    fired = stage.row()

    with stalled[0].writing():
        stalled[0].open_gate()
    codes = [stalled[0].stopped()]
    late = stage.row()
    with other.writing():
        stage.edit(cron="30-59 0 1 1 *")
    edited = stage.row()
    with stalled[1].writing():
        stalled[1].open_gate()

    assert [*codes, stalled[1].stopped(), other.stopped()] == [0, 0, 0]
    assert (late, stage.row()) == (fired, edited)
    assert (edited["cron"], edited["next_run_at"]) == ("30-59 0 1 1 *", stage.slots[30])
    stage.check_made_once(3)


@pytest.mark.slow
def test_f51_schedulers_go_on_when_one_is_frozen_with_its_rows_locked(stage: Stage) -> None:
    """The server ends its session, another fires the slots, and when it wakes it goes on and repeats none of them."""
    frozen = stage.start(place=MOVE, when="after")
    frozen.set_trap()
    stage.begin(0)
    frozen.stands_still()
    other = stage.start()

    stage.ran(0)
    stage.begin(1)
    stage.ran(1)
    assert other.stopped() == 0
    assert other.said("log", level="WARNING") == []
    frozen.signal(signal.SIGCONT)
    frozen.expect_log("the database does not serve the scheduler")
    stage.begin(2)
    stage.ran(2)

    assert frozen.stopped() == 0
    stage.check_made_once(3)


@pytest.mark.slow
def test_f49_losers_are_silent_when_schedulers_fire_the_same_slots(private_server: PostgresServer) -> None:
    """Of three schedulers, one killed at a random moment, each slot has one job, and no statement failed."""
    chance = random.Random(129)
    with Stage(private_server.url, size=10) as stage:
        workers = [stage.start() for _ in range(3)]
        for worker in workers:
            worker.ticked()
        moment = chance.randrange(10)

        for number in range(10):
            stage.begin(number)
            if number == moment:
                workers.pop(chance.randrange(3)).kill()
            stage.ran(number)

        assert [worker.stopped() for worker in workers] == [0, 0]
        stage.check_made_once(10)
        # Jobs that run when the clock jumps lose their leases, and say so: of those it is not.
        assert [said for worker in workers for said in worker.said("log", level="WARNING", job=None)] == []
        assert [line for line in _server_log(stage).splitlines() if "ERROR:" in line] == []
        with pytest.raises(IntegrityError), stage.engine.begin() as connection:
            connection.execute(insert(Made).values(id=1, key="not for the first time"))
        assert "duplicate key" in _server_log(stage)


def _server_log(stage: Stage) -> str:
    with stage.engine.begin() as connection:
        place = func.current_setting("data_directory") + "/../log"
        log: str = connection.scalars(select(func.pg_read_file(place))).one()
    return log


@pytest.mark.slow
def test_f16_schedulers_whose_clocks_are_wrong_keep_to_the_database_s_time(any_stage: Stage) -> None:
    """Of two, one an hour fast and one an hour slow, neither fires early or late, and slots are the database's."""
    stage = any_stage
    # A lease that outlasts the clock's jumps: a job that is run again has another run_at.
    workers = [stage.start(clock=seconds, lease=24 * 3600) for seconds in (3600, -3600)]
    for worker in workers:
        worker.ticked()

    for number in range(3):
        stage.begin(number)
        stage.ran(number)

    assert [worker.stopped() for worker in workers] == [0, 0]
    stage.check_made_once(3)
    for slot, job in zip(stage.slots, stage.jobs(), strict=False):
        assert (job.slot, job.run_at) == (slot, slot)
        assert job.run_at <= job.created_at < job.run_at + MINUTE
    assert stage.row()["next_run_at"] == stage.slots[3]


@pytest.mark.slow
def test_f52_slot_has_one_job_when_its_scheduler_died_in_the_middle(any_stage: Stage) -> None:
    """Before its row is moved on, between that and the insert, or before the commit: the next one makes the job."""
    stage = any_stage
    deaths = [(MOVE, "before"), (MOVE, "after"), (INSERT, "after")]

    for number, (place, when) in enumerate(deaths):
        dying = stage.start(place=place, when=when, act="ends")
        dying.set_trap()
        stage.begin(number)
        dying.expect("sprung")
        assert dying.ended() == ENDED
        assert len(stage.jobs()) == number
    last = stage.start()
    stage.ran(len(deaths) - 1)

    assert last.stopped() == 0
    stage.check_made_once(len(deaths))
