"""Taking orders.

python -m examples.shop.orders ann@example.org 1999     orders for 19.99
"""

from __future__ import annotations

import sys

from sqlalchemy import select
from sqlalchemy.orm import Session

from examples.shop.db import make_engine
from examples.shop.handlers import write_receipt
from examples.shop.models import Customer, Order
from sqla_jobs import enqueue


def place_order(session: Session, email: str, total_cents: int) -> Order:
    """Store an order and the job that writes its receipt. The caller's commit makes both true, a rollback neither."""
    customer = session.scalars(select(Customer).where(Customer.email == email)).one_or_none() or Customer(email=email)
    order = Order(customer=customer, total_cents=total_cents)
    session.add(order)
    session.flush()
    job = write_receipt.using(key=f"write_receipt:{order.id}", columns={"customer_id": customer.id})
    enqueue(session, job, order_id=order.id)
    return order


def main(email: str, total_cents: str) -> None:
    with Session(make_engine()) as session, session.begin():
        order = place_order(session, email, int(total_cents))
        print(f"order {order.id}")


if __name__ == "__main__":
    main(*sys.argv[1:])
