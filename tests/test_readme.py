from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Pool, event

from tests.architecture.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

README: Final = ROOT / "README.md"

QUICKSTART: Final = "python3 -m venv .venv && .venv/bin/pip install -q -e . && .venv/bin/python examples/quickstart.py"
TESTS: Final = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/pytest"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, the line of the README that it begins on, the heading above it."""

    language: str
    text: str
    line: int
    section: str


def blocks(markdown: str) -> Iterator[Block]:
    section, language, taken = "", None, list[str]()
    for number, line in enumerate(markdown.splitlines(), start=1):
        if line.startswith("```"):
            if language is not None:
                yield Block(language, "\n".join(taken), number - len(taken), section)
            language, taken = (line[3:].strip(), []) if language is None else (None, [])
        elif language is not None:
            taken.append(line)
        elif line.startswith("#"):
            section = line.lstrip("# ")


ALL: Final = list(blocks(README.read_text(encoding="utf-8")))
PYTHON: Final = [block for block in ALL if block.language == "python"]
FIRST: Final = PYTHON[0]
SECTIONS: Final = list(dict.fromkeys(block.section for block in PYTHON))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the folder that the README's code runs in; close what its engines keep open."""
    opened: list[Any] = []

    def remember(connection: Any, _record: object) -> None:
        opened.append(connection)

    monkeypatch.chdir(tmp_path)
    event.listen(Pool, "connect", remember)
    yield tmp_path
    event.remove(Pool, "connect", remember)
    for connection in opened:
        if isinstance(connection, sqlite3.Connection):
            with suppress(sqlite3.Error):
                connection.close()


@pytest.mark.parametrize("section", SECTIONS)
def test_readme_code_runs(section: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of the README runs as it is printed, after the first one and those above it in its section."""
    module = ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)
    assert section

    for block in dict.fromkeys([FIRST, *(block for block in PYTHON if block.section == section)]):
        code = compile("\n" * (block.line - 1) + block.text, "<README.md>", "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102  # our own README

    assert (folder / "shop.sqlite").exists()


def test_readme_code_that_fails_is_caught(folder: Path) -> None:
    """The reader of the README finds every block, with its line, so that a wrong one can't hide."""
    text = "# A\n```python\nx = 1\n```\n## B\n```sh\nls\n```\nprose\n```python\n1 / 0\n```\n"

    found = list(blocks(text))

    assert [(block.language, block.line, block.section) for block in found] == [
        ("python", 3, "A"),
        ("sh", 7, "B"),
        ("python", 11, "B"),
    ]
    assert len(PYTHON) == README.read_text(encoding="utf-8").count("```python\n") > 10


def test_readme_begins_with_the_two_commands() -> None:
    """The first two blocks are the commands that show the quickstart and run the tests, each alone on its line."""
    first, second = ALL[:2]

    assert (first.text, second.text) == (QUICKSTART, TESTS)
    assert second.line < FIRST.line


def test_readme_links_lead_somewhere() -> None:
    """Whatever the README links to in this repository is there."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8"))

    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
