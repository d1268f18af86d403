"""What the shop does in the background."""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from examples.shop import mail
from examples.shop.models import ArchivedJob, Job, Order, Receipt, Schedule
from sqla_jobs import GiveUp, JobEvent, Jobs, current_job, db_now, enqueue

log = logging.getLogger(__name__)

jobs = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="shop")


@jobs.handler
def write_receipt(session: Session, order_id: int) -> None:
    """Write the receipt and have it mailed: receipt, next job, and this job's `done` are one commit."""
    order = session.get_one(Order, order_id)
    euros, cents = divmod(order.total_cents, 100)
    receipt = Receipt(order=order, text=f"Order {order.id}: {euros}.{cents:02} EUR, with thanks.")
    session.add(receipt)
    job = mail_receipt.using(key=f"mail_receipt:{order.id}", columns={"customer_id": order.customer_id})
    enqueue(session, job, order_id=order.id, to=order.customer.email, text=receipt.text)


@jobs.handler(queue="mail", max_attempts=10, timeout=timedelta(seconds=30))
def mail_receipt(order_id: int, to: str, text: str) -> None:
    """Mail a receipt. It may run twice, so the mail has an id; no transaction is open meanwhile."""
    if "@" not in to:
        raise GiveUp(f"order {order_id} has no address to mail to")
    mail.send(f"receipt-{order_id}", to=to, text=text)


@jobs.handler
def count_takings(session: Session, days: int) -> int:
    """Give the cents of the days before the slot, or before now when a person triggers it; the job keeps its result."""
    until = current_job().slot or session.scalars(select(db_now())).one()
    taken = select(func.sum(Order.total_cents)).where(Order.placed_at >= until - timedelta(days=days))
    return session.scalar(taken.where(Order.placed_at < until)) or 0


jobs.schedule("takings", count_takings.job(days=1), cron="0 3 * * *", timezone="Europe/Zurich", catch_up="all")


@jobs.on("failed", "dead")
def tell_support(event: JobEvent) -> None:
    """Say so, after the commit, when a job has ended badly."""
    log.error("support has to look at job %s, %s: %s", event.job_id, event.type, event.error)
