from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.rules.masking import MASK, is_secret, masked, masked_text, printable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["token", "name", "value"]), inner),
)


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PASSWORD", "smtp_password", "db-passwd", "client_secret", "accessToken", "X-API-Key", "apikey"),
        *("Authorization", "credentials", "private_key", "privateKey", "Set-Cookie", "refresh tokens", "pwd"),
    ],
)
def test_value_of_a_secret_name_is_masked(name: str) -> None:
    """However a secret's name is written, as part of a longer one too, its value is not shown, at any depth."""
    payload = {"to": "ann", "more": [{name: "hush"}, {name: {"inner": "hush"}}, {name: 4711}]}

    assert masked(payload) == {"to": "ann", "more": [{name: MASK}, {name: MASK}, {name: MASK}]}


@pytest.mark.parametrize("name", ["to", "order_id", "pass", "key", "author", "cook", "secre", ""])
def test_value_of_another_name_is_shown(name: str) -> None:
    """A name that only looks a little like a secret's hides nothing."""
    assert masked({name: "shown"}) == {name: "shown"}


def test_whether_there_is_a_secret_is_shown() -> None:
    """None and booleans tell no secret, and much about what went wrong."""
    assert masked({"password": None, "has_token": True}) == {"password": None, "has_token": True}


def test_value_in_a_pair_is_masked() -> None:
    """Headers are often pairs, or objects with a name and a value."""
    payload = {
        "headers": [["Authorization", "hush"], ["Accept", "*"]],
        "more": [{"name": "Cookie", "value": "hush"}, {"key": "token", "value": "hush", "path": "/"}],
    }

    assert masked(payload) == {
        "headers": [["Authorization", MASK], ["Accept", "*"]],
        "more": [{"name": "Cookie", "value": MASK}, {"key": "token", "value": MASK, "path": "/"}],
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://ann:hush@db/shop", "postgresql+psycopg://ann:***@db/shop"),
        ("host=db password=hush dbname=shop", "host=db password=*** dbname=shop"),
        ("connect(password='hush', port=1)", "connect(password=***, port=1)"),
        ("GET /?api_key=hush&page=2", "GET /?api_key=***&page=2"),
        ("{'db_password': 'hush', 'to': 'ann'}", "{'db_password': ***, 'to': 'ann'}"),
        ('{"token":"hush"}', '{"token":***}'),
        ("Authorization: Bearer hush1234", "Authorization: Bearer ***"),
        ("Proxy: basic aHVzaDpodXNo1=", "Proxy: basic ***"),
        ('client_secret="hush hush" next', "client_secret=*** next"),
    ],
)
def test_secret_in_a_text_is_masked(text: str, shown: str) -> None:
    """Passwords of URLs, of connection strings, of calls and of printed dicts are not shown; the rest is."""
    assert masked_text(text) == shown
    assert masked({"note": [text]}) == {"note": [shown]}


@pytest.mark.parametrize(
    "text",
    [
        *("KeyError: 'password'", "Unexpected token: '}'", "basic authentication failed", "the token is wrong"),
        *("https://example.org/a:b@c", "token", "bearer of bad news"),
    ],
)
def test_text_that_only_speaks_of_secrets_is_shown(text: str) -> None:
    """An error that names a secret without its value stays readable."""
    assert masked_text(text) == text


@given(JSON)
def test_masking_keeps_the_shape(value: Any) -> None:
    """Whatever JSON comes, JSON of the same keys comes out; masked again, it is the same."""
    once = masked(value)

    assert masked(once) == once
    assert type(once) is type(value)
    json.dumps(once)
    if isinstance(value, dict):
        assert once.keys() == value.keys()


@given(st.text())
def test_nothing_that_is_printed_commands_a_terminal(text: str) -> None:
    """No control character comes through but tab and line feed, nor what turns the direction of text."""
    shown = printable(text)

    assert not [letter for letter in shown if ord(letter) < 32 and letter not in "\t\n"]
    assert not {*shown} & {"\x7f", "\x9b", "\u202e", "\u2066", "\u2028", "\ufeff"}
    shown.encode()


def test_control_characters_are_shown_as_codes() -> None:
    """A reader sees that there was an escape sequence; letters of every language stay."""
    assert printable("\x1b[31mZürich\r\x9b\u202e\t東京\n\udc80") == "\\x1b[31mZürich\\x0d\\x9b\\u202e\t東京\n\\udc80"


@pytest.mark.parametrize("name", [None, 7, ("password",)])
def test_what_is_no_name_names_no_secret(name: object) -> None:
    """Keys of JSON are texts; in a pair anything may come first."""
    assert not is_secret(name)
