"""The shop's tables, jobs among them. Importing this connects to nothing: `Base.metadata` serves migrations, too."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, ForeignKey, MetaData, String, Text, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_jobs import ArchivedJobMixin, JobMixin, ScheduleMixin


class Base(DeclarativeBase):
    """Names every constraint, so that migrations can speak of it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Customer(Base):
    """Who buys."""

    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(String(320), unique=True)
    orders: Mapped[list[Order]] = relationship(back_populates="customer")


class Order(Base):
    """What was bought."""

    __tablename__ = "order"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customer.id"), index=True)
    total_cents: Mapped[int]
    placed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), insert_default=func.now())
    customer: Mapped[Customer] = relationship(back_populates="orders")
    receipt: Mapped[Receipt | None] = relationship(back_populates="order")


class Receipt(Base):
    """What the customer gets; written by a job."""

    __tablename__ = "receipt"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("order.id"), unique=True)
    text: Mapped[str] = mapped_column(Text())
    order: Mapped[Order] = relationship(back_populates="receipt")


class Job(JobMixin, Base):
    """The library's columns, and one of the shop's: for whom the job is done."""

    __tablename__ = "job"

    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customer.id"), index=True)
    customer: Mapped[Customer | None] = relationship()


class ArchivedJob(ArchivedJobMixin, Base):
    """Finished jobs that are out of the way; still with the shop's column."""

    __tablename__ = "archived_job"

    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customer.id"), index=True)


class Schedule(ScheduleMixin, Base):
    """What is done again and again."""

    __tablename__ = "schedule"
