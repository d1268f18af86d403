"""What every command has: three options, and an end that is clean whatever happens."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Concatenate, Final, ParamSpec, cast, get_type_hints

import typer

from sqla_jobs.cli import stops
from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.terminal import ReaderGone, Terminal, drop_output
from sqla_jobs.rules.failure import describe, storable

P = ParamSpec("P")

_PANEL: Final = "Every command"

TRACEBACK_VARIABLE: Final = "SQLA_JOBS_TRACEBACK"

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app", "-a", metavar="MODULE:WORKER", help="The app's worker, or what makes it.", rich_help_panel=_PANEL
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=_PANEL)]
TracebackOption = Annotated[
    bool, typer.Option("--traceback", help="Show where errors come from.", rich_help_panel=_PANEL)
]


@dataclass(frozen=True)
class Basics:
    """The options of every command; they may also stand before it."""

    app: AppOption = None
    is_json: JsonOption = False
    has_traceback: TracebackOption = False

    def over(self, before: Basics | None) -> Basics:
        """Join with the options that stood before the command; those after it win."""
        if before is None:
            return self
        return Basics(
            app=self.app if self.app is not None else before.app,
            is_json=self.is_json or before.is_json,
            has_traceback=self.has_traceback or before.has_traceback,
        )


def command(
    group: typer.Typer, name: str, **options: Any
) -> Callable[[Callable[Concatenate[Cli, P], None]], Callable[Concatenate[Cli, P], None]]:
    """Make a command of a function: its first parameter is the `Cli`, the others are typer's.

    A parameter that is a dataclass stands for its fields: each is an option.
    """

    def register(function: Callable[Concatenate[Cli, P], None]) -> Callable[Concatenate[Cli, P], None]:
        basics = _options_of(Basics)

        @functools.wraps(function)
        def called(context: typer.Context, **given: Any) -> None:
            after = Basics(**{each.name: given.pop(each.name) for each in basics})
            guarded(after.over(context.obj), functools.partial(_call, function, given))

        own = [
            option
            for each in _parameters(function)
            for option in (_options_of(each.annotation) if is_dataclass(each.annotation) else [each])
        ]
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        signature = inspect.Signature([context, *own, *basics])
        untyped: Any = called
        untyped.__signature__ = signature
        untyped.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        group.command(name, **options)(called)
        return function

    return register


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    _cli, *own = inspect.signature(function).parameters.values()
    return [each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY) for each in own]


def _options_of(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name], default=each.default)
        for each in fields(kind)
    ]


def _call(function: Callable[..., None], given: dict[str, Any], cli: Cli) -> None:
    for value in given.values():
        _check_letters(value)
    function(cli, **{each.name: _gathered(each.name, each.annotation, given) for each in _parameters(function)})


def _check_letters(value: object) -> None:
    """Refuse bytes that are no text in this terminal's encoding: no database stores them."""
    texts = cast("list[object]", value) if isinstance(value, list) else [value]
    for text in texts:
        if isinstance(text, str) and storable(text) != text:
            raise stops.refused(f"{text!r} has bytes that are no text in this terminal's encoding")


def _gathered(name: str, kind: Any, given: dict[str, Any]) -> object:
    if not is_dataclass(kind):
        return given[name]
    make: Any = kind
    return make(**{each.name: given[each.name] for each in fields(kind)})


def guarded(basics: Basics, run: Callable[[Cli], None]) -> None:
    """Run a command; whatever ends it becomes an exit code and a text on stderr."""
    terminal = Terminal(is_json=basics.is_json)
    has_traceback = basics.has_traceback or os.environ.get(TRACEBACK_VARIABLE, "") not in {"", "0"}
    cli = Cli(terminal, app=basics.app)
    try:
        with cli:
            run(cli)
        terminal.flush()
    except KeyboardInterrupt:
        terminal.note("interrupted")
        raise typer.Exit(stops.INTERRUPTED) from None
    except ReaderGone:
        drop_output()
        raise typer.Exit(stops.BROKEN_PIPE) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:  # noqa: BLE001  # recorded: it is the exit code, and a text for people
        stop = stops.stop_for(error, cli.database)
        if has_traceback:
            terminal.note(describe(error))
        terminal.fail(str(stop))
        raise typer.Exit(stop.code) from None
