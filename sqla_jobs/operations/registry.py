"""What an app writes: the registry of its handlers, and the handlers themselves.

.. code-block:: python

    jobs = Jobs(Job)

    @jobs.handler(queue="mail", max_attempts=5)
    def send_receipt(session: Session, order_id: int) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidHandler, InvalidModel, InvalidOption, InvalidSchedule
from sqla_jobs.rules.events import EVENT_NAMES, EventName, JobEvent
from sqla_jobs.rules.options import EnqueueOptions
from sqla_jobs.rules.registry import (
    MAX_ATTEMPTS,
    Handlers,
    HandlerSpec,
    check_number,
    check_text,
    inspect_handler,
)
from sqla_jobs.rules.retry import Backoff, BackoffPolicy
from sqla_jobs.rules.schedules import DEFAULT_LIMIT, CatchUp, Declaration, Overlap
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.schema.tables import ScheduleTable, archive_table, job_table, schedule_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

J = TypeVar("J", bound=JobMixin)
Q = ParamSpec("Q")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Session)
A = TypeVar("A", bound="AsyncSession")
Callback = TypeVar("Callback", bound=Callable[[JobEvent], None])

MAX_PAYLOAD = 64 * 1024
"""Bytes of a job's arguments as JSON, unless `Jobs(…, max_payload=…)` says otherwise."""


class Handler(Generic[J, Q, P, R]):
    """A function that runs jobs of one type. Call it directly and it is the function as written."""

    def __init__(self, jobs: Jobs[J], spec: HandlerSpec, options: EnqueueOptions | None = None) -> None:
        functools.update_wrapper(self, spec.function)
        self.jobs = jobs
        self.spec = spec
        self.options = options if options is not None else EnqueueOptions()

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        return cast("R", self.spec.function(*args, **kwargs))

    @property
    def name(self) -> str:
        """What the column `type` holds."""
        return self.spec.name

    def using(
        self,
        *,
        key: str | None = None,
        delay: timedelta | None = None,
        run_at: datetime | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> Handler[J, Q, P, R]:
        """Give this handler with other options for `enqueue`; what is not named keeps its value.

        :param key: at most 255 characters; case and spaces count. While a job of this key exists, in whatever status,
            enqueuing it again changes nothing. Archiving or deleting the job frees the key
        :param delay: from the enqueue on, by the database's clock
        :param run_at: an aware datetime; a past one is due at once, and goes before jobs that became due after it
        :param columns: values for columns of your own on the job model, by attribute name
        :raises InvalidOption: a value is out of range; nothing was stored
        """
        if columns is not None and not isinstance(cast("object", columns), Mapping):
            raise InvalidOption(f"columns is a dict by attribute name, not a {type(columns).__name__}: columns={{…}}")
        given: dict[str, Any] = {
            "key": key,
            "delay": delay,
            "run_at": run_at,
            "queue": queue,
            "max_attempts": max_attempts,
            "columns": None if columns is None else dict(columns),
        }
        options = replace(self.options, **{name: value for name, value in given.items() if value is not None})
        self.jobs.table.own_columns(dict(options.columns))
        return Handler(self.jobs, self.spec, options)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob[J]:
        """Give a job of this handler, not stored yet: for `enqueue_many`.

        :raises PayloadError: an argument is missing, unknown, of the wrong type, or can't be stored
        """
        return NewJob(self.jobs, self.spec, self.spec.arguments.dump(args, kwargs), self.options)

    def __repr__(self) -> str:
        return f"<Handler {self.name!r}>"


@dataclass(slots=True)  # not frozen, which would take as long as all the rest of `Handler.job`
class NewJob(Generic[J]):
    """A job that is not stored yet: a handler, its arguments as JSON, and its options."""

    jobs: Jobs[J]
    spec: HandlerSpec
    payload: dict[str, Any]
    options: EnqueueOptions

    @property
    def queue(self) -> str:
        """The queue that it will stand in."""
        return self.options.queue if self.options.queue is not None else self.spec.queue

    @property
    def max_attempts(self) -> int:
        """The number of its last attempt."""
        return self.options.max_attempts if self.options.max_attempts is not None else self.spec.max_attempts


class Decorator(Protocol[J]):
    """What `@jobs.handler(…)` with options gives."""

    @overload
    def __call__(self, function: Callable[Concatenate[S, P], R], /) -> Handler[J, Concatenate[S, P], P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[A, P], R], /) -> Handler[J, Concatenate[A, P], P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[J, P, P, R]: ...


class Jobs(Generic[J]):
    """A registry: the handlers of an app, and the model that holds their jobs.

    :param model: a mapped class with `JobMixin`
    :param schedule: a mapped class with `ScheduleMixin`; without it there are no schedules
    :param archive: a mapped class with `ArchivedJobMixin`
    :param name: of this registry, at most 255 characters. Schedules that code declares belong to it: give apps that
        share tables different names, and all releases of one app the same
    :param now: the clock, as a SQL expression; every time that we write or compare is this expression
    :param notify: on PostgreSQL, tell workers of new jobs by NOTIFY. A commit that carries one waits for a lock that
        the whole server shares; turn it off where thousands of transactions a second enqueue, and workers poll
    :param max_payload: bytes of a job's arguments as JSON
    :param redact: called with every error text before it is stored or logged; gives what may be kept
    :raises InvalidModel: the class cannot hold jobs
    """

    def __init__(
        self,
        model: type[J],
        *,
        schedule: type[ScheduleMixin] | None = None,
        archive: type[ArchivedJobMixin] | None = None,
        name: str = "default",
        now: ColumnElement[Any] | None = None,
        notify: bool = True,
        max_payload: int = MAX_PAYLOAD,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self.model = model
        self.table = job_table(model, now)
        self._schedules = None if schedule is None else schedule_table(schedule, now)
        self.archive = None if archive is None else archive_table(archive, now)
        self.declarations: dict[str, Declaration] = {}
        self.name = check_text("name", name)
        self.notify = notify
        self.max_payload = check_number("max_payload", max_payload, least=2)
        self.redact = redact
        self.handlers = Handlers()
        self._callbacks: dict[str, list[Callable[[JobEvent], None]]] = {}
        self._wakers: list[Callable[[frozenset[str]], None]] = []

    @overload
    def handler(self, function: Callable[Concatenate[S, P], R], /) -> Handler[J, Concatenate[S, P], P, R]: ...
    @overload
    def handler(self, function: Callable[Concatenate[A, P], R], /) -> Handler[J, Concatenate[A, P], P, R]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> Handler[J, P, P, R]: ...
    @overload
    def handler(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        max_attempts: int = MAX_ATTEMPTS,
        timeout: timedelta | None = None,
        backoff: BackoffPolicy | None = None,
        aliases: Iterable[str] = (),
    ) -> Decorator[J]: ...
    def handler(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Register a function as a handler: `@jobs.handler`, or `@jobs.handler(queue="mail")`.

        A first parameter annotated `Session` or `AsyncSession` gets the job's own transaction.

        :param name: what the column `type` holds; the function's name unless given
        :param timeout: async handlers are cancelled after it; sync ones see `current_job().cancelled`
        :param backoff: a `Backoff`, or a function from the attempt (from 1) to a timedelta
        :param aliases: earlier names, whose jobs this handler runs too
        :raises InvalidHandler: the function can't be a handler as it is written
        :raises InvalidOption: an option is out of range
        """
        if functions:
            return self._register(*functions, **options)
        return functools.partial(self._register, **options)

    def _register(
        self,
        function: Callable[..., Any],
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        max_attempts: int = MAX_ATTEMPTS,
        timeout: timedelta | None = None,
        backoff: BackoffPolicy | None = None,
        aliases: Iterable[str] = (),
    ) -> Handler[J, ..., ..., Any]:
        if not callable(function):
            raise InvalidHandler(f"{function!r} is no function; options of a handler have names: queue=…, name=…")
        if backoff is not None and not callable(backoff) and not isinstance(cast("object", backoff), Backoff):
            raise InvalidOption(f"backoff is a Backoff or a function, and is a {type(backoff).__name__}")
        spec = inspect_handler(
            function,
            name=name,
            queue=queue,
            max_attempts=max_attempts,
            timeout=timeout,
            backoff=backoff if backoff is not None else Backoff(),
            aliases=aliases,
            max_bytes=self.max_payload,
        )
        self.handlers.add(spec)
        return Handler(self, spec)

    @property
    def has_schedules(self) -> bool:
        """Whether it has a table of schedules."""
        return self._schedules is not None

    @property
    def schedules(self) -> ScheduleTable:
        """The table of schedules.

        :raises InvalidModel: there is none
        """
        if self._schedules is None:
            raise InvalidModel(
                f"registry {self.name!r} has no schedules: `class Schedule(ScheduleMixin, Base)`, and "
                f"Jobs({self.model.__name__}, schedule=Schedule)"
            )
        return self._schedules

    def schedule(
        self,
        name: str,
        job: NewJob[J] | Handler[J, ..., [], Any],
        /,
        *,
        cron: str,
        timezone: str = "UTC",
        offset: timedelta | None = None,
        catch_up: CatchUp = "latest",
        catch_up_limit: int = DEFAULT_LIMIT,
        overlap: Overlap = "allow",
    ) -> None:
        """Declare a schedule: a worker of this registry makes its row when it starts, and brings it up to date.

        A row of that name that was made at run time, or that another registry has declared, stays as it is.

        :param name: unique in the table
        :param job: `handler.job(…)`, or the handler itself if it takes no arguments
        :param cron: five fields, or six with the seconds last; see `sqla_jobs.rules.cron`
        :param timezone: an IANA name; DST is followed
        :param offset: how long after its slot a job is due; None: up to 30 s, by the name
        :param catch_up: for slots that no scheduler was there for: one job for the `latest`, `all` of the newest
            *catch_up_limit*, or `skip`
        :param overlap: whether to `allow` or `skip` a slot while an earlier job of the schedule is unfinished
        :raises InvalidSchedule: cron text, zone or another part can't be followed, or the name is declared twice
        :raises InvalidModel: the registry has no schedules
        """
        table = self.schedules
        check_text("name", name)
        if isinstance(job, Handler) and job.jobs is not self:
            raise _no_job_of_ours(name)
        new_job = job.job() if isinstance(job, Handler) else job
        if type(new_job) is not NewJob or new_job.jobs is not self:
            raise _no_job_of_ours(name)
        kept = replace(new_job.options, queue=None)
        if kept != EnqueueOptions():
            raise InvalidSchedule(
                f"schedule {name!r}: a schedule can keep only queue= of handler.using(…); give the handler the rest"
            )
        if name in self.declarations:
            raise InvalidSchedule(f"schedule {name!r} is declared twice on {table.mapper.class_.__name__}: rename one")
        self.declarations[name] = Declaration(
            name=name,
            job_type=new_job.spec.name,
            payload=new_job.payload,
            queue=new_job.options.queue,
            cron=cron,
            timezone=timezone,
            offset=offset,
            catch_up=catch_up,
            catch_up_limit=catch_up_limit,
            overlap=overlap,
        )

    def on(self, *events: EventName) -> Callable[[Callback], Callback]:
        """Register a function that is called, in a thread of the worker's, after the commit of each such event.

        What it raises is logged and changes nothing. See `JobEvent` for the names.

        :raises InvalidOption: no such event
        :raises InvalidHandler: the function is async
        """
        for event in events:
            if event not in EVENT_NAMES:
                raise InvalidOption(f"no event is called {event!r}; there are {', '.join(sorted(EVENT_NAMES))}")

        def register(callback: Callback) -> Callback:
            if inspect.iscoroutinefunction(callback):
                raise InvalidHandler(
                    f"{callback.__qualname__} is async, and events are told from a thread with no loop: write def"
                )
            for event in events:
                self._callbacks.setdefault(event, []).append(callback)
            return callback

        return register

    def callbacks(self, event: str) -> tuple[Callable[[JobEvent], None], ...]:
        """Give the functions to call for *event*."""
        return tuple(self._callbacks.get(event, ()))

    @property
    def has_wakers(self) -> bool:
        """Whether a worker of this process wants to hear of commits."""
        return bool(self._wakers)

    def add_waker(self, waker: Callable[[frozenset[str]], None]) -> None:
        """Call *waker* with the queues of each transaction of this process that enqueued."""
        self._wakers.append(waker)

    def remove_waker(self, waker: Callable[[frozenset[str]], None]) -> None:
        """Undo `add_waker`."""
        self._wakers.remove(waker)

    def wake(self, queues: frozenset[str]) -> None:
        """Tell the workers of this process that *queues* have work."""
        for waker in tuple(self._wakers):
            waker(queues)

    def __repr__(self) -> str:
        return f"<Jobs {self.name!r} on {self.model.__name__}>"


def _no_job_of_ours(name: str) -> InvalidSchedule:
    return InvalidSchedule(f"schedule {name!r} takes a job of this registry's: jobs.schedule(…, handler.job(…))")
