from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker, with_loader_criteria

from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from tests.operations.shop import Job, send

if TYPE_CHECKING:
    from sqlalchemy.orm import ORMExecuteState


def hide_other_tenants(state: ORMExecuteState) -> None:
    """Do what SQLAlchemy documents for soft deletion and for tenants."""
    if state.is_select:
        state.statement = state.statement.options(with_loader_criteria(Job, Job.tenant == "house"))


def test_taken_key_when_the_app_hides_its_holder(sessions: sessionmaker[Session]) -> None:
    """A key is taken whoever may see its job, and whoever enqueues it again gets that job."""
    with sessions.begin() as session:
        hidden = enqueue(session, send.using(key="k", columns={"tenant": "other"}), order_id=1).id
        shown = enqueue(session, send.using(key="l"), order_id=2).id

    with sessions() as session:
        event.listen(session, "do_orm_execute", hide_other_tenants)
        found = [enqueue(session, send.using(key=key), order_id=3) for key in "kl"]
        many = enqueue_many(session, [send.using(key=key).job(order_id=3) for key in "kl"])

        assert [(job.id, job.is_duplicate, job.tenant) for job in found] == [
            (hidden, True, "other"),
            (shown, True, "house"),
        ]
        assert [each.id for each in many] == [hidden, shown]
        assert all(job in session and isinstance(job.notes, list) for job in found)
