"""A wrong argument of `enqueue`, by name, by type or by number, is an error before the program runs."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, scoped_session

from sqla_jobs import Enqueued, Handler, JobEvent, JobMixin, Jobs, NewJob, enqueue, enqueue_many


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"
    tenant_id: Mapped[int | None]


jobs = Jobs(Job)


@jobs.handler
def plain(url: str, times: int = 1) -> int:
    return len(url) * times


@jobs.handler(queue="mail", timeout=timedelta(minutes=2))
def with_session(session: Session, order_id: int) -> None: ...


@jobs.handler
async def with_async_session(session: AsyncSession, order_id: int) -> None: ...


@jobs.handler(max_attempts="5")  # error: [call-overload, untyped-decorator] [reportArgumentType]
def wrong_option() -> None: ...


def right(session: Session, scoped: scoped_session[Session], handler: Handler[Job, ..., [int], None]) -> None:
    job: Job = enqueue(session, plain, "a", times=2)
    tenant: int | None = job.tenant_id
    again: Job = enqueue(scoped, with_session.using(key="k", delay=timedelta(minutes=1)), order_id=7)
    passed: Job = enqueue(session, handler, 7)
    new: NewJob[Job] = with_session.job(7)
    many: list[Enqueued] = enqueue_many(session, [new, plain.job("a")])
    called: int = plain("a", times=2)
    with_session(session, 7)
    print(tenant, again, passed, many, called)


def wrong(session: Session) -> None:
    enqueue(session, plain, link="a")  # error: [call-overload] [reportCallIssue]
    enqueue(session, plain, 7)  # error: [call-overload] [reportArgumentType, reportCallIssue]
    enqueue(session, plain)  # error: [call-overload] [reportCallIssue]
    enqueue(session, with_session, session, order_id=7)  # error: [misc, arg-type] [reportCallIssue]
    enqueue(session, with_session.using(key="k"), order_id="7")  # error: [call-overload] [reportArgumentType, reportCallIssue]
    with_session.using(key=7)  # error: [arg-type] [reportArgumentType]
    with_session.job(order="7")  # error: [call-arg] [reportCallIssue]
    with_session(7)  # error: [call-arg, arg-type] [reportCallIssue]
    enqueue(session, len, "a")  # error: [call-overload] [reportArgumentType, reportCallIssue]
    enqueue_many(session, [plain])  # error: [list-item] [reportArgumentType, reportCallIssue]


async def awaited(session: AsyncSession) -> None:
    job: Job = await enqueue(session, with_async_session, order_id=7)
    coroutine: Coroutine[Any, Any, Job] = enqueue(session, plain, "a")
    forgotten: Job = enqueue(session, plain, "a")  # error: [assignment] [reportAssignmentType]
    enqueue(session, plain, "a")  # error: [unused-coroutine] [reportUnusedCoroutine]
    many: list[Enqueued] = await enqueue_many(session, [plain.job("a")])
    print(job, await coroutine, forgotten, many)


@jobs.on("dead", "failed")
def page_someone(event: JobEvent) -> None: ...


@jobs.on("deceased")  # error: [arg-type] [reportArgumentType]
def wrong_event(event: JobEvent) -> None: ...
