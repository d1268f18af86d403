"""An app for the command line: its workers are made on the database of DATABASE_URL, its clock can be moved."""

from __future__ import annotations

import os
from datetime import timedelta

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, sessionmaker

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.retention import Retention
from sqla_jobs.runtime.worker import Worker
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.testing import Clock
from tests.engines import build_async_engine, build_engine


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"
    tenant: Mapped[str | None]
    order_id: Mapped[int | None]


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"
    tenant: Mapped[str | None]


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


clock = Clock(Base.metadata)

jobs = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="office", now=clock.now)


@jobs.handler(queue="mail", max_attempts=3)
def send(to: str, smtp_password: str | None = None) -> str:
    return f"sent to {to}"


@jobs.handler
def report(days: int = 1) -> int:
    return days


@jobs.handler(max_attempts=1)
def crash() -> None:
    raise LookupError("no such [red]file[/red] \x1b[31m at ftp://ann:hunter2@files")


jobs.schedule("nightly", report.job(days=1), cron="0 2 * * *", timezone="Europe/Zurich")


def make_engine() -> Engine:
    return build_engine(os.environ["DATABASE_URL"])


def make_worker() -> Worker:
    return Worker(jobs, sessionmaker(make_engine()))


def make_tidy_worker() -> Worker:
    return Worker(jobs, sessionmaker(make_engine()), retention=Retention(done=timedelta(days=1)))


def make_bare_worker() -> Worker:
    return Worker(Jobs(Job, name="bare", now=clock.now), sessionmaker(make_engine()))


def make_async_worker() -> Worker:
    return Worker(jobs, async_sessions=async_sessionmaker(build_async_engine(os.environ["DATABASE_URL"])))


not_a_worker = jobs


def make_nothing() -> None: ...


def make_with(url: str) -> Worker:
    raise NotImplementedError(url)


def make_trouble() -> Worker:
    raise RuntimeError("postgresql://ann:hunter2@db/office is down")


async def make_later() -> Worker:
    raise NotImplementedError
