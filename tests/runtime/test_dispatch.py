from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session

from sqla_jobs import current_job, enqueue, enqueue_many
from sqla_jobs.rules.pace import LARGEST_HOLD
from sqla_jobs.runtime.counters import Tally
from sqla_jobs.runtime.dispatch import Dispatcher
from sqla_jobs.runtime.holdings import Holding, Holdings
from tests.runtime.app import LONG, PATIENCE, App, Job, Note, wait_for


class Crowd:
    """Counts who is inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1


def test_type_when_the_handler_was_renamed(app: App) -> None:
    """A renamed handler runs the jobs of its former names, in one line with its own."""
    older = app.registry()
    ran: list[tuple[str, int]] = []

    @older.handler
    def send_mail(number: int) -> None: ...

    @app.jobs.handler(aliases=["send_mail", "mail"])
    def send_email(number: int) -> None:
        ran.append((current_job().type, number))

    app.add(send_mail, 1)
    app.add(send_email, 2)
    app.add(send_mail, 3)

    app.run(concurrency=1)

    assert ran == [("send_mail", 1), ("send_email", 2), ("send_mail", 3)]


def test_queues_when_a_worker_serves_some(app: App) -> None:
    """A worker takes jobs of its own queues only; `using(queue=…)` goes before the handler's."""

    @app.jobs.handler(queue="mail")
    def send() -> None: ...

    @app.jobs.handler
    def other() -> None: ...

    taken = [app.add(send), app.add(other.using(queue="urgent"))]
    left = [app.add(other), app.add(send.using(queue="slow"))]

    app.run(queues=["mail", "urgent"])

    assert [app.row(job).status for job in taken] == ["done", "done"]
    assert [(app.row(job).status, app.row(job).claims) for job in left] == [("ready", 0)] * 2

    app.run()

    assert app.statuses() == ["done"] * 4


def test_order_when_jobs_wait(app: App) -> None:
    """Jobs of a queue run oldest first, whatever their type."""
    ran: list[int] = []

    @app.jobs.handler
    def odd(number: int) -> None:
        ran.append(number)

    @app.jobs.handler
    def even(number: int) -> None:
        ran.append(number)

    for number in range(12):
        app.add(odd if number % 2 else even, number)

    app.run(concurrency=1)

    assert ran == list(range(12))


def test_concurrency_when_there_are_more_jobs(app: App) -> None:
    """As many handlers run at once as there are slots, and never one more."""
    crowd, meeting = Crowd(), threading.Barrier(3)

    @app.jobs.handler
    def meet() -> None:
        with crowd:
            meeting.wait(PATIENCE)

    with app.sessions.begin() as session:
        enqueue_many(session, [meet.job() for _ in range(30)])

    app.run(concurrency=3)

    assert app.statuses() == ["done"] * 30
    assert crowd.most == 3


def test_concurrency_when_sync_and_async_handlers_share_it(app: App) -> None:
    """Sync and async handlers take the same slots."""
    crowd = Crowd()

    @app.jobs.handler
    def plain() -> None:
        with crowd:
            pass

    @app.jobs.handler
    async def awaited() -> None:
        with crowd:
            pass

    @app.jobs.handler
    def writing(session: Session) -> None:
        with crowd:
            session.execute(select(Note.id))

    with app.sessions.begin() as session:
        enqueue_many(session, [handler.job() for _ in range(25) for handler in (plain, awaited, writing)])

    app.run(concurrency=2)

    assert app.statuses() == ["done"] * 75
    assert 1 <= crowd.most <= 2


def test_slot_when_a_slow_job_holds_another(app: App) -> None:
    """A slow job keeps its own slot and no other's: the jobs behind it go through the rest."""
    is_over = threading.Event()

    @app.jobs.handler
    def slow() -> None:
        wait_for(is_over)

    @app.jobs.handler
    def quick() -> None: ...

    app.add(slow)
    for _ in range(30):
        app.add(quick)

    with app.worker(concurrency=2):
        for _ in range(30):
            assert app.hear("done").type == "quick"
        is_over.set()
        assert app.hear("done").type == "slow"


def test_backlog_when_two_workers_share_it(app: App) -> None:
    """Of a backlog that two workers take from at once, each job runs once, and its writes stand once."""
    runs: Counter[int] = Counter()

    @app.jobs.handler
    def write(session: Session, number: int) -> None:
        runs[number] += 1
        session.add(Note(text=f"{number:03}"))

    @app.jobs.handler
    def plain(number: int) -> None:
        runs[number] += 1

    with app.sessions.begin() as session:
        enqueue_many(session, [(plain if number % 2 else write).job(number) for number in range(200)])

    with app.worker(concurrency=4), app.worker(concurrency=4):
        for _ in range(200):
            app.hear("done")

    assert runs == Counter(range(200))
    assert app.notes() == [f"{number:03}" for number in range(0, 200, 2)]
    with app.sessions() as session:
        assert {*session.execute(select(Job.status, Job.attempts, Job.claims))} == {("done", 1, 1)}


def test_jobs_at_their_last_attempt_when_handlers_are_fast(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast handlers are, few such jobs wait in a worker: a crash would be the end of each, begun or not."""

    def as_many_as_may_be(_: float) -> int:
        return LARGEST_HOLD

    monkeypatch.setattr("sqla_jobs.runtime.dispatch.jobs_ahead", as_many_as_may_be)

    @app.jobs.handler
    def fresh() -> None: ...

    @app.jobs.handler(max_attempts=1)
    def last() -> None: ...

    with app.sessions.begin() as session:
        enqueue_many(session, [fresh.job() for _ in range(600)])
        enqueue_many(session, [last.job() for _ in range(300)])
    holdings, started, given_back = Holdings(2), list[Holding](), list[Holding]()
    connector = app.worker().new_connector()
    dispatcher = Dispatcher(
        app.jobs,
        connector,
        holdings,
        Tally(),
        queues=None,
        locked_by="w",
        lease=LONG,
        poll_interval=LONG,
        start=started.append,
        give_back=given_back.append,
        is_listening=lambda: False,
    )

    while not given_back:  # with all fresh ones done, hundreds are claimed at once
        dispatcher.tick()
        while started and started[0].lease.type == "fresh":
            following = holdings.next_after(started.pop(0))
            started += [following] if following is not None else []
    connector.close()

    assert {holding.lease.type for holding in given_back} == {"last"}
    assert len(given_back) >= 296
    assert len(started) + holdings.waiting <= 4


def test_future_job_when_its_time_comes(app: App) -> None:
    """A job that is due later starts when it is, not before, and not at the next poll."""
    ran = threading.Event()

    @app.jobs.handler
    def later() -> None:
        ran.set()

    with app.worker(poll_interval=LONG):
        job = app.add(later.using(delay=timedelta(seconds=0.4)))
        wait_for(ran)

    row = app.row(job)
    assert row.started_at is not None
    assert row.run_at <= row.started_at
    assert app.heard() == ["done"]


def test_future_job_when_its_time_is_far(app: App) -> None:
    """A job that is due tomorrow waits, and stops nobody."""

    @app.jobs.handler
    def work() -> None: ...

    later, now = app.add(work.using(delay=timedelta(days=1))), app.add(work)

    app.run()

    assert [app.row(job).status for job in (later, now)] == ["ready", "done"]


@pytest.mark.parametrize("status", ["done", "failed", "dead", "running"])
def test_job_when_it_is_not_ready(app: App, status: str) -> None:
    """A worker runs ready jobs only; what runs elsewhere under a lease is left alone."""
    runs: list[None] = []

    @app.jobs.handler
    def work() -> None:
        runs.append(None)

    job = app.add(work)
    with app.sessions.begin() as session:
        leased = {"locked_by": "another", "locked_until": app.row(job).run_at + timedelta(days=1)}
        session.execute(update(Job).values(status=status, **(leased if status == "running" else {})))

    app.run()

    assert runs == []
    assert app.row(job).status == status


def test_claim_when_its_answer_is_lost(pg_app: App) -> None:
    """Jobs that were claimed without the worker's hearing of it are given back by itself, refunded, within a lease."""

    @pg_app.jobs.handler(max_attempts=1)
    def work() -> None: ...

    job = pg_app.add(work)
    worker = pg_app.worker(lease=timedelta(minutes=10))
    with pg_app.sessions.begin() as session:
        stolen = {"status": "running", "locked_by": worker.name, "attempts": 1, "claims": 1}
        session.execute(update(Job).values(locked_until=pg_app.row(job).run_at + timedelta(days=1), **stolen))

    with worker:
        names = [pg_app.hear("released").name, pg_app.hear("done").name]

    row = pg_app.row(job)
    assert names == ["released", "done"]
    assert (row.status, row.attempts, row.claims) == ("done", 1, 2)


def test_locked_rows_when_somebody_holds_them(pg_app: App) -> None:
    """Ready rows that another transaction has locked are passed over, and run when it has ended."""

    @pg_app.jobs.handler
    def work() -> None: ...

    held, free = pg_app.add(work), pg_app.add(work)

    with pg_app.worker(poll_interval=timedelta(milliseconds=20)):
        with pg_app.sessions.begin() as session:
            first = pg_app.hear("done").job_id
            third = enqueue(session, work).id
            session.execute(select(Job).where(Job.id == held).with_for_update(skip_locked=True)).all()
        second, last = pg_app.hear("done").job_id, pg_app.hear("done").job_id

    assert {first, second, last} == {held, free, third}


def test_look_now_when_a_look_is_under_way(pg_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for now is a look that begins now: one that has read already may not know of the newest commit."""
    has_read, is_asked = threading.Event(), threading.Event()

    @pg_app.jobs.handler
    def work() -> None: ...

    @event.listens_for(pg_app.engine, "after_cursor_execute")
    def held_up(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "min(due.run_at)" in statement and not has_read.is_set():
            has_read.set()
            wait_for(is_asked)

    def wake(self: Dispatcher, queue: str | None = None) -> None:
        real(self, queue)
        if has_read.is_set():
            is_asked.set()

    real = Dispatcher.wake
    monkeypatch.setattr(Dispatcher, "wake", wake)

    with pg_app.worker(poll_interval=LONG) as worker:
        wait_for(has_read)
        machinery = worker._machinery  # pyright: ignore[reportPrivateUsage]
        assert machinery is not None
        look = machinery.dispatcher.look_now(PATIENCE)

    assert look is not None
    assert look.number == 2
