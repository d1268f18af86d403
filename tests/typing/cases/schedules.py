"""A wrong part of a schedule, or a forgotten await, is an error before the program runs."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, scoped_session

from sqla_jobs import ArchivedJobMixin, JobMixin, Jobs, ScheduleMixin, Slot
from sqla_jobs import backfill, pause, preview, preview_backfill, resume, trigger
from sqla_jobs.operations.scheduling import Fired
from sqla_jobs.testing import tick


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"
    tenant_id: Mapped[int | None]


class OtherJob(JobMixin, Base):
    __tablename__ = "other_job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


jobs = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="shop")
other_jobs = Jobs(OtherJob)


@jobs.handler
def bare() -> None: ...


@jobs.handler(queue="reports")
def with_session(session: Session) -> int:
    return 1


@jobs.handler
async def with_async_session(session: AsyncSession) -> None: ...


@jobs.handler
def report(session: Session, title: str, days: int = 1) -> None: ...


@jobs.handler
def optional(days: int = 1) -> None: ...


@other_jobs.handler
def other() -> None: ...


Jobs(Job, schedule=Job)  # error: [arg-type] [reportArgumentType]
Jobs(Job, schedule=Schedule())  # error: [arg-type] [reportArgumentType]
Jobs(Job, archive=Schedule)  # error: [arg-type] [reportArgumentType]


def declared() -> None:
    jobs.schedule("a", bare, cron="@daily")
    jobs.schedule("b", with_session, cron="@daily", timezone="Europe/Zurich")
    jobs.schedule("c", with_async_session, cron="@daily", offset=timedelta(minutes=5))
    jobs.schedule("d", report.job("sales"), cron="@daily", catch_up="all", catch_up_limit=5)
    jobs.schedule("e", report.job(title="sales", days=2), cron="@daily", catch_up="skip", overlap="skip")
    jobs.schedule("f", bare.using(queue="slow"), cron="@daily", offset=None)
    jobs.schedule("g", optional.job(), cron="@daily")
    jobs.schedule("h", report.using(queue="slow").job("sales"), cron="@daily", catch_up="latest", overlap="allow")


def wrongly_declared() -> None:
    jobs.schedule("a", report, cron="@daily")  # error: [arg-type] [reportArgumentType]
    jobs.schedule("b", report.using(queue="slow"), cron="@daily")  # error: [arg-type] [reportArgumentType]
    jobs.schedule("c", report.job(), cron="@daily")  # error: [call-arg] [reportCallIssue, reportUnknownArgumentType]
    jobs.schedule("d", report.job(titel="sales"), cron="@daily")  # error: [call-arg] [reportCallIssue, reportUnknownArgumentType]
    jobs.schedule("e", report.job("sales", days="2"), cron="@daily")  # error: [arg-type] [reportArgumentType]
    jobs.schedule("f", bare)  # error: [call-arg] [reportCallIssue]
    jobs.schedule("g", bare, "@daily")  # error: [call-arg] [reportCallIssue]
    jobs.schedule("h", bare, cron=None)  # error: [arg-type] [reportArgumentType]
    jobs.schedule("i", bare, cron="@daily", timezone=timedelta(0))  # error: [arg-type] [reportArgumentType]
    jobs.schedule("j", bare, cron="@daily", offset=30)  # error: [arg-type] [reportArgumentType]
    jobs.schedule("k", bare, cron="@daily", catch_up="last")  # error: [arg-type] [reportArgumentType]
    jobs.schedule("l", bare, cron="@daily", catch_up_limit="5")  # error: [arg-type] [reportArgumentType]
    jobs.schedule("m", bare, cron="@daily", overlap=True)  # error: [arg-type] [reportArgumentType]
    jobs.schedule("n", bare, cron="@daily", tz="UTC")  # error: [call-arg] [reportCallIssue]
    jobs.schedule("o", other, cron="@daily")  # error: [arg-type] [reportArgumentType]
    jobs.schedule("p", other.job(), cron="@daily")  # error: [arg-type] [reportArgumentType]
    jobs.schedule("q", len, cron="@daily")  # error: [arg-type] [reportArgumentType]
    jobs.schedule("r", None, cron="@daily")  # error: [arg-type] [reportArgumentType]
    jobs.schedule(bare, "s", cron="@daily")  # error: [arg-type] [reportArgumentType]


def right(session: Session, scoped: scoped_session[Session], start: datetime, end: datetime) -> None:
    job: Job = trigger(session, jobs, "a")
    tenant: int | None = trigger(scoped, jobs, "a").tenant_id
    pause(session, jobs, "a")
    resume(scoped, jobs, "a")
    slots: list[Slot] = preview(session, jobs, "a", count=3)
    more: list[Slot] = preview_backfill(scoped, jobs, "a", start, end) + backfill(session, jobs, "a", start=start, end=end)
    local: list[datetime] = [slot.local for slot in slots]
    fired: list[Fired] = tick(session, jobs) + tick(scoped, jobs)
    print(job, tenant, more, local, fired)


def wrong(session: Session, start: datetime, end: datetime) -> None:
    job: OtherJob = trigger(session, jobs, "a")  # error: [assignment] [reportAssignmentType]
    trigger(session, jobs)  # error: [call-overload] [reportCallIssue]
    trigger(session, jobs, bare)  # error: [call-overload] [reportArgumentType, reportCallIssue]
    trigger(jobs, session, "a")  # error: [call-overload] [reportArgumentType, reportCallIssue]
    trigger(session, jobs, name="a")  # error: [call-overload] [reportCallIssue]
    preview(session, jobs, "a", 3)  # error: [call-overload] [reportCallIssue]
    preview(session, jobs, "a", count="3")  # error: [call-overload] [reportArgumentType, reportCallIssue]
    backfill(session, jobs, "a", start)  # error: [call-overload] [reportCallIssue]
    backfill(session, jobs, "a", start, end.isoformat())  # error: [call-overload] [reportArgumentType, reportCallIssue]
    job_id: int = preview(session, jobs, "a")[0].job_id  # error: [assignment] [reportAssignmentType]
    preview(session, jobs, "a")[0].at = start  # error: [misc] [reportAttributeAccessIssue]
    print(job, job_id)


async def awaited(session: AsyncSession, scoped: async_scoped_session[AsyncSession], at: datetime) -> None:
    job: Job = await trigger(session, jobs, "a")
    tenant: int | None = (await trigger(scoped, jobs, "a")).tenant_id
    await pause(session, jobs, "a")
    await resume(scoped, jobs, "a")
    slots: list[Slot] = await preview(session, jobs, "a", count=3)
    more: list[Slot] = await preview_backfill(session, jobs, "a", at, at) + await backfill(scoped, jobs, "a", at, at)
    coroutine: Coroutine[Any, Any, Job] = trigger(session, jobs, "a")
    fired: list[Fired] = await tick(session, jobs)
    print(job, tenant, slots, more, await coroutine, fired)


async def forgotten(session: AsyncSession, at: datetime) -> None:
    print(trigger(session, jobs, "a").tenant_id)  # error: [attr-defined] [reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    job: Job = trigger(session, jobs, "a")  # error: [assignment] [reportAssignmentType]
    trigger(session, jobs, "a")  # error: [unused-coroutine] [reportUnusedCoroutine]
    pause(session, jobs, "a")  # error: [unused-coroutine] [reportUnusedCoroutine]
    resume(session, jobs, "a")  # error: [unused-coroutine] [reportUnusedCoroutine]
    print(len(preview(session, jobs, "a")))  # error: [arg-type] [reportArgumentType]
    slots: list[Slot] = preview_backfill(session, jobs, "a", at, at)  # error: [assignment] [reportAssignmentType]
    backfill(session, jobs, "a", at, at)  # error: [unused-coroutine] [reportUnusedCoroutine]
    tick(session, jobs)  # error: [unused-coroutine] [reportUnusedCoroutine]
    print(job, slots)
