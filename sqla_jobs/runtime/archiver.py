"""The archiver: moves finished jobs out of the job table when they are old enough, a small batch at a time.

Every worker with a retention has one. They don't know of each other: each passes over what another has locked. It
touches no row that is ready or running, and takes at most half of one connection's time.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqla_jobs.operations import archive
from sqla_jobs.operations.archive import Place, RowsKept, Step, Work
from sqla_jobs.operations.batches import Batch
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.failure import reason, start_of
from sqla_jobs.rules.retention import LARGEST_BATCH, Retention, limit_after_failure, next_limit
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.schema.trouble import is_lock_timeout, is_missing_column, is_missing_table, is_outage

log = logging.getLogger("sqla_jobs.worker")

LOOK_SECONDS = 45.0
"""Between two passes, a third more or less: retention is counted in hours and days."""

FULL_PASS_SECONDS = 3600.0
"""Between two tries of rows that can't be moved: until then, passes begin behind them."""

REST = 10
"""Such a try takes at most a tenth of the time, however many rows there are."""

NAMED = 10
"""Bad rows that have a warning of their own in one pass; the others share one."""

REMEMBERED = 10_000
"""Bad rows that are known, and not told of again."""

LINE_BYTES = 300


class Archiver:
    """Carries out a retention.

    A row that can't be moved stays, and holds up no other: a batch that fails is tried again in smaller parts, in the
    end row by row, and the pass goes on behind the bad row.
    """

    def __init__(self, jobs: Jobs[Any], connector: Connector, retention: Retention) -> None:
        self._jobs = jobs
        self._connector = connector
        self._steps = tuple(archive.steps(retention))
        self._passing = self.one_pass()
        self._bad = _BadRows(jobs)
        self._begin_at: dict[Step, Place] = {}
        self._full_pass_at = 0.0
        self._trouble: str | None = None
        self._took = 0.0

    def tick(self) -> float:
        """Do one batch, and give the seconds until the next: as many as it took, or until the next pass."""
        try:
            batch = next(self._passing, None)
        except Exception as error:
            self._passing = self.one_pass()
            if not _is_of_statements(error):
                raise
            self._warn(error)
            return _until_next_pass()
        if batch is None:
            self._trouble = None
            self._passing = self.one_pass()
            return _until_next_pass()
        return self._took

    def one_pass(self) -> Iterator[Batch]:
        """Do all that there is to do, and give each batch once it is committed; jobs that stay are its `skipped`.

        A batch that has failed is given, too: it has moved none.
        """
        began = time.monotonic()
        is_full = began >= self._full_pass_at
        if is_full:
            self._begin_at.clear()
        done: Counter[Step] = Counter()
        for step in self._connector.read(self._steps_with_rows):
            for count, skipped in self._one_step(step):
                done[step] += count
                yield Batch(count if step.work is not Work.DATE else 0, skipped, None)
        self._bad.end_pass()
        if is_full:
            now = time.monotonic()
            self._full_pass_at = now + max(FULL_PASS_SECONDS, REST * (now - began))
        for step, count in done.items():
            if count:
                log.info("%s", _told(self._jobs, step, count))

    def _steps_with_rows(self, session: Session) -> list[Step]:
        return [step for step in self._steps if archive.has_rows(session, self._jobs, step)]

    def _one_step(self, step: Step) -> Iterator[tuple[int, int]]:
        """Give for each transaction how many rows it was good for, and how many stay."""
        after, limit, has_bad = self._begin_at.get(step), LARGEST_BATCH, False
        while True:
            tried = _Try(self._jobs, step, after, limit)
            error = self._failure(tried)
            self._took = time.monotonic() - tried.began
            rows = len(tried.places)
            if error is not None and rows > 1:
                limit = limit_after_failure(rows)
                yield 0, 0
                continue
            after = tried.places[-1] if rows else after
            if error is not None:
                has_bad = self._bad.add(step, tried.places[0], error) or has_bad
                yield 0, 1
                continue
            self._bad.forget(tried.places)
            yield rows, 0
            if rows < limit:
                break
            limit = next_limit(limit, seconds=self._took)
        if after is not None and (has_bad or step in self._begin_at):
            self._begin_at[step] = after

    def _failure(self, tried: _Try) -> DBAPIError | RowsKept | None:
        """Carry out one transaction; give the error if it failed for a row's sake."""
        try:
            self._connector.run(tried)
        except (DBAPIError, RowsKept) as error:
            if not tried.places or not _is_of_a_row(error):
                raise
            return error
        return None

    def _warn(self, error: Exception) -> None:
        text = _said(self._jobs, error)
        if text != self._trouble:
            log.warning("finished jobs can't be archived: %s; trying again every minute", text)
        self._trouble = text


class _Try:
    """One transaction: it keeps which rows it was about, also when it fails.

    :ivar began: when it had its connection, and the one write lock where there is one
    """

    def __init__(self, jobs: Jobs[Any], step: Step, after: Place | None, limit: int) -> None:
        self._jobs = jobs
        self._step = step
        self._after = after
        self._limit = limit
        self.places: list[Place] = []
        self.began = 0.0

    def __call__(self, session: Session) -> None:
        self.began = time.monotonic()
        archive.bound(session, self._jobs)
        self.places = archive.lock(session, self._jobs, self._step, after=self._after, limit=self._limit)
        archive.carry_out(session, self._jobs, self._step, self.places)


class _BadRows:
    """The rows that can't be moved, each told of once."""

    def __init__(self, jobs: Jobs[Any]) -> None:
        self._jobs = jobs
        self._known: set[tuple[bool, int]] = set()
        self._named = self._unnamed = 0
        self._latest = ""

    def add(self, step: Step, place: Place, error: Exception) -> bool:
        """Take note of one; give False if it is only locked, and may well go next time."""
        if isinstance(error, DBAPIError) and error.orig is not None and is_lock_timeout(error.orig):
            log.debug("job %s is not archived: rows that refer to it are locked", place.id)
            return False
        key = (step.work is Work.DELETE, place.id)
        if key in self._known:
            return True
        if len(self._known) < REMEMBERED:
            self._known.add(key)
        self._latest = _said(self._jobs, error)
        if self._named < NAMED:
            self._named += 1
            log.warning("job %s can't be %s, and stays: %s", place.id, _past(self._jobs, step), self._latest)
        else:
            self._unnamed += 1
        return True

    def forget(self, places: list[Place]) -> None:
        """Take note that these are bad no more."""
        if self._known:
            self._known -= {(is_archived, place.id) for place in places for is_archived in (True, False)}

    def end_pass(self) -> None:
        """Tell of the many."""
        if self._unnamed:
            log.warning(
                "%s more finished jobs can't be archived, and stay; the latest: %s", self._unnamed, self._latest
            )
        self._named = self._unnamed = 0


def _until_next_pass() -> float:
    return LOOK_SECONDS * (2 + 2 * random.random()) / 3


def _is_of_a_row(error: DBAPIError | RowsKept) -> bool:
    """Tell whether a batch without some row may well go through."""
    if isinstance(error, RowsKept):
        return True
    if error.orig is None or error.connection_invalidated or _is_of_statements(error):
        return False
    # Locked: rows of the app's that refer to the job.
    return is_lock_timeout(error.orig) or not is_outage(error.orig)


def _is_of_statements(error: Exception) -> bool:
    """Tell whether it is the same for every row: the archive is not there yet."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    return is_missing_table(error.orig) or is_missing_column(error.orig)


def _said(jobs: Jobs[Any], error: Exception) -> str:
    """Give the first line of an error: those below may show the row."""
    return start_of(reason(error, redact=jobs.redact).partition("\n")[0], LINE_BYTES)


def _past(jobs: Jobs[Any], step: Step) -> str:
    """Say what is done to the jobs of a step."""
    if step.work is Work.DATE:
        return "dated"
    return "archived" if step.work is Work.MOVE and jobs.archive is not None else "deleted"


def _told(jobs: Jobs[Any], step: Step, count: int) -> str:
    if step.work is Work.DATE:
        return f"{count:,} {step.status} jobs did not say when they ended, and are dated now"
    return f"{count:,} {'archived' if step.status is None else step.status} jobs are {_past(jobs, step)}"
