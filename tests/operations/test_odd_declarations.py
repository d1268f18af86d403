"""Handlers and columns that a declaration takes, or refuses in words, though they look odd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, null, text

from sqla_jobs.errors import InvalidHandler, InvalidOption
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.operations.registry import Jobs
from tests.operations.shop import Job, send

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@pytest.mark.parametrize("expression", [func.now(), text("1"), null(), Job.__table__.c.token, Job.token], ids=str)
def test_own_column_when_its_value_is_an_expression(expression: Any) -> None:
    """A column takes a value: an expression, which no bulk insert can carry, is refused where it is written."""
    with pytest.raises(InvalidOption, match="takes values, and 'tenant' has a SQL expression"):
        send.using(columns={"tenant": expression})


def test_argument_may_be_called_self(session: Session) -> None:
    """No name of an argument is in the way of the library's own."""
    handler = Jobs(Job).handler(greet)

    one = enqueue(session, handler, self=1, session=2, jobs=3)
    (many,) = enqueue_many(session, [handler.job(self=1, session=2, jobs=3)])

    assert one.payload == {"self": 1, "session": 2, "jobs": 3}
    assert session.get_one(Job, many.id).payload == one.payload


def greet(*, self: int, session: int, jobs: int) -> None: ...


@pytest.mark.parametrize("function", [int, str, type], ids=lambda function: function.__name__)
def test_handler_of_no_signature_is_refused_in_words(function: Any) -> None:
    """What Python itself can't describe can't be a handler, and the error says what can."""
    with pytest.raises(InvalidHandler, match="has no signature to read: wrap it in a `def`"):
        Jobs(Job).handler(function)
