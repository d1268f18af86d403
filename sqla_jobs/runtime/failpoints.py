"""Named places in our own transactions at which a test has a worker fail. Off unless armed.

A place is `<part>.statement_<n>` (before the n-th statement of a transaction of that part), `<part>.before_commit` or
`<part>.after_commit`. Parts are `claim`, `settle`, `complete` (the commit of a handler's session), `renew`, `reap`,
`tick`, `archive`. To arm them in another process:

.. code-block:: sh

    SQLA_JOBS_FAILPOINTS="claim.after_commit=kill,settle.before_commit#2=drop" sqla-jobs worker

At a place, at its first time or at the one that `#` names, one of these happens, once: `kill` (SIGKILL of this
process), `drop` (the connection breaks), `serialization`, `deadlock` (the database refuses the transaction).
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Mapper, Session

from sqla_jobs.errors import InvalidOption
from sqla_jobs.schema.trouble import injected

VARIABLE = "SQLA_JOBS_FAILPOINTS"

ACTIONS = frozenset({"kill", "drop", "serialization", "deadlock"})


class Failpoints:
    """Places, and what happens at them.

    :param plan: action by place, such as `{"claim.before_commit#2": "drop"}`
    :ivar passed: the places that were passed, in order, each with how many times by then: `claim.after_commit#1`
    :raises InvalidOption: no such action
    """

    def __init__(self, plan: Mapping[str, str]) -> None:
        for place, action in plan.items():
            if action not in ACTIONS:
                raise InvalidOption(f"{place}={action}: an action is one of {', '.join(sorted(ACTIONS))}")
        self._plan = {place if "#" in place else f"{place}#1": action for place, action in plan.items()}
        self._lock = threading.Lock()
        self._times: Counter[str] = Counter()
        self.passed: list[str] = []

    def reach(self, place: str, at: Connection | Session, mapper: Mapper[Any] | None) -> None:
        """Pass a place, unless something is to happen there."""
        with self._lock:
            self._times[place] += 1
            passed = f"{place}#{self._times[place]}"
            self.passed.append(passed)
            action = self._plan.pop(passed, None)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action is not None:
            dialect = at.dialect if isinstance(at, Connection) else at.get_bind(mapper=mapper).dialect
            if action == "drop":
                at.invalidate()
            raise _failure(action, passed, dialect)


def _failure(action: str, place: str, dialect: Any) -> OperationalError:
    error = injected(action, f"{action} at {place}", dialect.loaded_dbapi.OperationalError)
    return OperationalError(None, None, error, connection_invalidated=action == "drop")


def _from_environment() -> Failpoints | None:
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    pairs = [each.partition("=") for each in text.split(",")]
    return Failpoints({place.strip(): action.strip() for place, _, action in pairs})


armed: Failpoints | None = _from_environment()
"""None in production: then all of this costs a look at this name for each transaction."""


def arm(plan: Mapping[str, str]) -> Failpoints:
    """Arm this process."""
    global armed  # noqa: PLW0603  # a switch for the whole process, as the environment variable is
    armed = Failpoints(plan)
    return armed


def disarm() -> None:
    """Undo `arm`."""
    global armed  # noqa: PLW0603  # as above
    armed = None


def reach(part: str, place: str, at: Connection | Session, mapper: Mapper[Any] | None = None) -> None:
    """Pass a place of a transaction, that of *mapper*'s bind where it is a session's."""
    if armed is not None:
        armed.reach(f"{part}.{place}", at, mapper)


def watch(part: str, session: Session, connection: Connection) -> None:
    """Pass a place before each statement of the session's."""
    if armed is None:
        return
    statements = 0

    def count(_context: object) -> None:
        nonlocal statements
        statements += 1
        reach(part, f"statement_{statements}", connection)

    event.listen(session, "do_orm_execute", count)
