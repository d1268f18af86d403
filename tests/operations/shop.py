"""An app as the tests of this folder know it: models with a job table of its own columns, and handlers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from sqlalchemy import ForeignKey, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema.mixins import JobMixin
from sqla_jobs.testing import Clock


class Base(DeclarativeBase): ...


class Customer(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50), unique=True)


class Job(JobMixin, Base):
    __tablename__ = "job"
    tenant: Mapped[str] = mapped_column("tenant_name", String(50), default="house")
    token: Mapped[str] = mapped_column(String(50), default=lambda: uuid4().hex)
    level: Mapped[int] = mapped_column(server_default=text("1"))
    reference: Mapped[str | None] = mapped_column(String(50), unique=True)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customer.id"))
    customer: Mapped[Customer | None] = relationship(lazy="joined")
    notes: Mapped[list[Note]] = relationship(lazy="selectin", back_populates="job")


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"))
    job: Mapped[Job] = relationship(back_populates="notes")


class OtherJob(JobMixin, Base):
    __tablename__ = "other_job"


clock = Clock(Base.metadata)

jobs = Jobs(Job)
other_jobs = Jobs(OtherJob, notify=False)
timed = Jobs(Job, now=clock.now)
"""The same table on the clock that tests move."""


@jobs.handler
def send(order_id: int) -> None: ...


@jobs.handler(queue="mail", max_attempts=3)
def mail(to: str, *, urgent: bool = False) -> None: ...


@jobs.handler
def store(*, value: Any) -> None: ...


@other_jobs.handler
def tidy(days: int) -> None: ...


@timed.handler(name="send")
def timed_send(order_id: int) -> None: ...


@timed.handler(name="mail", queue="mail", max_attempts=3)
def timed_mail(to: str) -> None: ...
