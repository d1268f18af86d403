"""What text may be a key."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from sqla_jobs import InvalidOption, enqueue
from tests.operations.shop import Job, send

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

CHANCE = random.Random(32)


def text(alphabet: str, length: int) -> str:
    """Give a text that no database can press into less room."""
    return "".join(CHANCE.choices(alphabet, k=length))


ASCII = "".join(chr(code) for code in range(33, 127))
EMOJI = "".join(chr(code) for code in range(0x1F300, 0x1F600))
LETTERS = "".join(chr(code) for code in range(0x0410, 0x0450))


def keys_of(sessions: sessionmaker[Session]) -> list[str | None]:
    with sessions() as session:
        return [*session.scalars(select(Job.idempotency_key).order_by(Job.id))]


def test_f32_keys_differ_by_every_letter(sessions: sessionmaker[Session]) -> None:
    """Case, spaces and forms of Unicode count: different keys are different jobs."""
    keys = ["Order-1", "order-1", "k", "k ", " k", "ä", "a\u0308", "ß", "ss", "1", "01", "%", "_", "\\", "'", '"', "\n"]

    with sessions.begin() as session:
        told = [enqueue(session, send.using(key=key), order_id=1).is_duplicate for key in keys]

    assert told == [False] * len(keys)
    assert keys_of(sessions) == keys


@pytest.mark.parametrize("alphabet", [ASCII, LETTERS, EMOJI], ids=["1 byte", "2 bytes", "4 bytes"])
def test_f32_key_of_the_greatest_length_is_stored_whole(sessions: sessionmaker[Session], alphabet: str) -> None:
    """255 characters of any alphabet fit in the column and its index, and are never cut short."""
    key = text(alphabet, 255)
    other = key[:-1] + "x"
    with sessions.begin() as session:
        told = [enqueue(session, send.using(key=each), order_id=1).is_duplicate for each in (key, key, other)]

    assert told == [False, True, False]
    assert keys_of(sessions) == [key, other]


@pytest.mark.parametrize(
    "key",
    [*(text(ASCII, length) for length in (256, 3000, 10_000)), text(EMOJI, 256), "", "a\x00b", "\ud800"],
    ids=["256", "3000", "10000", "256 of 4 bytes", "empty", "NUL", "surrogate"],
)
def test_f32_key_that_no_database_stores_alike_is_a_value_error(key: str) -> None:
    """Empty, too long, or with what text columns refuse: told before any SQL, the same for every database."""
    with pytest.raises(ValueError, match="key") as caught:
        send.using(key=key)

    assert isinstance(caught.value, InvalidOption)
    assert len(str(caught.value)) < 400
