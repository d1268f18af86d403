"""Which failures are the same failure: those of one kind of error at one place of the code."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from sqla_jobs.rules.failure import FRAME, clip, headline, is_installed, lines_of

_CLASS = re.compile(r"[A-Za-z_][\w.]*(?:\.<locals>[\w.<>]*)?(?=: |:?$)")

_VARIABLE = re.compile(r"(?<=the worker ).+(?= vanished)|\d+(?:[.:]\d+)*")

_LONGEST = 120
"""Bytes of a text that names no class of error."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an error text says of its cause.

    :ivar error: the exception's class as the traceback names it; for other texts the text, its numbers left out
    :ivar place: `file.py:123 in function`, the innermost frame that is no installed package's; None without a traceback
    :ivar type: the job's where there is no place: one `GiveUp` has nothing to do with another handler's
    """

    error: str
    place: str | None
    type: str | None = None

    @property
    def key(self) -> str:
        """Name it in eight letters, the same on every host and in every process."""
        text = "\n".join([self.error, self.place or "", *([self.type] if self.type else [])])
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]


def failure_in(text: str, type_: str | None = None) -> Failure:
    """Read an error text, as the row of a job of that type has it."""
    line = headline(text)
    named = _CLASS.match(line)
    place = _place(text)
    error = named[0] if named else clip(_VARIABLE.sub("#", line), _LONGEST)
    return Failure(error, place, None if place else type_)


def _place(text: str) -> str | None:
    frames = [frame for frame in map(FRAME.match, reversed(lines_of(text))) if frame]
    if not frames:
        return None
    frame = next((frame for frame in frames if not is_installed(frame[1])), frames[0])
    file = re.split(r"[\\/]", frame[1])[-1]
    return f"{file}:{frame[2]} in {frame[3]}"
