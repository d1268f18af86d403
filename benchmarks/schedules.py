"""A scheduler's ticks over many schedules, by the clock of the wall.

    python -m benchmarks.schedules [--url postgresql+psycopg://…] [--schedules 10000] [--plans]

Prints the time of each tick: the one that plans all of them, one with none due, one with all due, the one after a day
without a scheduler; with `--plans` also what EXPLAIN says of the look. It starts a PostgreSQL of its own unless given a
URL.
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta

from sqlalchemy import Engine, create_engine, func, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Session

from benchmarks.plans import explain, explaining
from sqla_jobs import JobMixin, Jobs, ScheduleMixin
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.scheduler import SCHEDULES_PER_LOOK, Scheduler
from sqla_jobs.schema import schedules as statements
from sqla_jobs.schema.dialects import capabilities
from sqla_jobs.testing import Clock
from tests.servers import PostgresServer


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "schedules_job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedules_schedule"


CLOCK = Clock(Base.metadata)

JOBS = Jobs(Job, schedule=Schedule, now=CLOCK.now)


@JOBS.handler
def work() -> None: ...


def measure(engine: Engine, scheduler: Scheduler, title: str, *, advance: timedelta = timedelta(0)) -> None:
    """Tick until nothing is due, and print what it took."""
    with Session(engine) as session, session.begin():
        CLOCK.advance(session, advance)
        before = session.scalar(select(func.count()).select_from(Job)) or 0
    times: list[float] = []
    wait = 0.0
    while wait == 0.0:
        began = time.perf_counter()
        wait = scheduler.tick()
        times.append(time.perf_counter() - began)
    with Session(engine) as session:
        made = (session.scalar(select(func.count()).select_from(Job)) or 0) - before
        missed = session.scalar(select(func.sum(Schedule.slots_missed)))
    ticks = " + ".join(f"{1000 * each:.1f}" for each in times)
    print(f"{title:28} {ticks} ms, {made} jobs, {missed} slots missed so far")


def plan(engine: Engine) -> str:
    parameters = {"types": ["work"], "registry": "default", "limit": SCHEDULES_PER_LOOK}
    with engine.connect() as connection:
        return explain(
            connection, statements.look(JOBS.schedules, JOBS.table, capabilities(engine.dialect)), parameters
        )


def run(engine: Engine, schedules: int, *, plans: bool) -> None:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    rows = [{"name": f"schedule {n}", "job_type": "work", "cron": "* * * * *"} for n in range(schedules)]
    with Session(engine) as session, session.begin():
        session.execute(insert(Schedule), rows)
    scheduler = Scheduler(JOBS, Connector.of_app(engine, Opening(engine)), bounded=capabilities(engine.dialect).bounded)
    print(f"{schedules} minutely schedules, {SCHEDULES_PER_LOOK} in a look")
    measure(engine, scheduler, "all are planned")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE schedules_schedule"))
    measure(engine, scheduler, "none is due")
    if plans:
        print(plan(engine))
    measure(engine, scheduler, "all are due", advance=timedelta(minutes=1))
    measure(engine, scheduler, "none is due")
    measure(engine, scheduler, "all, after a day", advance=timedelta(days=1))
    if plans:
        print(plan(engine))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--plans", action="store_true")
    arguments = parser.parse_args()
    if arguments.url:
        run(explaining(create_engine(arguments.url)), arguments.schedules, plans=arguments.plans)
        return
    with PostgresServer() as server:
        run(explaining(create_engine(server.url)), arguments.schedules, plans=arguments.plans)


if __name__ == "__main__":
    main()
