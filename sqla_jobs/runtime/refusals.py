"""Rows that the database refuses to change: a trigger of the app's raises, or an old row violates a younger constraint.

One such row fails the whole batch that it is in, and would do so for ever. So a batch that is refused is tried again in
smaller parts, in the end row by row, each in a transaction of its own: some triggers speak only at the commit, and some
roll all back. What is refused alone is passed over from then on, so that those behind it come. Now and then some of
these are tried again, and more of them at once as long as none is refused: then the cause may be gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import Executable

from sqla_jobs.rules.failure import reason, start_of
from sqla_jobs.rules.retention import limit_after_failure
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.schema.trouble import is_missing_column, is_missing_table, is_outage

log = logging.getLogger("sqla_jobs.worker")

T = TypeVar("T")

PASSED_OVER = 10_000
"""Refused rows that are passed over. With more of them than that before all others, those wait, as in an outage."""

RETRY_SECONDS = 60.0
"""Between two times that refused rows are tried again."""

RETRIED = 100
"""How many at a time, since all others wait for them; twice as many each time that none of them was refused again."""

TRIES = 100
"""Transactions in one go; then others have their turn, such as a stop."""

NAMED = 10
"""Refused rows that have a warning of their own; the others of an hour share one."""

TELL_AGAIN_SECONDS = 3600.0

LINE_BYTES = 300


@dataclass(frozen=True, slots=True)
class Batch:
    """One try.

    :ivar limit: how many rows at most
    :ivar but: those to pass over
    :ivar ids: of the rows that it is about, which the operation notes before it changes them
    """

    limit: int
    but: tuple[int, ...]
    ids: list[int] = field(default_factory=list)


class Refusals:
    """Carries out one kind of change, past the rows that refuse it.

    :param done: what is done to rows, as the log says it
    :ivar has_more: whether there may be more to do, after `carry_out`
    """

    def __init__(self, connector: Connector, done: str, *, redact: Callable[[str], str] | None) -> None:
        self._connector = connector
        self._done = done
        self._redact = redact
        self._known: dict[int, None] = {}  # in order
        self._retried: list[int] = []
        self._untried: set[int] = set()  # of these
        self._retry_at = 0.0
        self._size = PASSED_OVER
        self._told: set[int] = set()
        self._tell_again_at = 0.0
        self.has_more = False

    @property
    def known(self) -> tuple[int, ...]:
        """The rows to pass over now."""
        if self._known and time.monotonic() >= self._retry_at:
            self._retry()
        return (*self._known,)

    def _retry(self) -> None:
        is_over = self._retried and not any(id_ in self._known for id_ in self._retried)
        count = 2 * len(self._retried) if is_over else RETRIED
        self._retried = [*self._known][:count]
        for id_ in self._retried:
            self._known.pop(id_, None)  # `Worker.reap` may do the same
        self._untried = {*self._retried}
        self._size = PASSED_OVER
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def carry_out(
        self, operation: Callable[[Batch, Session], list[T]], limit: int, *, bounded: Executable | None = None
    ) -> list[T]:
        """Do *operation* to up to *limit* rows; when it is refused, to fewer, until it goes through."""
        self.has_more = True
        for _ in range(TRIES):
            batch = Batch(min(limit, self._size), self.known)
            try:
                done = self._connector.run(partial(operation, batch), bounded=bounded)
            except DBAPIError as error:
                if not batch.ids or not is_refusal(error) or len(self._known) >= PASSED_OVER:
                    raise
                self._narrow(batch.ids, error)
                continue
            self._size = min(PASSED_OVER, 2 * batch.limit)
            is_full = len(batch.ids) == batch.limit
            has_retried = self._has_retried(batch.ids if is_full else self._retried)
            self.has_more = has_retried or (bool(done) and is_full)
            return done
        return []

    def _has_retried(self, ids: Iterable[int]) -> bool:
        """Note that *ids* are no more refused; give whether that was the last of a retry, and the next may come now."""
        was_retrying = bool(self._untried)
        self._untried.difference_update(ids)
        is_over = was_retrying and not self._untried
        if is_over:
            self._retry_at = 0.0
        return is_over and bool(self._known)

    def _narrow(self, ids: list[int], error: DBAPIError) -> None:
        self._size = limit_after_failure(len(ids))
        if len(ids) > 1:
            return
        if not self._known:
            self._retry_at = time.monotonic() + RETRY_SECONDS
        if not self._known or ids[0] in self._untried:
            self._untried.clear()  # that retry has failed
        self._known[ids[0]] = None
        self.tell(ids[0], error)

    def tell(self, id_: int, error: DBAPIError) -> None:
        """Log that a row is refused: once an hour, and of many only some."""
        now = time.monotonic()
        if now >= self._tell_again_at:
            self._told.clear()
            self._tell_again_at = now + TELL_AGAIN_SECONDS
        if id_ in self._told or len(self._told) > NAMED:
            return
        self._told.add(id_)
        # Its first line: those below may show the row.
        said = start_of(reason(error, redact=self._redact).partition("\n")[0], LINE_BYTES)
        if len(self._told) <= NAMED:
            log.warning("job %s can't be %s, and is passed over: the database refuses it: %s", id_, self._done, said)
        else:
            log.warning("more jobs can't be %s, and are passed over; one of them: job %s: %s", self._done, id_, said)


def is_refusal(error: DBAPIError) -> bool:
    """Tell whether the database may have refused some row's change, and would take that of others."""
    orig = error.orig
    # Where there is no server to refuse anything, drivers say OperationalError or InterfaceError, most without a state.
    if orig is None or error.connection_invalidated or isinstance(error, OperationalError | InterfaceError):
        return False
    return not (is_outage(orig) or is_missing_table(orig) or is_missing_column(orig))
