"""An exception as text that can always be stored, and that shows no secret it can avoid."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from typing import cast

FRAMES = 12
"""Frames of a traceback that are kept: the innermost, of installed packages only the last few."""

INSTALLED_FRAMES = 5

MESSAGE_BYTES = 2048
"""Of what an error says: SQLAlchemy's has the whole statement in it."""

LONGEST_STACK = 200
"""Frames that are looked at: a recursion has thousands."""

_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]|[\\/]lib[\\/]python\d|<[^>]*(?:frozen|generated|string)")

_ADVERTS = ("(Background on this error at: ", "[SQL parameters hidden due to hide_parameters=True]")
"""SQLAlchemy ends its messages with these; a reader looks there for the error."""

_PARTS_OF_ERRORS = ("[SQL:", "HINT:", "CONTEXT:", "QUERY:", "Traceback ", "The above exception", "During handling")

_PASSWORD_GIVEN = re.compile(r"(?i)(\bpassword\s{0,3}=\s{0,3})(?:'[^']*'|[^\s'\"&;,)]+)")

_USER_IN_URL = re.compile(r"(?=(://[^\s:/@]*:)(?!\d+/))")

_END_OF_URL = re.compile(r"[\s'\"]|\Z")


def describe(error: BaseException, *, redact: Callable[[str], str] | None = None) -> str:
    """Give the traceback's end and the error, without local variables, statement parameters or passwords in URLs.

    :param redact: the app's own filter, called last; when it raises, only the error's class is kept
    """
    try:
        text = _traceback(error)
    except BaseException:  # noqa: BLE001  # an error that can't be printed must still be one that is stored
        text = type(error).__name__
    return _kept(text, error, redact)


def _traceback(error: BaseException) -> str:
    _hide_parameters(error)
    told = traceback.TracebackException.from_exception(error, limit=-LONGEST_STACK)
    for part in _parts(told):
        # SQLAlchemy alone has twenty frames between a flush and its driver: the app's own would not be among twelve.
        own = [frame for frame in part.stack[:-INSTALLED_FRAMES] if not is_installed(frame.filename)]
        part.stack[:] = [*own, *part.stack[-INSTALLED_FRAMES:]][-FRAMES:]
    lines = "".join(told.format()).splitlines()
    return "\n".join(line for line in lines if not any(advert in line for advert in _ADVERTS)).rstrip()


def _parts(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Give all tracebacks that are printed with it."""
    left: list[traceback.TracebackException | None] = [told]
    while left:
        part = left.pop()
        if part is not None:
            yield part
            left += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or [])]


def is_installed(file: str) -> bool:
    """Tell the frames of installed packages from those of the app's own code, by their file."""
    return _INSTALLED.search(file) is not None


def _hide_parameters(error: BaseException) -> None:
    for link in _chain(error):
        # SQLAlchemy's StatementError prints the statement's parameters unless told otherwise.
        if getattr(link, "hide_parameters", None) is False:
            link.hide_parameters = True  # type: ignore[attr-defined]  # not every exception has it; this one does


def reason(error: BaseException, *, redact: Callable[[str], str] | None = None) -> str:
    """Give what an error says, without its traceback: for those that a handler raises on purpose."""
    try:
        _hide_parameters(error)
        text = str(error)
    except BaseException:  # noqa: BLE001  # a broken __str__ of the app's must not lose the outcome
        text = "(it has no text)"
    return _kept(f"{type(error).__name__}: {text}", error, redact)


def _kept(text: str, error: BaseException, redact: Callable[[str], str] | None) -> str:
    text = _shortened(storable(mask(_without_values(text))))
    if redact is None:
        return text
    try:
        return storable(redact(text))
    except BaseException as broken:  # noqa: BLE001  # the app's own function; its failure must show nothing
        return f"{type(error).__name__} (its text is withheld: the redact function raised {type(broken).__name__})"


def _without_values(text: str) -> str:
    """Hide the values of rows, which PostgreSQL quotes in the DETAIL of its errors, down to the next part."""
    if "DETAIL:" not in text:
        return text
    lines: list[str] = []
    is_hidden = False
    for line in text.splitlines():
        is_hidden = line.startswith("DETAIL:") or (is_hidden and not line.startswith(_PARTS_OF_ERRORS))
        if line.startswith("DETAIL:"):
            head, _, _ = line.partition("=(") if "=(" in line else line.partition("(")
            lines.append(f"{head} (its values are hidden)" if "(" in line else line)
        elif not is_hidden:
            lines.append(line)
    return "\n".join(lines)


def _shortened(text: str) -> str:
    """Take out the middle of a long message: the frames before it, and its first words, say most."""
    lines = text.splitlines()
    number = _message_at(lines_of(text))
    message = "\n".join(lines[number:])
    raw = message.encode("utf-8", "backslashreplace")
    if len(raw) <= MESSAGE_BYTES:
        return text
    half = MESSAGE_BYTES // 2
    ends = (raw[:half].decode("utf-8", "ignore"), raw[-half:].decode("utf-8", "ignore"))
    return "\n".join([*lines[:number], " […] ".join(ends)])


def mask(text: str) -> str:
    """Hide passwords in URLs and in connection strings."""
    return _PASSWORD_GIVEN.sub(r"\1***", _without_passwords(text))


def _without_passwords(text: str) -> str:
    """Hide what stands between a user and the last `@` of a URL, reading each letter once, however many URLs it has."""
    if "@" not in text:
        return text
    kept: list[str] = []
    done = end = at = 0
    for found in _USER_IN_URL.finditer(text):
        begin = found.end(1)
        if begin >= end and (ending := _END_OF_URL.search(text, begin)) is not None:
            end, at = ending.start(), text.rfind("@", begin, ending.start())
        if begin >= done and at > begin:
            kept += text[done:begin], "***"
            done = at
    return "".join([*kept, text[done:]])


def storable(text: str) -> str:
    """Replace what a text column cannot hold: NUL and lone surrogates."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def in_ascii(text: str) -> str:
    """Write *text* so that a database of any encoding can hold it."""
    return text.encode("ascii", "backslashreplace").decode()


def start_of(line: str, limit: int) -> str:
    """Keep the start of a line, at most *limit* bytes of UTF-8: it names the error."""
    raw, mark = line.encode("utf-8", "backslashreplace"), " […]"
    return line if len(raw) <= limit else raw[: limit - len(mark.encode())].decode("utf-8", "ignore") + mark


def clip(text: str, limit: int) -> str:
    """Keep the end of *text*, at most *limit* bytes of UTF-8: the end of a traceback says most."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    mark = "[…] "
    return mark + raw[len(raw) - limit + len(mark.encode()) :].decode("utf-8", "ignore")


FRAME = re.compile(r'\s+File "(.+)", line (\d+), in (.+)')
"""A line of a traceback: file, line, function."""

_GUTTER = re.compile(r"\s*(?:\|\s?|\+[-+ 0-9]*(?:\Z|(?=Exception Group)))")
"""What an exception group's traceback has before its lines."""


def lines_of(text: str) -> list[str]:
    """Give the lines of an error text as they are without exception groups."""
    lines = text.splitlines()
    if "Exception Group Traceback" not in text:
        return lines
    return [_GUTTER.sub("", line, count=1) if _GUTTER.match(line) else line for line in lines]


def headline(text: str) -> str:
    """Give the line that names the error: the first after the last frame; where there is no traceback, the first."""
    lines = lines_of(text)
    after = [line for line in lines[_message_at(lines) :] if line.strip()]
    return after[0].strip() if after else ""


def _message_at(lines: list[str]) -> int:
    """Find the message: the first line after the last frame that is not indented, as a frame's own lines are."""
    last_frame = next((number for number in range(len(lines) - 1, -1, -1) if FRAME.match(lines[number])), -1)
    behind = range(last_frame + 1, len(lines))
    return next(
        (number for number in behind if lines[number].strip() and not lines[number][0].isspace()), last_frame + 1
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Give all errors that its traceback prints: causes, contexts, and the members of groups."""
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        links += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            links += cast("BaseExceptionGroup[BaseException]", link).exceptions
