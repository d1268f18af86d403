"""`current_job()`: what a handler can ask about the job that it runs."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, overload

from sqlalchemy.orm import Session

from sqla_jobs.errors import WorkerError
from sqla_jobs.rules.lease import Lease
from sqla_jobs.schema.mixins import JobMixin

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


class Watched(Protocol):
    """The end of a run, as its worker sees it."""

    lease: Lease
    overdue_at: float | None

    @property
    def is_cancelled(self) -> bool:
        """Whether the handler had better stop."""
        ...


class CurrentJob:
    """The job that the calling handler runs."""

    __slots__ = ("_model", "_watched")

    def __init__(self, watched: Watched, model: type[JobMixin]) -> None:
        self._watched = watched
        self._model = model

    @property
    def id(self) -> int:
        """The row's id."""
        return self._watched.lease.id

    @property
    def type(self) -> str:
        """The handler's name, as the row has it."""
        return self._watched.lease.type

    @property
    def queue(self) -> str:
        """The queue it stood in."""
        return self._watched.lease.queue

    @property
    def attempt(self) -> int:
        """From 1."""
        return self._watched.lease.attempt

    @property
    def max_attempts(self) -> int:
        """The last attempt's number."""
        return self._watched.lease.max_attempts

    @property
    def slot(self) -> datetime | None:
        """The instant of the schedule that the job stands for, in UTC; None for a job of no schedule."""
        return self._watched.lease.slot

    @property
    def deadline(self) -> float | None:
        """When its time is up, as `time.monotonic()` counts; None without a timeout."""
        return self._watched.overdue_at

    @property
    def remaining(self) -> timedelta | None:
        """The time until the deadline, not below zero; None without a timeout."""
        deadline = self.deadline
        return None if deadline is None else timedelta(seconds=max(0.0, deadline - time.monotonic()))

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the lease is lost or over, the job is cancelled, the time is up, or the worker shuts down.

        A handler that goes on wastes its work: what it writes through its session will not be committed.
        """
        return self._watched.is_cancelled

    @overload
    def load(self, session: Session) -> Any: ...
    @overload
    def load(self, session: AsyncSession) -> Coroutine[Any, Any, Any]: ...
    def load(self, session: Any) -> Any:
        """Give the row as an object of *session*; await it for an AsyncSession. Don't change the library's columns.

        :raises sqlalchemy.exc.NoResultFound: the row was deleted
        """
        return session.get_one(self._model, self.id)

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id} {self.type!r} attempt {self.attempt} of {self.max_attempts}>"


_current: ContextVar[CurrentJob] = ContextVar("sqla_jobs_current_job")

enter = _current.set
leave = _current.reset


def current_job() -> CurrentJob:
    """Give the job that the calling handler runs.

    :raises WorkerError: no job runs here; in tests, `sqla_jobs.testing.drain` runs jobs
    """
    try:
        return _current.get()
    except LookupError:
        raise WorkerError("no job runs here: current_job() is for handlers, called by a worker or by drain()") from None
