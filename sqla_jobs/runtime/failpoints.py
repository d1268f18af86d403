"""Named places in our own transactions at which a test has a worker fail. Off unless armed.

A place is `<part>.statement_<n>` (before the n-th statement of a transaction of that part), `<part>.before_commit` or
`<part>.after_commit`. Parts are `claim`, `settle`, `complete` (the commit of a handler's session), `renew`, `reap`,
`tick`, `archive`; `claim.read` and so on are their transactions that only read. To arm them in another process:

.. code-block:: sh

    SQLA_JOBS_FAILPOINTS="claim.after_commit=kill,settle.before_commit#2=drop" sqla-jobs worker

At a place, at its first time or at the one that `#` names, one of these happens, once: `kill` (SIGKILL of this
process), `drop` (the connection breaks), `serialization`, `deadlock` (the database refuses the transaction). The errors
take the way of a driver's own through SQLAlchemy.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session

from sqla_jobs.errors import InvalidOption
from sqla_jobs.schema.trouble import injected

log = logging.getLogger("sqla_jobs.worker")

VARIABLE = "SQLA_JOBS_FAILPOINTS"

ACTIONS = frozenset({"kill", "drop", "serialization", "deadlock"})

_PLACE = re.compile(
    r"(claim|settle|complete|renew|reap|tick|archive)(\.read)?"
    r"\.(statement_[1-9]\d*|before_commit|after_commit)(?P<time>#[1-9]\d*)?"
)


class Failpoints:
    """Places, and what happens at them.

    :param plan: action by place, such as `{"claim.before_commit#2": "drop"}`
    :ivar passed: the places that were passed, in order, each with how many times by then: `claim.after_commit#1`
    :ivar fired: those of them at which something happened
    :raises InvalidOption: no such place, or no such action
    """

    def __init__(self, plan: Mapping[str, str]) -> None:
        self._plan: dict[str, str] = {}
        for place, action in plan.items():
            found = _PLACE.fullmatch(place)
            if found is None:
                raise InvalidOption(
                    f"{place!r} is no place: it is <part>.statement_<n>, <part>.before_commit or <part>.after_commit, "
                    "with #<n> for another time than the first"
                )
            if action not in ACTIONS:
                raise InvalidOption(f"{place}={action}: an action is one of {', '.join(sorted(ACTIONS))}")
            self._plan[place if found["time"] else f"{place}#1"] = action
        self._lock = threading.Lock()
        self._times: Counter[str] = Counter()
        self.passed: list[str] = []
        self.fired: list[str] = []

    @classmethod
    def parse(cls, text: str) -> Failpoints:
        """Read a plan as the environment variable has it.

        :raises InvalidOption: it is none
        """
        plan: dict[str, str] = {}
        for each in text.split(","):
            place, is_pair, action = (part.strip() for part in each.partition("="))
            if not is_pair or place in plan:
                raise InvalidOption(f"it is <place>=<action>, …, each place once, and {each.strip()!r} is not")
            plan[place] = action
        return cls(plan)

    def reach(self, place: str, at: Connection | Session, mapper: Mapper[Any] | None) -> None:
        """Pass a place, unless something is to happen there."""
        with self._lock:
            self._times[place] += 1
            passed = f"{place}#{self._times[place]}"
            self.passed.append(passed)
            action = self._plan.pop(passed, None)
            if action is None:
                return
            self.fired.append(passed)
        log.warning("failpoint %s: %s", passed, action)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        _fail(at if isinstance(at, Connection) else at.connection(bind_arguments={"mapper": mapper}), action, passed)


def _fail(connection: Connection, action: str, place: str) -> NoReturn:
    """Raise a driver's error as a commit that fails does, so that all who listen to the engine's errors hear of it."""
    error = injected(action, f"{action} at {place}", connection.dialect.loaded_dbapi.OperationalError)
    try:
        connection._handle_dbapi_exception(error, None, None, None, None)  # pyright: ignore[reportPrivateUsage]
    except DBAPIError as raised:
        if action == "drop":
            connection.invalidate(raised)
            raised.connection_invalidated = True
        raise


def from_environment() -> Failpoints | None:
    """Give what the environment variable asks for, with a warning; None if it is not set.

    :raises InvalidOption: it is no plan
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        failpoints = Failpoints.parse(text)
    except InvalidOption as error:
        raise InvalidOption(f"{VARIABLE}={text}: {error}") from None
    log.warning("%s=%s: this process fails on purpose; in production, unset it", VARIABLE, text)
    return failpoints


armed: Failpoints | None = from_environment()
"""None in production: then all of this costs a look at this name for each place."""


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
    here = armed  # another thread may disarm
    if here is not None:
        here.reach(f"{part}.{place}", at, mapper)


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
