"""What commands print: the answer to stdout, as tables or as one JSON document, and all else to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from sqla_jobs.cli.stops import NO, Stop, refused
from sqla_jobs.rules.masking import printable

STYLES: Final = {
    "done": "green",
    "failed": "red",
    "dead": "red",
    "running": "cyan",
    "error": "red",
    "warning": "yellow",
}

_SHORT: Final = 500
"""Jobs that are moved at once."""

_GAP: Final = 2
"""Spaces between columns."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A table: what its columns are called, and its rows.

    :ivar numbers: the columns that are set to the right
    :ivar has_remarks: the last column has long texts; where the terminal is too narrow they stand below their rows
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()
    has_remarks: bool = False


@dataclass(frozen=True, slots=True)
class Sheet:
    """Names and their values, one a line; a value may have several lines."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """The parts of an answer, one below the other: texts, tables, sheets."""

    parts: Sequence[str | Listing | Sheet] = field(default_factory=tuple)


class ReaderGone(Exception):
    """Who reads the output has closed it."""


class Terminal:
    """Where a command prints."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self.out = _Console(file=sys.stdout, highlight=False)
        self.err = _Console(file=sys.stderr, highlight=False)
        # Not the consoles' own idea of it: FORCE_COLOR, which CI sets, makes terminals of files.
        self.is_read_by_people = sys.stdout.isatty()
        self.is_answered_by_people = sys.stdin.isatty() and sys.stderr.isatty()

    def show(self, document: dict[str, Any], page: Callable[[], Page]) -> None:
        """Print the answer."""
        if self.is_json:
            with _reader():
                sys.stdout.write(json.dumps(_plain(document), indent=2) + "\n")
            return
        for part in page().parts:
            self.write(self.rendered(part))

    def write(self, what: RenderableType) -> None:
        """Print a part of the answer.

        :raises ReaderGone: nobody reads it
        :raises Stop: it can't be written
        """
        with _reader():
            self.out.print(what, soft_wrap=True)

    def flush(self) -> None:
        """Have all that was printed read.

        :raises ReaderGone: nobody does
        :raises Stop: it can't be written
        """
        with _reader():
            sys.stdout.flush()

    def rendered(self, part: str | Listing | Sheet) -> Text:
        """Set a part of a page for this terminal; where stdout is none, a row is one line, whatever its length."""
        match part:
            case str():
                return Text(printable(part))
            case Sheet():
                return _sheet(part)
            case Listing():
                return _table(part, self.out.width if self.is_read_by_people else None)

    def note(self, text: str, *, style: str = "") -> None:
        """Say something beside the answer."""
        self._tell(Text(printable(text), style=style))

    def fail(self, text: str) -> None:
        """Say what went wrong."""
        self._tell(Text.assemble(("Error: ", "bold red"), printable(text)))

    def _tell(self, text: Text) -> None:
        # Where stderr takes nothing, the exit code has to say it.
        with contextlib.suppress(ReaderGone, OSError):
            self.err.print(text, soft_wrap=True)

    def confirm(self, question: str) -> bool:
        """Ask, and give whether the answer is yes.

        :raises Stop: nobody is there to ask
        """
        if not self.is_answered_by_people:
            raise refused(f"{question} Nobody is there to ask: add --yes, or see first what --dry-run says")
        self.err.print(Text(f"{printable(question)} [y/N] "), end="", soft_wrap=True)
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    def progress(self, what: str, total: int | None) -> tuple[AbstractContextManager[Any], Callable[[int], None]]:
        """Give a progress bar to enter, and what moves it on; short work and what no terminal shows has none."""
        is_short = total is not None and total <= _SHORT
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        bar = Progress(*columns, TimeRemainingColumn(), console=self.err, disable=is_short or not sys.stderr.isatty())
        task = bar.add_task(what, total=total)
        return bar, lambda count: bar.update(task, advance=count)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the program with 1, which says no.
        raise ReaderGone


def drop_output() -> None:
    """Let what is still to be written go: it would be tried again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _reader() -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        drop_output()
        raise Stop(f"the answer can't be written: {error}", code=NO) from error


def _table(listing: Listing, width: int | None) -> Text:
    rows = [[_flat(cell) for cell in row] for row in listing.rows]
    widths = [max(map(cell_len, column)) for column in zip(listing.columns, *rows, strict=True)]
    is_wide = width is not None and sum(widths) + _GAP * (len(widths) - 1) > width
    count = len(widths) - 1 if listing.has_remarks and is_wide else len(widths)
    numbers = [name in listing.numbers for name in listing.columns]
    shape = [*zip(widths[:count], numbers, strict=False)]
    text = _row(listing.columns, shape, style="bold")
    for row in rows:
        text.append("\n").append_text(_row(row, shape))
        if count < len(row) and row[-1]:
            text.append(f"\n{' ' * (widths[0] + _GAP)}{row[-1]}", style="dim")
    return text


def _row(cells: Sequence[str], shape: Sequence[tuple[int, bool]], *, style: str = "") -> Text:
    text = Text()
    for number, (cell, (width, is_number)) in enumerate(zip(cells, shape, strict=False)):
        space = " " * (width - cell_len(cell))
        text.append(" " * _GAP if number else "")
        text.append(space if is_number else "").append(cell, style=style or STYLES.get(cell, ""))
        text.append("" if is_number else space)
    text.rstrip()
    return text


def _flat(cell: str) -> str:
    return printable(" ".join(cell.split("\n")).replace("\t", " "))


def _sheet(sheet: Sheet) -> Text:
    width = max((len(name) for name, _ in sheet.rows), default=0)
    lines = list[Text]()
    for name, value in sheet.rows:
        first, *more = printable(value).split("\n")
        line = Text().append(f"{name:<{width}}", style="bold").append(" " * _GAP).append(first, STYLES.get(first, ""))
        line.rstrip()
        lines += [line, *(Text(f"    {each}") for each in more)]
    return Text("\n").join(lines)


def _plain(value: Any) -> Any:
    """Write what JSON has no word for: times in UTC, durations as seconds."""
    match value:
        case dict():
            return {str(key): _plain(part) for key, part in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]  # JSON
        case list() | tuple():
            return [_plain(part) for part in cast("list[Any]", value)]
        case set() | frozenset():
            return sorted(cast("set[Any]", value))
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case _:
            return value


def facts_of(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Give the named attributes of a value, for a document."""
    return {name: getattr(value, name) for name in names}
