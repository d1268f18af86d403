from __future__ import annotations

import pytest

from tests.architecture.bans import BANS, Ban
from tests.architecture.sources import Source, sources

EVERY_BAN = pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.name)


@EVERY_BAN
def test_no_module_breaks_the_ban(ban: Ban) -> None:
    """Nothing that is banned stands in any module for which the ban holds."""
    violations = [line for source in sources(*ban.only_in) for line in ban.violations(source)]

    assert not violations, "\n".join(violations)


@EVERY_BAN
def test_ban_catches_each_offending_snippet(ban: Ban) -> None:
    """The ban can fail: it finds what it is there to find."""
    missed = [snippet for snippet in ban.catches if not ban.violations(snippet_source(ban, snippet))]

    assert ban.catches
    assert not missed


@EVERY_BAN
def test_ban_lets_harmless_snippets_pass(ban: Ban) -> None:
    """The ban is no nuisance: what only looks like an offence passes."""
    wrongly = [line for snippet in ban.lets_pass for line in ban.violations(snippet_source(ban, snippet))]

    assert not wrongly, "\n".join(wrongly)


@pytest.mark.parametrize("ban", [ban for ban in BANS if ban.not_in], ids=lambda ban: ban.name)
def test_ban_does_not_hold_where_it_makes_an_exception(ban: Ban) -> None:
    """What is banned elsewhere may stand in the places that the ban excepts."""
    excepted = [place if place.endswith(".py") else f"{place}/module.py" for place in ban.not_in]

    found = [
        line for place in excepted for snippet in ban.catches for line in ban.violations(Source.of(place, snippet))
    ]

    assert not found


def snippet_source(ban: Ban, snippet: str) -> Source:
    place = ban.only_in[0]
    return Source.of(place if place.endswith(".py") else f"{place}/snippet.py", snippet)
