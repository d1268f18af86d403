from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from sqla_jobs.errors import GiveUp, Retry
from sqla_jobs.rules.failure import clip, describe, headline, reason
from sqla_jobs.rules.groups import Failure, failure_in
from sqla_jobs.rules.settlement import KEPT_ERROR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

anything = st.text(st.characters(codec=None))


class CardRefused(Exception): ...


def refuse(card: str) -> None:
    raise CardRefused(f"{card} was refused")


def reach(host: str) -> None:
    raise ConnectionError(f"can't reach {host}")


def parse(text: str) -> Any:
    return json.loads(f"[{text}")  # which raises in the standard library


def constraint(key: int) -> None:
    detail = f'duplicate key value violates "job_pkey"\nDETAIL:  Key (id)=({key}) already exists.'
    raise IntegrityError("INSERT INTO job (id) VALUES (%s)", (key,), Exception(detail))


def while_handling(card: str) -> None:
    try:
        reach(card)
    except ConnectionError:
        refuse(card)


def because_of(card: str) -> None:
    try:
        reach(card)
    except ConnectionError as error:
        raise RuntimeError(f"no card {card}") from error


def in_a_group(card: str) -> None:
    errors: list[Exception] = []
    for function in (reach, refuse):
        try:
            function(card)
        except Exception as error:  # noqa: BLE001  # as a TaskGroup gathers them
            errors.append(error)
    raise ExceptionGroup(f"{len(errors)} of {card}", errors)


def in_a_nested_group(card: str) -> None:
    try:
        in_a_group(card)
    except ExceptionGroup as group:
        raise ExceptionGroup("outer", [group]) from None


def with_a_note(card: str) -> None:
    error = CardRefused(card)
    error.add_note(f"File notes are no frames: {card}")
    raise error


def of_many_lines(card: str) -> None:
    raise CardRefused(f"{card}\n\n  more of it\nValueError: not this")


def local(card: str) -> None:
    class Inner(Exception): ...

    raise Inner(card)


def without_text(_: str) -> None:
    raise CardRefused


def in_syntax(text: str) -> None:
    compile(f"f({text}", "<string>", "exec")


def text_of(function: Callable[[str], object], given: str) -> str:
    """Give what a row would say of the error that *function* raises."""
    try:
        function(given)
    except Exception as error:  # noqa: BLE001  # whatever it is
        return describe(error)
    pytest.fail("it raised nothing")


RAISED: dict[str, tuple[Callable[[str], object], str, str]] = {
    "error of the app's": (refuse, f"{__name__}.CardRefused", "refuse"),
    "built-in error": (reach, "ConnectionError", "reach"),
    "raised in the standard library": (parse, "json.decoder.JSONDecodeError", "parse"),
    "statement, with details": (lambda card: constraint(int(card)), "sqlalchemy.exc.IntegrityError", "constraint"),
    "during another": (while_handling, f"{__name__}.CardRefused", "refuse"),
    "because of another": (because_of, "RuntimeError", "because_of"),
    "group": (in_a_group, f"{__name__}.CardRefused", "refuse"),
    "nested group": (in_a_nested_group, f"{__name__}.CardRefused", "refuse"),
    "with a note": (with_a_note, f"{__name__}.CardRefused", "with_a_note"),
    "of many lines": (of_many_lines, f"{__name__}.CardRefused", "of_many_lines"),
    "class of a function": (local, f"{__name__}.local.<locals>.Inner", "local"),
    "without a text": (without_text, f"{__name__}.CardRefused", "without_text"),
    "syntax": (in_syntax, "SyntaxError", "in_syntax"),
}


@pytest.mark.parametrize("name", RAISED)
def test_failure_is_of_its_class_at_its_place(name: str) -> None:
    """The innermost frame of the app's own code counts, the last error of a chain or group, and no word of its text."""
    function, error, place = RAISED[name]

    first, second = (failure_in(text_of(function, given)) for given in ("17", "4711"))

    assert first == second
    assert first.key == second.key
    assert first.error == error
    assert first.place is not None
    assert re.fullmatch(rf"test_groups\.py:\d+ in {place}", first.place)


def test_same_error_at_another_place_is_another_failure() -> None:
    """Each line that raises, and each class, has a key of its own."""
    keys = {failure_in(text_of(function, "1")).key for function, _, _ in RAISED.values()}

    # The same line raises for the plain error, the one during another, and the groups.
    assert len(keys) == len(RAISED) - 3


def test_failure_of_installed_code_alone_is_at_its_innermost_frame() -> None:
    """Where no frame is the app's own there is still a place, whatever parts folders; generated code is nobody's."""
    frames = [
        ("/srv/app/.venv/lib/python3.11/site-packages/requests/api.py", 9, "get"),
        ("<sqlalchemy generated warned() wrapper>", 2, "_flush"),
        ("C:\\app\\site-packages\\urllib3\\pool.py", 70, "urlopen"),
    ]
    text = "Traceback (most recent call last):\n"
    text += "".join(f'  File "{file}", line {line}, in {name}\n    pass\n' for file, line, name in frames)
    own = text.replace("/srv/app/.venv/lib/python3.11/site-packages/requests", "/srv/app/lib/shop")

    assert failure_in(f"{text}urllib3.Refused: no").place == "pool.py:70 in urlopen"
    assert failure_in(f"{own}urllib3.Refused: no").place == "api.py:9 in get"


WITHOUT_TRACEBACK: dict[str, tuple[list[str], str]] = {
    "give up": ([reason(GiveUp("no order 5")), reason(GiveUp("no order 6"))], "GiveUp"),
    "retry": ([reason(Retry("busy")), reason(Retry())], "Retry"),
    "worker vanished": (
        [
            f"the worker {worker} vanished: the lease of attempt {attempt} ran out"
            for worker, attempt in (("shop:web-1:4711:0a1b2c3d", 1), ("shop:b:1:ffffffff", 12), ("None", 1))
        ],
        "the worker # vanished: the lease of attempt # ran out",
    ),
    "worker of two words vanished": (
        [
            f"the worker {worker} vanished: the lease of attempt {attempt} ran out"
            for worker, attempt in (("night shift:web-1:4711:0a1b2c3d", 1), ("night shift:web-b:5:f0f0f0f0", 2))
        ],
        "the worker # vanished: the lease of attempt # ran out",
    ),
    "timeout": (["TimeoutError: handler 'send' ran longer than its timeout of 0:02:00"], "TimeoutError"),
    "refunded": (
        ["refunded 100 times for errors of the database; the last one: OSError: 5"] * 2,
        "refunded # times for errors of the database; the last one: OSError: #",
    ),
    "cancelled": (["cancelled"], "cancelled"),
    "cancelled for a reason": (["order 5 was withdrawn", "order 77 was withdrawn"], "order # was withdrawn"),
    "empty": (["", " ", "\n\n"], ""),
}


@pytest.mark.parametrize("name", WITHOUT_TRACEBACK)
def test_failure_without_a_traceback_is_told_by_its_text(name: str) -> None:
    """What people and the library write is one failure whatever its numbers and names of workers, and has no place."""
    texts, error = WITHOUT_TRACEBACK[name]

    failures = {failure_in(text) for text in texts}

    assert failures == {Failure(error, None)}


def test_key_is_the_same_in_every_process() -> None:
    """It is written into commands and runbooks: eight letters that hang on class and place alone."""
    failure = Failure("shop.errors.CardRefused", "pay.py:12 in charge")

    assert (failure.key, Failure("GiveUp", None).key) == ("1e6d577b", "4aeb8f00")


@pytest.mark.parametrize("bytes_kept", [400, KEPT_ERROR_BYTES])
def test_clipped_traceback_is_of_the_same_failure(bytes_kept: int) -> None:
    """What is cut off at the beginning takes nothing from the class, nor from the place while its frame is left."""
    text = text_of(refuse, "1")
    long = "".join(f'  File "/srv/app/shop.py", line {line}, in deep\n    deep()\n' for line in range(100))
    deep = text.replace("(most recent call last):\n", f"(most recent call last):\n{long}")

    assert failure_in(clip(deep, bytes_kept)) == failure_in(text)


@given(anything)
def test_any_text_has_a_failure(text: str) -> None:
    """Whatever somebody wrote into a row has a key, and a bounded name."""
    failure = failure_in(text)

    assert re.fullmatch("[0-9a-f]{8}", failure.key)
    assert "\n" not in failure.error
    assert failure == failure_in(text)


@given(st.lists(st.sampled_from(['  File "a.py", line 3, in f', "    g()", "  | ", "+-+--- 1 ---", "A: b", "A", ""])))
def test_any_lines_of_tracebacks_have_a_failure(lines: list[str]) -> None:
    """Torn and nested tracebacks are read like whole ones."""
    text = "\n".join(lines)

    assert failure_in(text).place in {None, "a.py:3 in f"}
    assert (failure_in(text).place is None) is ("  File" not in text)
    assert headline(text) in {"", "g()", "A: b", "A", "+-+--- 1 ---", 'File "a.py", line 3, in f'} or "|" in text
