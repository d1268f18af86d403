from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import JSON, Engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs import JobMixin, Jobs, enqueue_many


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"
    meta: Mapped[Any] = mapped_column(JSON)


jobs = Jobs(Job)


@jobs.handler
def work() -> None: ...


@pytest.mark.parametrize("has_keys", [False, True], ids=["no keys", "keys"])
def test_values_of_own_columns_that_python_takes_for_equal_stay_apart(engine: Engine, has_keys: bool) -> None:
    """1, True and 1.0 are one value to `==`, and three to a JSON column."""
    Base.metadata.create_all(engine)
    values = [1, True, 1.0]

    with Session(engine) as session, session.begin():
        enqueue_many(
            session,
            [
                work.using(columns={"meta": {"a": value}}, key=f"k{number}" if has_keys else None).job()
                for number, value in enumerate(values)
            ],
        )

    with Session(engine) as session:
        stored = [meta["a"] for meta in session.scalars(select(Job.meta).order_by(Job.id))]
    assert [repr(value) for value in stored] == ["1", "True", "1.0"]
