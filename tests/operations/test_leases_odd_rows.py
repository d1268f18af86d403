from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.orm import Session, sessionmaker

from tests.operations.leasing import HOUR, MINUTE, add, take
from tests.operations.shop import Job


def ids(claimed: list[Any]) -> list[int]:
    return [lease.id for lease in claimed]


@pytest.mark.parametrize("column", ["payload", "errors"])
def test_json_that_is_none_breaks_no_claim(sqlite_sessions: sessionmaker[Session], column: str) -> None:
    """On SQLite JSON is text, too: a row that somebody has broken by hand keeps no other from being claimed."""
    with sqlite_sessions.begin() as session:
        odd, other = add(session, ago=HOUR), add(session, ago=MINUTE)
        session.execute(text(f"UPDATE job SET {column} = 'not json' WHERE id = :id"), {"id": odd})

    with sqlite_sessions.begin() as session:
        assert other in ids(take(session))


@pytest.mark.parametrize("payload", [{}, [], "text", 5, None, {"order_id": "no int"}])
def test_payload_of_any_shape_is_claimed(session: Session, payload: Any) -> None:
    """What somebody wrote into a row breaks no claim: it is for the run to say what is wrong with it."""
    job_id = session.execute(
        insert(Job.__table__).values(type="send", payload=payload if payload is not None else "null").returning(Job.id)  # type: ignore[arg-type]
    ).scalar_one()
    other = add(session)

    assert ids(take(session)) == [job_id, other]


@pytest.mark.parametrize("errors", [{}, "text", 5, [1, "two", None], [{"error": "boom"}]])
def test_errors_of_any_shape_are_claimed(session: Session, errors: Any) -> None:
    """The same for the column of earlier errors: what is no list is dropped at the next failure."""
    add(session, ago=HOUR, errors=errors)

    (lease,) = take(session)

    kept: Any = errors
    assert lease.errors == (tuple(kept) if isinstance(errors, list) else ())
