"""The people of the app: they requeue, cancel and delete jobs, pause and edit schedules, now and then, all the time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from benchmarks.chaos.app import EACH_SECOND, TOGGLED, jobs
from benchmarks.chaos.tables import OPERATOR, Act, Job, Schedule, Violation
from sqla_jobs import (
    Answer,
    JobFilter,
    backfill,
    cancel_batch,
    cancel_jobs,
    delete_batch,
    delete_jobs,
    pause,
    requeue_batch,
    requeue_jobs,
    resume,
    trigger,
)

PACE = 0.6
"""Seconds between two acts, on average."""


class People:
    """One thread that does something by hand until it is closed. What it did is noted by the watch on the table.

    :ivar acts: how often it did what
    :ivar surprises: errors that are not the database's
    """

    def __init__(self, url: str, draw: random.Random, first_slot: datetime) -> None:
        self.acts: dict[str, int] = {}
        self.surprises: list[str] = []
        self._engine: Engine = create_engine(url, connect_args={"application_name": OPERATOR}, pool_size=1)
        self._draw = draw
        self._ending = threading.Event()
        self._first_slot = first_slot
        self._thread = threading.Thread(target=self._run, name="people", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Do nothing any more."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._engine.dispose()

    def _run(self) -> None:
        acts = {
            self._requeue: 4,
            self._cancel: 4,
            self._delete: 3,
            self._requeue_all: 1,
            self._cancel_all: 1,
            self._delete_all: 1,
            self._toggle: 3,
            self._backfill: 2,
            self._trigger: 1,
        }
        while not self._ending.wait(self._draw.expovariate(1 / PACE)):
            act = self._draw.choices(list(acts), list(acts.values()))[0]
            self._do(act)

    def _do(self, act: Callable[[Session], int | None]) -> None:
        name = act.__name__.removeprefix("_")
        try:
            with Session(self._engine) as session, session.begin():
                said = act(session)
                noted = session.scalar(select(func.count()).where(Act.transaction == func.txid_current()))
                if said is not None and noted != said:
                    session.add(Violation(what=f"{name} said that it has moved {said} jobs, and moved {noted}"))
            self.acts[name] = self.acts.get(name, 0) + 1
        except SQLAlchemyError:
            pass  # the server is away, or has ended the connection: the act has not happened
        except Exception as error:  # noqa: BLE001  # recorded: it counts as broken
            self.surprises.append(f"{name} raised {error!r}")

    def _some(self, session: Session, *statuses: str) -> list[int]:
        """Draw some jobs of no schedule: of a slot's job there is one for good."""
        rows = select(Job.id).where(Job.status.in_(statuses), Job.schedule_id.is_(None)).order_by(func.random())
        return list(session.scalars(rows.limit(self._draw.randint(1, 6))))

    def _requeue(self, session: Session) -> int:
        return _changed(requeue_jobs(session, jobs, self._some(session, "failed", "dead", "done")))

    def _cancel(self, session: Session) -> int:
        return _changed(cancel_jobs(session, jobs, self._some(session, "ready", "running", "done")))

    def _delete(self, session: Session) -> int:
        return _changed(delete_jobs(session, jobs, self._some(session, "done", "failed", "dead", "running")))

    def _requeue_all(self, session: Session) -> int:
        return requeue_batch(session, jobs, JobFilter(type="hopeless")).changed

    def _cancel_all(self, session: Session) -> int:
        return cancel_batch(session, jobs, JobFilter(type="snooze")).changed

    def _delete_all(self, session: Session) -> int:
        return delete_batch(session, jobs, JobFilter(type="call", status="done")).changed

    def _toggle(self, session: Session) -> None:
        match self._draw.randrange(3):
            case 0:
                pause(session, jobs, TOGGLED)
            case 1:
                resume(session, jobs, TOGGLED)
            case _:
                schedule = session.scalars(select(Schedule).where(Schedule.name == TOGGLED)).one()
                schedule.cron = self._draw.choice(["* * * * * *", "* * * * * */3", "* * * * * 10-50"])

    def _backfill(self, session: Session) -> None:
        now = session.scalars(select(func.statement_timestamp())).one()
        start = max(self._first_slot, now - timedelta(seconds=20))
        if start < now:
            backfill(session, jobs, EACH_SECOND.name, start=start, end=now)

    def _trigger(self, session: Session) -> None:
        trigger(session, jobs, EACH_SECOND.name)


def _changed(answers: list[Answer]) -> int:
    return sum(answer.is_changed for answer in answers)
