"""Everything that this library raises, and what handlers raise to steer a job.

.. code-block:: text

    SqlaJobsError
    ├── ConfigurationError        the app's set-up is wrong; nothing was started or stored
    │   ├── InvalidModel          the mapped class cannot hold jobs
    │   ├── InvalidHandler        the function cannot be a handler as it is written
    │   ├── InvalidSessions       the session factory cannot serve a worker
    │   └── UnsupportedDatabase   the server or library is too old, or of a kind not served
    ├── UnknownHandler            no handler of that name (also a LookupError)
    ├── UnknownSchedule           no schedule of that name (also a LookupError)
    ├── UnknownJob                no job of that id (also a LookupError)
    ├── InvalidOption             a key, time, queue, column or number (also a ValueError)
    │   └── InvalidSchedule       cron text, a time zone, or another part of a schedule
    ├── PayloadError              an argument that is wrong or cannot be stored (also TypeError, ValueError)
    │   └── PayloadTooLarge
    ├── EnqueueConflict           the key kept appearing and vanishing; try the transaction again
    ├── WorkerError               the worker cannot do that now (also a RuntimeError)
    └── JobSignal                 raised by handlers, never by us
        ├── Retry                 run me again, this attempt counts
        ├── Snooze                run me again, this attempt does not count
        └── GiveUp                end here, as `failed`
"""

from __future__ import annotations

from datetime import timedelta

LONGEST_DELAY = timedelta(days=3650)
"""Past this a delay is taken for a mistake."""


class SqlaJobsError(Exception):
    """Root of all errors of this library."""


class ConfigurationError(SqlaJobsError):
    """The app's set-up is wrong; the message says what to change."""


class InvalidModel(ConfigurationError):
    """The mapped class cannot hold jobs."""


class InvalidHandler(ConfigurationError):
    """The function cannot be a handler as it is written."""


class InvalidSessions(ConfigurationError):
    """The session factory cannot serve a worker."""


class UnsupportedDatabase(ConfigurationError):
    """The database, its version, or its driver is not served."""


class UnknownHandler(SqlaJobsError, LookupError):
    """No handler is registered under that name."""


class UnknownSchedule(SqlaJobsError, LookupError):
    """The table has no schedule of that name."""


class UnknownJob(SqlaJobsError, LookupError):
    """Neither the job table nor the archive has a job of that id.

    :ivar job_id: the id
    """

    def __init__(self, job_id: int) -> None:
        super().__init__(f"there is no job {job_id}: it was deleted, or its transaction was rolled back")
        self.job_id = job_id


class InvalidOption(SqlaJobsError, ValueError):
    """An option of `using(…)`, `Worker(…)` or an operation is out of range; nothing was stored."""


class InvalidSchedule(InvalidOption):
    """A part of a schedule can't be followed.

    Cron text that can't be read, that never comes or that says something else than it seems to; an unknown time zone;
    a `catch_up` or `overlap` that there is not.
    """


class PayloadError(SqlaJobsError, TypeError, ValueError):
    """An argument of a job is missing, unknown, of the wrong type, or cannot be stored.

    :ivar handler: the handler's name
    :ivar argument: the argument's name, with the path inside it (`order.lines[2].price`), or None
    """

    def __init__(self, message: str, *, handler: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.handler = handler
        self.argument = argument


class PayloadTooLarge(PayloadError):
    """The arguments take more bytes than `Jobs(…, max_payload=…)` allows."""


class EnqueueConflict(SqlaJobsError):
    """Five times in a row the key was taken and its row then gone; roll back and try again.

    :ivar key: the idempotency key
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was taken, and its job gone again, five times in a row: "
            "something deletes jobs of this key as fast as they come; roll back and try again later"
        )
        self.key = key


class WorkerError(SqlaJobsError, RuntimeError):
    """The worker cannot do that now: started twice, used after a fork, or all its slots are stuck."""


class JobSignal(SqlaJobsError):
    """Base of what a handler raises to steer its job."""


class Retry(JobSignal):
    """Raised by a handler: run the job again, after *delay* or the handler's backoff. Uses the attempt.

    :param reason: stored as the attempt's error
    :param delay: how long to wait; None takes the handler's backoff
    :raises InvalidOption: the delay is negative or longer than ten years
    """

    def __init__(self, reason: str = "", *, delay: timedelta | None = None) -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.delay = None if delay is None else _checked(delay)


class Snooze(JobSignal):
    """Raised by a handler: run the job again after *delay*. Uses no attempt and is no failure.

    :param delay: how long to wait
    """

    def __init__(self, reason: str = "", *, delay: timedelta) -> None:
        super().__init__(reason or "snoozed")
        self.delay = _checked(delay)


class GiveUp(JobSignal):
    """Raised by a handler: the job can never succeed. It ends as `failed`, with no more attempts.

    :param reason: stored as the job's error
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler gave up")


def _checked(delay: object) -> timedelta:
    if not isinstance(delay, timedelta):
        raise InvalidOption(f"delay is a timedelta, and is a {type(delay).__name__}: timedelta(seconds=…)")
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        raise InvalidOption(f"delay is from 0 to {LONGEST_DELAY}, and is {delay}")
    return delay
