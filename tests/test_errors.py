from __future__ import annotations

import inspect
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from sqla_jobs import errors
from sqla_jobs.errors import (
    LONGEST_DELAY,
    EnqueueConflict,
    GiveUp,
    InvalidOption,
    JobSignal,
    PayloadError,
    PayloadTooLarge,
    Retry,
    Snooze,
    SqlaJobsError,
    UnknownHandler,
    WorkerError,
)


def error_classes() -> dict[str, type[Exception]]:
    return {
        name: thing
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, Exception) and thing.__module__ == errors.__name__
    }


def test_errors_have_one_root() -> None:
    """One `except SqlaJobsError` catches all that the library raises."""
    assert all(issubclass(error, SqlaJobsError) for error in error_classes().values())


def test_tree_in_the_docstring_names_every_error_below_its_parent() -> None:
    """The drawn tree is the tree: each class once, indented below the class that it is a child of."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        before, _, rest = line.rpartition("── ")
        names = rest.split()
        if not names or names[0] not in error_classes():
            continue
        depth = len(before) // 4
        path[depth:] = [names[0]]
        drawn[names[0]] = path[depth - 1] if depth else ""

    parents = {name: error.__mro__[1].__name__ for name, error in error_classes().items()}
    assert drawn == parents | {"SqlaJobsError": ""}


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InvalidOption, ValueError),
        (PayloadError, TypeError),
        (PayloadError, ValueError),
        (PayloadTooLarge, ValueError),
        (UnknownHandler, LookupError),
        (WorkerError, RuntimeError),
    ],
)
def test_error_is_also_the_builtin_that_fits(error: type[Exception], builtin: type[Exception]) -> None:
    """Code that knows nothing of this library catches a wrong value as it always does."""
    assert issubclass(error, builtin)


def test_signals_are_no_builtin_errors() -> None:
    """A handler's own `except ValueError` doesn't swallow the signal that it has raised."""
    assert not issubclass(JobSignal, ValueError | TypeError | LookupError | RuntimeError)


def test_errors_carry_their_facts() -> None:
    """What an error is about can be read from its attributes, and from its text."""
    conflict = EnqueueConflict("receipt:7")
    payload = PayloadError("argument 'when' is missing", handler="send", argument="when")

    assert conflict.key == "receipt:7"
    assert "'receipt:7'" in str(conflict)
    assert "roll back" in str(conflict)
    assert (payload.handler, payload.argument) == ("send", "when")


@pytest.mark.parametrize(
    "signal", [Retry, GiveUp, partial(Snooze, delay=timedelta(0))], ids=["Retry", "GiveUp", "Snooze"]
)
def test_signal_says_its_reason(signal: Any) -> None:
    """The reason is the signal's text; without one it says what it is."""
    assert str(signal("no stock")) == "no stock"
    assert str(signal(""))


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(seconds=5), LONGEST_DELAY])
def test_signal_keeps_a_delay_in_range(delay: timedelta) -> None:
    """Both ends are in range."""
    assert Retry(delay=delay).delay == delay
    assert Snooze(delay=delay).delay == delay


def test_retry_without_a_delay_leaves_it_to_the_backoff() -> None:
    """No delay is not a delay of zero."""
    assert Retry("again").delay is None


@pytest.mark.parametrize("signal", [Retry, Snooze])
@pytest.mark.parametrize(
    ("delay", "remedy"),
    [
        (timedelta(seconds=-1), "from 0"),
        (LONGEST_DELAY + timedelta(microseconds=1), "from 0"),
        (timedelta.max, "from 0"),
        (5, r"timedelta\(seconds=…\)"),
        (float("nan"), r"timedelta\(seconds=…\)"),
    ],
)
def test_signal_with_a_delay_out_of_range_is_refused_where_it_is_raised(signal: Any, delay: Any, remedy: str) -> None:
    """A wrong delay is an `InvalidOption` at the handler's own line."""
    with pytest.raises(InvalidOption, match=remedy):
        signal("later", delay=delay)
