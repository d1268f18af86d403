from __future__ import annotations

import signal
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from examples.shop.db import make_engine
from examples.shop.handlers import jobs, mail_receipt, write_receipt
from examples.shop.models import Base, Customer, Job, Order, Receipt, Schedule
from examples.shop.orders import place_order
from sqla_jobs import db_now
from sqla_jobs.testing import drain, enqueued, tick
from tests.engines import build_engine
from tests.examples.programs import read_until, run, started

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from sqlalchemy import Engine


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    """Give what the shop's programs read from the environment."""
    return {"DATABASE_URL": database_url, "SHOP_OUTBOX": str(tmp_path / "outbox")}


@pytest.fixture
def shop(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Give the shop's own engine, on its tables."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    engine = make_engine()
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_order_gets_its_receipt_when_the_worker_has_run(environment: dict[str, str], tmp_path: Path) -> None:
    """One process makes the tables, one places an order, one writes and mails the receipt, and the rows say so."""
    programs = ["db"], ["orders", "ann@example.org", "1999"], ["worker", "--until-idle"]

    ended = [run("-m", f"examples.shop.{program}", *arguments, **environment) for program, *arguments in programs]

    assert [program.returncode for program in ended] == [0, 0, 0], [program.stderr for program in ended]
    with opened(environment["DATABASE_URL"]) as session:
        assert session.scalars(select(Receipt.text)).all() == ["Order 1: 19.99 EUR, with thanks."]
        assert endings(session) == [
            ("write_receipt", "done", "ann@example.org"),
            ("mail_receipt", "done", "ann@example.org"),
        ]
    assert "19.99 EUR" in (tmp_path / "outbox" / "receipt-1.txt").read_text()


def test_order_without_an_address_ends_as_a_failed_job(shop: Engine, environment: dict[str, str]) -> None:
    """What can never be mailed is given up at once, support is told, and the worker ends well."""
    run("-m", "examples.shop.orders", "nobody", "500", **environment)

    worked = run("-m", "examples.shop.worker", "--until-idle", **environment)

    assert worked.returncode == 0, worked.stderr
    assert "ERROR support has to look at job 2, mail_receipt" in worked.stdout
    with Session(shop) as session:
        assert endings(session) == [("write_receipt", "done", "nobody"), ("mail_receipt", "failed", "nobody")]


def test_worker_drains_at_sigterm(shop: Engine, environment: dict[str, str]) -> None:
    """A worker that runs takes orders as they come, and ends with status 0 at SIGTERM."""
    with started("-m", "examples.shop.worker", **environment) as worker:
        read_until(worker.stdout, "serves all queues")
        run("-m", "examples.shop.orders", "ann@example.org", "1999", **environment)
        read_until(worker.stdout, "mail_receipt done")

        worker.send_signal(signal.SIGTERM)

        read_until(worker.stdout, "has stopped")
        assert worker.wait() == 0
    with Session(shop) as session:
        assert [status for _, status, _ in endings(session)] == ["done", "done"]


def test_order_that_is_rolled_back_leaves_nothing(shop: Engine) -> None:
    """An order that is rolled back has no row and no job; one that is committed has both."""
    with Session(shop) as session:
        place_order(session, "bob@example.org", 100)
        session.rollback()
        place_order(session, "ann@example.org", 200)
        session.commit()

    with Session(shop) as session:
        assert session.scalars(select(Customer.email)).all() == ["ann@example.org"]
        assert session.scalars(select(Order.total_cents)).all() == [200]
        assert session.scalar(select(func.count()).select_from(Job)) == 1


def test_shop_is_tested_inside_of_a_transaction(shop: Engine) -> None:
    """An app's own test sees what is enqueued and runs it, and a rollback undoes it all."""
    with Session(shop) as session:
        order = place_order(session, "ann@example.org", 1999)
        assert [job.customer for job in enqueued(session, write_receipt, order_id=order.id)] == [order.customer]

        events = drain(session, jobs)

        assert [(event.type, event.name) for event in events] == [("write_receipt", "done"), ("mail_receipt", "done")]
        assert order.receipt is not None
        assert enqueued(session, mail_receipt) == []
        session.rollback()
    with Session(shop) as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 0


def test_takings_are_counted_when_the_day_is_over(shop: Engine) -> None:
    """The schedule counts what was taken in the day before its slot."""
    with Session(shop) as session:
        place_order(session, "ann@example.org", 1999)
        tick(session, jobs)
        now = session.scalars(select(db_now())).one()
        session.execute(update(Schedule).values(next_run_at=now - timedelta(hours=30)))

        *_, fired = tick(session, jobs)
        session.scalars(select(Order)).one().placed_at = fired.slot - timedelta(hours=1)
        drain(session, jobs)

        assert fired.name == "takings"
        assert session.get_one(Job, fired.job_id).result == 1999
        session.rollback()


def test_models_are_imported_without_a_database(tmp_path: Path) -> None:
    """The MetaData can be had by migrations: importing the models connects to nothing and writes nothing."""
    program = "from examples.shop.models import Base; print(*sorted(Base.metadata.tables))"

    imported = run("-c", f"import os; os.chdir({str(tmp_path)!r}); {program}", DATABASE_URL="nothing://")

    tables = ["archived_job", "customer", "job", "order", "receipt", "schedule"]
    assert imported.stdout.split() == tables, imported.stderr
    assert list(tmp_path.iterdir()) == []


@contextmanager
def opened(url: str) -> Generator[Session]:
    engine = build_engine(url)
    with Session(engine) as session:
        yield session
    engine.dispose()


def endings(session: Session) -> list[tuple[Any, ...]]:
    """Give type, status and customer of each job."""
    query = select(Job.type, Job.status, Customer.email).join(Job.customer).order_by(Job.id)
    return [tuple(row) for row in session.execute(query)]
