"""docs/security.md: its roles can do what they must, and no more."""

from __future__ import annotations

import re
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import delete, text, update
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from sqla_jobs import (
    ArchivedJobMixin,
    JobMixin,
    Jobs,
    Retention,
    ScheduleMixin,
    Worker,
    cancel_jobs,
    enqueue,
    enqueue_many,
    find_jobs,
    requeue_jobs,
    show_job,
    stats,
    why,
)
from sqla_jobs.operations.archive import archive_batch
from tests.architecture.sources import ROOT
from tests.engines import build_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

SQL: Final = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "security.md").read_text(encoding="utf-8"), re.DOTALL)

ROLES: Final = ("shop_enqueues", "shop_works", "shop_reads")


class Base(DeclarativeBase): ...


class Job(JobMixin, Base):
    __tablename__ = "job"


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"


jobs = Jobs(Job, schedule=Schedule, archive=ArchivedJob, name="shop")


@jobs.handler
def send_receipt(session: Session, order_id: int) -> int:
    return order_id


@jobs.handler
def refund(order_id: int) -> None:
    raise AssertionError(order_id)


@pytest.fixture
def prefix() -> str:
    """Give what the roles' names begin with: roles are the whole server's, and other tests use it, too."""
    return f"shop_{secrets.token_hex(4)}"


@pytest.fixture
def owner(postgresql_url: str, prefix: str) -> Iterator[Engine]:
    """Give the owner's engine, on tables and roles as the page has them."""
    engine = build_engine(postgresql_url)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(SQL[0].replace("shop_", f"{prefix}_"))
    yield engine
    with engine.begin() as connection:
        for role in ROLES:
            name = role.replace("shop_", f"{prefix}_")
            connection.exec_driver_sql(f"DROP OWNED BY {name}; DROP ROLE {name}")
    engine.dispose()


@pytest.fixture
def sessions(owner: Engine, prefix: str) -> Iterator[dict[str, sessionmaker[Session]]]:
    """Give a session factory for each role."""
    engines = {role: build_engine(_url_of(owner, role.replace("shop_", f"{prefix}_"))) for role in ROLES}
    yield {role: sessionmaker(engine) for role, engine in engines.items()}
    for engine in engines.values():
        engine.dispose()


def _url_of(owner: Engine, role: str) -> str:
    return owner.url.set(username=role).render_as_string(hide_password=False)


def refused(sessions: sessionmaker[Session], statement: Any) -> bool:
    with sessions() as session, pytest.raises(ProgrammingError, match="permission denied"):
        session.execute(statement)
    return True


def test_role_that_enqueues_can_do_nothing_else(sessions: dict[str, sessionmaker[Session]]) -> None:
    """It enqueues in all ways, with keys and in bulk, and can't change, cancel or delete a job, or see the rest."""
    mine = sessions["shop_enqueues"]

    with mine.begin() as session:
        first = enqueue(session, send_receipt.using(key="receipt:1"), order_id=1)
        assert enqueue(session, send_receipt.using(key="receipt:1"), order_id=1) is first
        enqueue(session, send_receipt.using(delay=timedelta(hours=1)), order_id=2)
        enqueue_many(session, [send_receipt.using(key="receipt:3").job(order_id=3), send_receipt.job(order_id=4)])
        job_id = first.id

    assert refused(mine, update(Job).values(status="done"))
    assert refused(mine, delete(Job))
    assert refused(mine, text("SELECT * FROM schedule"))
    assert refused(mine, text("SELECT * FROM archived_job"))
    with mine() as session, pytest.raises(ProgrammingError, match="permission denied"):
        cancel_jobs(session, jobs, job_id)


def test_role_that_works_does_all_that_a_worker_does(sessions: dict[str, sessionmaker[Session]]) -> None:
    """It runs jobs, fires schedules and archives, and can't change tables or delete schedules."""
    theirs = sessions["shop_works"]
    with sessions["shop_enqueues"].begin() as session:
        job_id = enqueue(session, send_receipt, order_id=1).id
    with theirs.begin() as session:
        session.add(Schedule(name="often", job_type="send_receipt", payload={"order_id": 2}, cron="* * * * *"))

    Worker(jobs, theirs, retention=Retention(done=timedelta(days=1))).run_until_idle()
    with theirs.begin() as session:
        assert archive_batch(session, jobs, "done", timedelta(0)).changed == 1

    with theirs() as session:
        assert show_job(session, jobs, job_id).archived_at is not None
        assert session.query(Schedule).one().next_run_at is not None
    assert refused(theirs, delete(Schedule))
    with theirs() as session, pytest.raises(ProgrammingError, match="must be owner"):
        session.execute(text("ALTER TABLE job DROP COLUMN payload"))


def test_role_that_reads_changes_nothing(sessions: dict[str, sessionmaker[Session]]) -> None:
    """It has figures, lists and explanations, also of the oldest transaction, and can't enqueue, requeue or cancel."""
    reading = sessions["shop_reads"]
    with sessions["shop_enqueues"].begin() as session:
        job_id = enqueue(session, send_receipt, order_id=1).id

    with sessions["shop_enqueues"]() as other, reading() as session:
        other.execute(text("SELECT pg_current_xact_id()"))
        figures = stats(session, jobs)
        assert (figures.due, figures.oldest_transaction is not None) == (1, True)
        assert [job.id for job in find_jobs(session, jobs).jobs] == [job_id]
        assert why(session, jobs, job_id).reason == "in_backlog"

    changes: list[Callable[[Session], object]] = [
        lambda session: enqueue(session, send_receipt, order_id=2),
        lambda session: requeue_jobs(session, jobs, job_id),
        lambda session: cancel_jobs(session, jobs, job_id),
    ]
    for change in changes:
        with reading() as session, pytest.raises(ProgrammingError, match="permission denied"):
            change(session)


def test_row_security_lets_a_role_enqueue_some_types_only(
    owner: Engine, prefix: str, sessions: dict[str, sessionmaker[Session]]
) -> None:
    """With the page's policies the role can enqueue the one type, not the other, and workers go on as before."""
    with owner.begin() as connection:
        connection.exec_driver_sql(SQL[1].replace("shop_", f"{prefix}_"))

    with sessions["shop_enqueues"].begin() as session:
        job_id = enqueue(session, send_receipt.using(key="receipt:1"), order_id=1).id
        assert enqueue(session, send_receipt.using(key="receipt:1"), order_id=1).id == job_id
    with sessions["shop_enqueues"]() as session, pytest.raises(ProgrammingError, match="row-level security"):
        enqueue(session, refund, order_id=1)

    Worker(jobs, sessions["shop_works"]).run_until_idle()
    with sessions["shop_reads"]() as session:
        assert show_job(session, jobs, job_id).status == "done"
