from __future__ import annotations

import json
import re
from typing import Any, SupportsIndex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError, OperationalError

from sqla_jobs.errors import GiveUp
from sqla_jobs.rules import failure
from sqla_jobs.rules.failure import FRAMES, clip, describe, headline, in_ascii, mask, reason, storable

MARKER = "s3cr3t"

anything = st.text(st.characters(codec=None))


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """Raise *error*, so that it has a traceback, with a secret among the locals."""
    password = MARKER
    try:
        if cause is not None:
            raise error from cause
        raise error
    except type(error) as caught:
        assert password
        return caught


def deep(depth: int) -> None:
    if depth == 0:
        raise LookupError("at the bottom")
    deep(depth - 1)


def is_storable(text: str) -> bool:
    return "\x00" not in text and json.loads(json.dumps(text)) == text and text.encode().decode() == text


def test_describe_gives_the_traceback_and_the_error() -> None:
    """The text names the place, the class and the message."""
    text = describe(raised(ValueError("no such order")))

    assert text.startswith("Traceback")
    assert __file__ in text
    assert text.endswith("ValueError: no such order")


def test_describe_keeps_the_innermost_frames_when_the_traceback_is_deep() -> None:
    """Of a deep traceback only the end is kept, where the error is."""
    with pytest.raises(LookupError) as caught:
        deep(100)

    text = describe(caught.value)

    assert text.count("File ") <= FRAMES
    assert text.endswith("LookupError: at the bottom")


def test_describe_shows_no_local_variables() -> None:
    """A secret in a local variable does not reach the row."""
    assert MARKER not in describe(raised(ValueError("no such order")))


def statement_error() -> IntegrityError:
    return IntegrityError("INSERT INTO card VALUES (?)", (MARKER,), Exception("constraint failed"))


@pytest.mark.parametrize(
    "error",
    [
        raised(statement_error()),
        raised(RuntimeError("wrapped"), cause=statement_error()),
        raised(ExceptionGroup("several", [ValueError("one"), statement_error()])),
        raised(ExceptionGroup("outer", [ExceptionGroup("inner", [statement_error()])])),
        raised(RuntimeError("wrapped"), cause=ExceptionGroup("several", [statement_error()])),
    ],
    ids=["plain", "cause", "group", "nested group", "group as cause"],
)
def test_describe_hides_statement_parameters(error: BaseException) -> None:
    """The parameters of a failed statement stay out of the text, wherever in the chain the statement's error is."""
    text = describe(error)

    assert "INSERT INTO card" in text
    assert MARKER not in text


def test_describe_hides_statement_parameters_of_an_error_during_another() -> None:
    """The error that was being handled when another came is printed, too, and hides its parameters."""
    try:
        try:
            raise statement_error()
        except IntegrityError:
            raise KeyError("card")  # noqa: B904  # an error with a context and no cause is what is tested
    except KeyError as caught:
        text = describe(caught)

    assert "INSERT INTO card" in text
    assert MARKER not in text


def test_describe_ends_when_errors_refer_to_each_other() -> None:
    """A chain of causes that is a ring is walked once."""
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    text = describe(raised(first))

    assert "first" in text
    assert "second" in text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"postgresql+psycopg://shop:{MARKER}@db/shop", "postgresql+psycopg://shop:***@db/shop"),
        (f"redis://:{MARKER}@cache", "redis://:***@cache"),
        (f"at https://u:{MARKER}@a and https://v:{MARKER}@b", "at https://u:***@a and https://v:***@b"),
        (f"amqp://u:{MARKER}:more@broker//", "amqp://u:***@broker//"),
        ("https://example.com:8080/@me", "https://example.com:8080/@me"),
        ("mail to ann@example.com: sent", "mail to ann@example.com: sent"),
    ],
)
def test_mask_hides_passwords_of_urls(text: str, masked: str) -> None:
    """A password in a URL is hidden; hosts, ports and mail addresses stay."""
    assert mask(text) == masked


PASSWORD_IN_URL = re.compile(r"(://[^\s:/@]*:)(?!\d+/)[^\s'\"]+@")
"""What is hidden, in one pattern; where a text has many URLs, it reads the rest of it for each."""


@given(text=st.lists(st.sampled_from(["://", ":", "/", "@", "1", "a", " ", "'", "\n"]), max_size=30).map("".join))
@example(text="://a:b://c:d@e@f")
@example(text="://:1/://:@@")
@example(text="://u:8/p@h ://u:p@h")
@example(text="://u:@h")
@example(text="://u:p'@h://v:q@i")
def test_mask_hides_what_one_pattern_finds(text: str) -> None:
    """Whatever stands around URLs and in them, it is from the colon behind a user to the last @ before a blank."""
    assert mask(text) == PASSWORD_IN_URL.sub(r"\1***@", text)


class Counted(str):
    """Text that counts the letters that are looked through for an @."""

    __slots__ = ("read",)

    def __init__(self, _text: str) -> None:
        self.read = 0

    def rfind(self, sub: str, start: SupportsIndex | None = None, end: SupportsIndex | None = None) -> int:
        first, last = int(start or 0), len(self) if end is None else int(end)
        self.read += last - first
        return super().rfind(sub, first, last)


class CountedEnd:
    """The pattern of a URL's end, which counts the letters that it is looked for in."""

    def __init__(self) -> None:
        self.read = 0

    def search(self, text: str, begin: int) -> re.Match[str] | None:
        found = re.compile(r"[\s'\"]|\Z").search(text, begin)
        self.read += (len(text) if found is None else found.end()) - begin
        return found


@pytest.mark.parametrize(("unit", "hidden"), [("http://h:80,", 0), ("://:", 0), ("://u:p@h,", 1), ("://u:p@h ", 5_000)])
def test_mask_reads_each_letter_once(unit: str, hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is all URLs is looked through once for their ends, and once for their @."""
    text, end = Counted("@ " + unit * 5_000), CountedEnd()
    monkeypatch.setattr(failure, "_END_OF_URL", end)

    masked = mask(text)

    assert masked.count("***") == hidden
    assert 0 < end.read <= len(text)
    assert 0 < text.read <= len(text)


@given(text=anything)
def test_in_ascii_says_the_same_once(text: str) -> None:
    """Text of any letters becomes text of ASCII, which stays as it is."""
    plain = in_ascii(text)

    assert plain.isascii()
    assert in_ascii(plain) == plain
    assert plain == text or not text.isascii()


def test_describe_masks_urls_in_messages() -> None:
    """A driver that quotes the URL it was given shows no password."""
    error = OperationalError(None, None, Exception(f"can't reach postgresql://shop:{MARKER}@db/shop"))

    assert MARKER not in describe(raised(error))


def test_redact_is_called_last_and_gives_what_is_kept() -> None:
    """The app's own filter sees the whole text, and what it gives is stored."""
    error = raised(ValueError(f"token {MARKER}"))

    assert describe(error, redact=lambda text: text.replace(MARKER, "#")).endswith("ValueError: token #")
    assert reason(GiveUp(MARKER), redact=lambda _: "kept") == "kept"


def test_redact_that_raises_withholds_the_text() -> None:
    """A broken filter shows nothing but the class of the error."""

    def broken(text: str) -> str:
        raise RuntimeError(text)

    text = describe(raised(ValueError(MARKER)), redact=broken)

    assert "ValueError" in text
    assert "RuntimeError" in text
    assert MARKER not in text


@pytest.mark.parametrize("gift", [None, 5, b"bytes"])
def test_redact_that_gives_no_text_withholds_the_text(gift: Any) -> None:
    """A filter that forgets its return shows nothing, and the attempt is still recorded."""
    text = describe(raised(ValueError(MARKER)), redact=lambda _: gift)

    assert "ValueError" in text
    assert MARKER not in text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class UnspeakableGiveUp(GiveUp):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_error_that_cannot_be_printed_is_described_by_its_class() -> None:
    """An exception whose own `__str__` fails is still recorded."""
    assert "Unspeakable" in describe(raised(Unspeakable()))
    assert "UnspeakableGiveUp" in reason(UnspeakableGiveUp())


@given(message=anything)
def test_error_text_is_always_storable(message: str) -> None:
    """Whatever an error says, its text has no NUL and no lone surrogate, and survives UTF-8 and JSON."""
    error = raised(ValueError(message))

    assert is_storable(describe(error))
    assert is_storable(reason(error))
    assert is_storable(describe(error, redact=lambda text: text + message))


@given(text=anything)
def test_storable_changes_only_what_cannot_be_stored(text: str) -> None:
    """Text that a column can hold stays as it is, and a second pass changes nothing."""
    stored = storable(text)

    assert is_storable(stored)
    assert storable(stored) == stored
    if not any(letter == "\x00" or "\ud800" <= letter <= "\udfff" for letter in text):
        assert stored == text


@given(text=anything, limit=st.integers(10, 200))
def test_clip_keeps_the_end_within_the_limit(text: str, limit: int) -> None:
    """Clipped text has at most that many bytes of UTF-8, is valid, and ends as the whole does."""
    clipped = clip(text, limit)

    assert len(clipped.encode()) <= limit
    whole = text.encode("utf-8", "backslashreplace").decode()
    if len(whole.encode()) <= limit:
        assert clipped == whole
    else:
        assert clipped.startswith("[…] ")
        assert whole.endswith(clipped.removeprefix("[…] "))


def grouped() -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", [caught(ValueError("first")), caught(KeyError("second"))])


def caught(error: Exception) -> Exception:
    raised(error)
    return error


NAMED: dict[str, tuple[BaseException, str]] = {
    "plain": (ValueError("no such order"), "ValueError: no such order"),
    "without text": (ValueError(), "ValueError"),
    "of many lines": (ValueError("first\nsecond: x\n  third"), "ValueError: first"),
    "statement": (statement_error(), "sqlalchemy.exc.IntegrityError: (builtins.Exception) constraint failed"),
    "group": (grouped(), "KeyError: 'second'"),
    "group in a group": (ExceptionGroup("outer", [grouped()]), "KeyError: 'second'"),
    "group of errors that nobody raised": (
        ExceptionGroup("several", [ValueError("x"), KeyError("y")]),
        "ExceptionGroup: several (2 sub-exceptions)",
    ),
    "table in the text": (ValueError("| a | b |\n+---+---+"), "ValueError: | a | b |"),
}


@pytest.mark.parametrize("name", NAMED)
def test_headline_is_the_line_that_names_the_error(name: str) -> None:
    """Of a traceback it is the first line after the last frame, whatever surrounds it."""
    error, line = NAMED[name]

    assert headline(describe(raised(error))) == line
    assert headline(describe(raised(error, cause=OSError("before")))) == line


def test_headline_is_of_the_error_that_came_last() -> None:
    """Of an error during another, the one that ended the attempt."""
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raise KeyError("second")  # noqa: B904  # an error with a context and no cause is what is tested
    except KeyError as error:
        assert headline(describe(error)) == "KeyError: 'second'"


TOLD: dict[str, tuple[str, str]] = {
    "reason": ("the order was withdrawn\nby Ann", "the order was withdrawn"),
    "empty": ("", ""),
    "blank": (" \n\t\n", ""),
    "after blank lines": ("\n\nlate", "late"),
    "indented": ("  only this", "only this"),
    "traceback cut at its beginning": (
        '[…] y\n  File "a.py", line 3, in pay\n    pay()\n    ~~~^^\nOSError: x',
        "OSError: x",
    ),
    "traceback cut at its end": ('Traceback …\n  File "a.py", line 3, in pay\n    pay()', "pay()"),
    "repeated lines": ('  File "a.py", line 3, in f\n    f()\n  [Previous line repeated 9 times]\nA: b', "A: b"),
}


@pytest.mark.parametrize("name", TOLD)
def test_headline_of_what_is_no_whole_traceback(name: str) -> None:
    """What people have written, or a limit has cut, has its first line, or the one that is left."""
    text, line = TOLD[name]

    assert headline(text) == line


@given(text=anything)
def test_headline_is_one_line_of_any_text(text: str) -> None:
    """Whatever a row holds has one line for a list, and an empty one only if there is nothing to read."""
    line = headline(text)

    assert len(line.splitlines()) <= 1
    assert line or not any(letter.isalnum() for letter in text)
