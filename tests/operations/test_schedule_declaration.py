from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from sqla_jobs.errors import LONGEST_DELAY, InvalidModel, InvalidOption, InvalidSchedule, PayloadError
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.schedules import LARGEST_LIMIT, Declaration
from tests.operations.timetable import Job, Schedule

HOURLY = "0 * * * *"


class App:
    """A registry with handlers, that no other test sees."""

    def __init__(self, **options: Any) -> None:
        usual: dict[str, Any] = {"schedule": Schedule, "name": "shop"}
        self.jobs = Jobs(Job, **usual | options)
        self.tidy = self.jobs.handler(tidy)
        self.report = self.jobs.handler(queue="reports")(report)
        self.send = self.jobs.handler(send)

    def schedule(self, **options: Any) -> None:
        """Declare a schedule that is in order, but for these options."""
        usual: dict[str, Any] = {"cron": HOURLY}
        self.jobs.schedule("tidy", self.tidy, **usual | options)

    @property
    def declared(self) -> Declaration:
        """The one schedule that is declared."""
        (declaration,) = self.jobs.declarations.values()
        return declaration


def tidy() -> None: ...
def report(day: date, *, title: str = "sales") -> None: ...
def send(*, value: Any) -> None: ...


@pytest.fixture
def app() -> App:
    return App()


# --- what can be declared ---------------------------------------------------------------------------------------------


def test_schedule_of_a_job_with_arguments_keeps_them_as_json(app: App) -> None:
    """Every part is kept as it was given, and the arguments as a job's payload holds them."""
    app.jobs.schedule(
        "sales",
        app.report.job(date(2024, 1, 31), title="all"),
        cron="30 2 * * mon-fri",
        timezone="Europe/Zurich",
        offset=timedelta(minutes=5),
        catch_up="all",
        catch_up_limit=7,
        overlap="skip",
    )

    assert app.jobs.declarations["sales"] is app.declared
    assert app.declared == Declaration(
        name="sales",
        job_type="report",
        payload={"day": "2024-01-31", "title": "all"},
        queue=None,
        cron="30 2 * * mon-fri",
        timezone="Europe/Zurich",
        offset=timedelta(minutes=5),
        catch_up="all",
        catch_up_limit=7,
        overlap="skip",
    )


def test_schedule_of_a_bare_handler_has_no_arguments(app: App) -> None:
    """A handler that needs none may stand for its job, and what is not said has its usual value."""
    app.jobs.schedule("tidy", app.tidy, cron="@daily")

    assert app.declared == Declaration(
        name="tidy",
        job_type="tidy",
        payload={},
        queue=None,
        cron="@daily",
        timezone="UTC",
        offset=None,
        catch_up="latest",
        catch_up_limit=100,
        overlap="allow",
    )


def test_schedule_of_a_bare_handler_is_that_of_its_job() -> None:
    """`handler` and `handler.job()` declare the same."""
    bare, called = App(), App()

    bare.jobs.schedule("tidy", bare.tidy, cron=HOURLY)
    called.jobs.schedule("tidy", called.tidy.job(), cron=HOURLY)

    assert bare.declared == called.declared


def test_queue_of_using_is_kept(app: App) -> None:
    """`using(queue=…)` is the schedule's queue, of a job and of a bare handler; the handler's own is not stored."""
    app.jobs.schedule("a", app.report.using(queue="slow").job(date(2024, 1, 31)), cron=HOURLY)
    app.jobs.schedule("b", app.tidy.using(queue="slow"), cron=HOURLY)
    app.jobs.schedule("c", app.report.job(date(2024, 1, 31)), cron=HOURLY)

    assert [each.queue for each in app.jobs.declarations.values()] == ["slow", "slow", None]


def test_handler_of_another_name_is_declared_by_that(app: App) -> None:
    """`job_type` is what the handler's jobs have in `type`, and no alias."""
    handler = app.jobs.handler(name="shop.tidy", aliases=["old.tidy"])(lambda: None)

    app.jobs.schedule("tidy", handler, cron=HOURLY)

    assert app.declared.job_type == "shop.tidy"


def test_declaration_holds_a_copy_of_the_arguments(app: App) -> None:
    """A list that is changed afterwards changes no schedule."""
    value = [1]
    app.jobs.schedule("send", app.send.job(value=value), cron=HOURLY)

    value.append(2)

    assert app.declared.payload == {"value": [1]}


@pytest.mark.parametrize(
    "options",
    [
        {"offset": timedelta(0)},
        {"offset": LONGEST_DELAY},
        {"catch_up_limit": 1},
        {"catch_up_limit": LARGEST_LIMIT},
        {"catch_up": "skip"},
        {"cron": "*/10 * * * * */15"},
        {"timezone": "Asia/Kathmandu"},
    ],
    ids=str,
)
def test_part_at_its_limit_is_taken(app: App, options: dict[str, Any]) -> None:
    """The ends of what is allowed are in it."""
    app.schedule(**options)

    assert {name: getattr(app.declared, name) for name in options} == options


def test_registries_declare_each_their_own() -> None:
    """There is no module-level state, and the same name in two registries is for the table to sort out."""
    one, two = App(name="one"), App(name="two")

    one.schedule()
    two.schedule(cron="@daily")

    assert (one.declared.cron, two.declared.cron) == (HOURLY, "@daily")


# --- what can't be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "value", "error", "says"),
    [
        ("cron", "no cron", InvalidSchedule, "2 fields are not five or six: write minute, hour"),
        ("cron", "60 * * * *", InvalidSchedule, "60.* is no minute: write 0 to 59"),
        ("cron", "0 0 30 2 *", InvalidSchedule, "it never comes: .*write another, or L"),
        ("cron", "@reboot", InvalidSchedule, "only @yearly, .* write one, or five fields"),
        ("cron", "", InvalidSchedule, "it is empty: write five fields"),
        ("cron", None, InvalidSchedule, "a cron text is a str, and is a NoneType: write one"),
        ("timezone", "Mars/Phobos", InvalidSchedule, "'Mars/Phobos', which can't be loaded: write an IANA name"),
        ("timezone", "UTC+3", InvalidSchedule, "'UTC\\+3', which can't be loaded: write an IANA name"),
        ("timezone", "localtime", InvalidSchedule, "not the same on every host: write an IANA name"),
        ("timezone", None, InvalidSchedule, "a time zone is a NoneType: write an IANA name"),
        ("offset", timedelta(seconds=-1), InvalidOption, "offset is from 0:00:00 to 3650 days"),
        ("offset", LONGEST_DELAY + timedelta(seconds=1), InvalidOption, "offset is from 0:00:00 to 3650 days"),
        ("offset", 30, InvalidOption, r"offset is a timedelta, and is a int: timedelta\(seconds=…\)"),
        ("catch_up", "last", InvalidSchedule, "catch_up is 'last': write one of 'latest', 'all', 'skip'"),
        ("catch_up", None, InvalidSchedule, "catch_up is None: write one of"),
        ("catch_up", ["all"], InvalidSchedule, "write one of 'latest', 'all', 'skip'"),
        ("catch_up_limit", 0, InvalidOption, "catch_up_limit is from 1"),
        ("catch_up_limit", LARGEST_LIMIT + 1, InvalidOption, "catch_up_limit is from 1 to 10000, and is 10001"),
        ("catch_up_limit", "5", InvalidOption, "catch_up_limit is an int, and is a str"),
        ("catch_up_limit", True, InvalidOption, "catch_up_limit is an int, and is a bool"),
        ("overlap", "deny", InvalidSchedule, "overlap is 'deny': write one of 'allow', 'skip'"),
        ("overlap", False, InvalidSchedule, "overlap is False: write one of 'allow', 'skip'"),
    ],
)
def test_part_that_no_scheduler_can_go_by_is_refused(
    app: App, part: str, value: object, error: type[InvalidOption], says: str
) -> None:
    """The error is at the line of the declaration, says what to write, and nothing is declared by halves."""
    with pytest.raises(error, match=says) as caught:
        app.schedule(**{part: value})

    assert type(caught.value) is error
    assert app.jobs.declarations == {}
    app.schedule()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (None, "name is a str, and is a NoneType"),
        ("", "name is empty"),
        ("n" * 256, "name has 256 characters"),
        ("a\x00b", "name has a NUL"),
        (["tidy"], "name is a str, and is a list"),
    ],
    ids=["none", "empty", "long", "NUL", "list"],
)
def test_name_that_no_database_stores_is_refused(app: App, name: Any, says: str) -> None:
    """The name is 1 to 255 characters of text."""
    with pytest.raises(InvalidOption, match=says):
        app.jobs.schedule(name, app.tidy, cron=HOURLY)

    app.jobs.schedule("n" * 255, app.tidy, cron=HOURLY)
    assert len(app.declared.name) == 255


def test_name_that_is_declared_twice_is_refused(app: App) -> None:
    """The second is told to rename one, and the first stays as it was."""
    app.schedule()

    with pytest.raises(InvalidSchedule, match="schedule 'tidy' is declared twice on Schedule: rename one"):
        app.schedule(cron="@daily")

    assert app.declared.cron == HOURLY


@pytest.mark.parametrize(
    "options",
    [
        {"key": "k"},
        {"delay": timedelta(0)},
        {"delay": timedelta(minutes=1)},
        {"run_at": datetime(2027, 1, 1, tzinfo=UTC)},
        {"max_attempts": 3},
        {"columns": {"tenant": "north"}},
        {"queue": "slow", "key": "k"},
    ],
    ids=str,
)
def test_options_that_a_schedule_can_not_keep_are_refused(app: App, options: dict[str, Any]) -> None:
    """A slot has its own key and time, and the rest is the handler's: only the queue is kept, and the error says so."""
    handler = app.tidy.using(**options)

    for job in (handler, handler.job()):
        with pytest.raises(InvalidSchedule, match=r"'tidy': a schedule can keep only queue= of handler\.using\(…\)"):
            app.jobs.schedule("tidy", job, cron=HOURLY)

    assert app.jobs.declarations == {}


@pytest.mark.parametrize("job", [App().tidy, App().tidy.job()], ids=["handler", "job"])
def test_handler_of_another_registry_is_refused(app: App, job: Any) -> None:
    """No worker of this registry could run it."""
    with pytest.raises(InvalidSchedule, match=r"takes a job of this registry's: jobs\.schedule\(…, handler\.job\(…\)"):
        app.jobs.schedule("tidy", job, cron=HOURLY)

    assert app.jobs.declarations == {}


@pytest.mark.parametrize(
    "job",
    [None, tidy, "tidy", Schedule, {"type": "tidy"}, App().tidy.job],
    ids=["none", "function", "text", "class", "dict", "method"],
)
def test_what_is_no_job_is_refused(app: App, job: Any) -> None:
    """The error shows what goes there."""
    with pytest.raises(InvalidSchedule, match=r"schedule 'tidy' takes a job .*handler\.job\(…\)"):
        app.jobs.schedule("tidy", job, cron=HOURLY)

    assert app.jobs.declarations == {}


def test_bare_handler_that_needs_arguments_is_refused(app: App) -> None:
    """The error names the argument that is missing."""
    handler: Any = app.report

    with pytest.raises(PayloadError, match="argument 'day' of handler 'report' is missing"):
        app.jobs.schedule("sales", handler, cron=HOURLY)

    assert app.jobs.declarations == {}


def test_registry_without_schedules_declares_none() -> None:
    """The error has the lines to write."""
    app = App(schedule=None)

    with pytest.raises(InvalidModel, match=r"registry 'shop' has no schedules: .*Jobs\(Job, schedule=Schedule\)"):
        app.schedule()

    assert app.jobs.declarations == {}
