from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from sqla_jobs.errors import InvalidHandler, InvalidModel, InvalidOption, PayloadError
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import enqueue_many
from sqla_jobs.operations.registry import MAX_PAYLOAD, Handler, Jobs
from sqla_jobs.rules.events import EVENT_NAMES, JobEvent
from sqla_jobs.rules.registry import SessionKind
from sqla_jobs.rules.retry import Backoff
from tests.operations.shop import Customer, Job

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTE = timedelta(minutes=1)


@pytest.fixture
def jobs() -> Jobs[Job]:
    """Give a registry that no other test sees."""
    return Jobs(Job)


def test_handler_is_callable_as_written(jobs: Jobs[Job]) -> None:
    """A test calls the function directly, with its session, and gets what it returns."""

    @jobs.handler(queue="mail")
    def add(session: Session, number: int, *, more: int = 1) -> int:
        """Add up."""
        assert session is not None
        return number + more

    with Session() as session:
        assert add(session, 2) == 3
        assert add(session, number=2, more=5) == 7
    assert (add.__doc__, add.name) == ("Add up.", "add")
    assert repr(add) == "<Handler 'add'>"


def test_async_handler_is_callable_as_written(jobs: Jobs[Job]) -> None:
    """An async handler gives the coroutine that it is."""

    @jobs.handler
    async def double(number: int) -> int:
        return 2 * number

    assert asyncio.run(double(4)) == 8
    assert double.spec.is_async


def test_handler_has_the_options_that_were_given(jobs: Jobs[Job]) -> None:
    """What the decorator says is what the worker reads."""
    backoff = Backoff(base=MINUTE)

    @jobs.handler(name="shop.send", queue="mail", max_attempts=7, timeout=MINUTE, backoff=backoff, aliases=["send"])
    def send(session: Session) -> None: ...

    spec = send.spec
    assert (spec.name, spec.queue, spec.max_attempts, spec.timeout) == ("shop.send", "mail", 7, MINUTE)
    assert (spec.backoff, spec.aliases, spec.session) == (backoff, ("send",), SessionKind.SYNC)
    assert jobs.handlers.find("send") is spec


def test_handler_without_options_has_the_usual_ones(jobs: Jobs[Job]) -> None:
    """Bare, or with empty brackets, it is the same decorator."""

    @jobs.handler
    def bare() -> None: ...

    @jobs.handler()
    def called() -> None: ...

    for handler in (bare, called):
        spec = handler.spec
        assert (spec.queue, spec.max_attempts, spec.timeout, spec.backoff) == ("default", 5, None, Backoff())


def test_option_that_does_not_exist_is_refused(jobs: Jobs[Job]) -> None:
    """A misspelt option is an error where the handler is declared."""
    anything: Any = jobs

    with pytest.raises(TypeError, match="max_attempt"):
        anything.handler(max_attempt=7)(lambda: None)


def test_two_handlers_of_one_name_are_refused(jobs: Jobs[Job]) -> None:
    """The second is refused, both are named, and the first stays."""

    @jobs.handler
    def send() -> None: ...

    with pytest.raises(InvalidHandler, match="two handlers are called 'send'"):
        jobs.handler(name="send")(lambda: None)

    assert jobs.handlers.find("send") is send.spec


def test_two_registries_know_nothing_of_each_other() -> None:
    """There is no module-level state: each registry has its own handlers, callbacks and wakers."""
    first, second = Jobs(Job, name="first"), Jobs(Job, name="second")

    @first.handler
    def send() -> None: ...

    @first.on("dead")
    def page(event: JobEvent) -> None: ...

    assert first.callbacks("dead") == (page,)
    assert second.handlers.names == ()
    assert second.callbacks("dead") == ()
    assert repr(second) == "<Jobs 'second' on Job>"
    assert send.jobs is first


def test_registry_of_a_class_that_holds_no_jobs_is_refused() -> None:
    """A model without the mixin is told how to get it."""
    model: Any = Customer

    with pytest.raises(InvalidModel, match=r"class Customer\(JobMixin, Base\)"):
        Jobs(model)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "name is empty"),
        ({"name": "n" * 256}, "at most 255"),
        ({"max_payload": 1}, "max_payload is from 2"),
        ({"max_payload": "64k"}, "max_payload is an int"),
        ({"now": timedelta(0)}, "now is a SQL expression"),
    ],
    ids=str,
)
def test_option_of_a_registry_out_of_range_is_refused(options: dict[str, Any], says: str) -> None:
    """A wrong option is an `InvalidOption` at the registry's own line."""
    with pytest.raises(InvalidOption, match=says):
        Jobs(Job, **options)


def test_payload_limit_is_the_registrys() -> None:
    """`max_payload` bounds the arguments of all its handlers, in bytes of JSON."""
    small = Jobs(Job, max_payload=20)

    @small.handler
    def send(text: str) -> None: ...

    assert send.job(text="x" * 9).payload == {"text": "x" * 9}
    with pytest.raises(PayloadError, match="over the limit of 20"):
        send.job(text="x" * 10)
    assert Jobs(Job).max_payload == MAX_PAYLOAD == 65536


def test_using_leaves_the_handler_as_it_was(jobs: Jobs[Job]) -> None:
    """Options are added to a copy: the handler itself can be used on, by any number of threads."""

    @jobs.handler
    def send(order_id: int) -> None: ...

    keyed = send.using(key="k")
    late = keyed.using(delay=MINUTE)

    assert isinstance(keyed, Handler)
    assert (send.options.key, keyed.options.key, late.options.key) == (None, "k", "k")
    assert (keyed.options.delay, late.options.delay) == (None, MINUTE)
    assert late(order_id=5) is None
    assert late.spec is send.spec


@pytest.mark.parametrize(
    ("first", "second"),
    [({"delay": MINUTE}, {"run_at": None, "key": "k"}), ({"key": "k"}, {"key": None, "delay": MINUTE})],
)
def test_using_of_none_keeps_the_value(jobs: Jobs[Job], first: dict[str, Any], second: dict[str, Any]) -> None:
    """None names nothing: what was said before stays."""

    @jobs.handler
    def send() -> None: ...

    options = send.using(**first).using(**second).options

    assert (options.key, options.delay, options.run_at) == ("k", MINUTE, None)


def test_columns_given_to_using_are_read_once(jobs: Jobs[Job]) -> None:
    """A mapping that is changed later changes no handler."""

    @jobs.handler
    def send() -> None: ...

    columns = {"tenant": "north"}
    used = send.using(columns=columns)
    columns["tenant"] = "south"

    assert used.options.columns == {"tenant": "north"}


def test_new_job_is_checked_and_stored_nowhere(jobs: Jobs[Job]) -> None:
    """`job` gives the arguments as JSON, and refuses those that don't fit."""

    @jobs.handler(queue="mail")
    def send(order_id: int) -> None: ...

    mistake: Any = "5"
    new_job = send.using(queue="bulk").job(5)

    assert (new_job.payload, new_job.queue, send.job(order_id=5).queue) == ({"order_id": 5}, "bulk", "mail")
    with pytest.raises(PayloadError, match="order_id"):
        send.job(order_id=mistake)


def test_callbacks_are_kept_by_event_in_order(jobs: Jobs[Job]) -> None:
    """A function may hear of several events, an event may have several functions, and stays callable."""
    heard: list[str] = []

    @jobs.on("dead", "failed")
    def first(event: JobEvent) -> None:
        heard.append(event.name)

    @jobs.on("dead")
    def second(event: JobEvent) -> None: ...

    assert jobs.callbacks("dead") == (first, second)
    assert jobs.callbacks("failed") == (first,)
    assert jobs.callbacks("done") == ()
    first(JobEvent("failed", 1, "send", "default", 1, 5))
    assert heard == ["failed"]


def test_event_that_does_not_exist_is_refused(jobs: Jobs[Job]) -> None:
    """A misspelt event is told with those that there are."""
    mistake: Any = "died"

    with pytest.raises(InvalidOption, match="no event is called 'died'; there are dead, done") as caught:
        jobs.on(mistake)

    assert all(name in str(caught.value) for name in EVENT_NAMES)


def test_async_callback_is_refused(jobs: Jobs[Job]) -> None:
    """Events are told from a thread that has no loop."""

    async def page(event: JobEvent) -> None: ...

    callback: Any = page

    with pytest.raises(InvalidHandler, match="write def"):
        jobs.on("dead")(callback)


# --- wakers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def woken(jobs: Jobs[Job]) -> Iterator[list[set[str]]]:
    """Give the list of the queues that this process's workers were woken for."""
    queues: list[set[str]] = []

    def waker(names: frozenset[str]) -> None:
        queues.append(set(names))

    jobs.add_waker(waker)
    yield queues
    jobs.remove_waker(waker)
    assert not jobs.has_wakers


def send_in(queue: str, jobs: Jobs[Job]) -> Handler[Job, ..., ..., None]:
    return jobs.handler(name=f"send in {queue}", queue=queue)(lambda: None)


def test_workers_of_the_process_are_woken_after_the_commit(
    sessions: sessionmaker[Session], jobs: Jobs[Job], woken: list[set[str]]
) -> None:
    """Once for each transaction, with all its queues, when its jobs can be claimed."""
    mail, bulk = send_in("mail", jobs), send_in("bulk", jobs)
    with sessions() as session:
        commits: list[str] = []

        def note(_: Session) -> None:
            commits.append(repr(woken))

        event.listen(session, "after_commit", note)
        enqueue(session, mail)
        with session.begin_nested():
            enqueue_many(session, [bulk.job(), mail.job()])
        before = [*woken]
        session.commit()

    assert (before, set(commits)) == ([], {"[]"})
    assert woken == [{"mail", "bulk"}]


def test_transaction_that_enqueued_nothing_wakes_nobody(
    sessions: sessionmaker[Session], jobs: Jobs[Job], woken: list[set[str]]
) -> None:
    """A session that has enqueued once does not wake workers for ever."""
    with sessions() as session:
        enqueue(session, send_in("mail", jobs))
        session.commit()
        session.add(Customer(name="ann"))
        session.commit()

    assert woken == [{"mail"}]


def test_session_keeps_one_listener(sessions: sessionmaker[Session], jobs: Jobs[Job], woken: list[set[str]]) -> None:
    """A session that lives long and enqueues often wakes once for each transaction."""
    mail = send_in("mail", jobs)
    with sessions() as session:
        for _ in range(3):
            enqueue(session, mail)
            enqueue(session, mail)
            session.commit()

    assert woken == [{"mail"}] * 3


def test_waker_that_is_removed_is_not_called(sessions: sessionmaker[Session], jobs: Jobs[Job]) -> None:
    """A worker that has ended between enqueue and commit is not called."""
    called: list[frozenset[str]] = []
    waker = called.append
    jobs.add_waker(waker)
    with sessions() as session:
        enqueue(session, send_in("mail", jobs))
        jobs.remove_waker(waker)
        session.commit()

    assert called == []
