"""Schedules, declared in code and made at run time: each slot gets one job, however many workers there are."""

import logging
import sys
import threading
from tempfile import TemporaryDirectory

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, sessionmaker

from sqla_jobs import JobMixin, Jobs, ScheduleMixin, Worker, current_job, preview


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


jobs = Jobs(Job, schedule=Schedule, name="example")
beats = threading.Semaphore(0)


@jobs.handler
def beat(who: str) -> str:
    beats.release()
    return f"{who} at {current_job().slot:%S}"


jobs.schedule("every-second", beat.job(who="code"), cron="* * * * * *")
jobs.schedule("nightly", beat.job(who="night"), cron="30 2 * * *", timezone="Europe/Zurich")


def main(url: str) -> None:
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)
    with sessions.begin() as session:  # a row is a schedule, too
        session.add(Schedule(name="tenant-7", job_type="beat", payload={"who": "tenant 7"}, cron="* * * * * *"))

    with Worker(jobs, sessions), Worker(jobs, sessions):
        for _ in range(6):
            assert beats.acquire(timeout=30)

    with sessions() as session:
        for slot in preview(session, jobs, "nightly", count=3):
            print(f"nightly: {slot.local:%Y-%m-%d %H:%M %Z}")
        slots = session.execute(select(Job.schedule_id, Job.slot)).all()
        assert len(slots) == len(set(slots)), "a slot has two jobs"
        print(f"{len(slots)} slots, one job each")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    with TemporaryDirectory() as folder:
        main(f"sqlite:///{folder}/jobs.sqlite")
