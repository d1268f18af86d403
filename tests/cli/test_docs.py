from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from sqla_jobs.cli.program import program
from tests.cli.replay import APP, PAGE, commands, lasting, replayed, scene

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


def test_page_says_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example of docs/cli.md, run again in order, prints the page's words; times and hosts aside."""
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/shop.sqlite")
    monkeypatch.setenv("SQLA_JOBS_APP", APP)
    monkeypatch.setenv("SHOP_OUTBOX", "")
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")

    scene()

    assert lasting(replayed(page)).splitlines() == lasting(page).splitlines()


def test_page_shows_every_command() -> None:
    """No command is left out."""
    page = PAGE.read_text(encoding="utf-8")
    names = {name for name, _ in leaves()}

    lines = [f"{line} " for line in page.splitlines()]

    assert [name for name in names if not any(line.startswith(f"$ sqla-jobs {name} ") for line in lines)] == []
    assert len(names) == 21
    assert len(commands(page)) > 40


def test_page_names_every_option() -> None:
    """What a command can be told stands on the page."""
    page = PAGE.read_text(encoding="utf-8")
    options = {option for _, options in leaves() for option in options}

    assert sorted(option for option in options if not re.search(rf"{option}(?![\w-])", page)) == []


def leaves() -> Iterator[tuple[str, list[str]]]:
    """Give each command's name, and its long options."""
    program_: Any = get_command(program)
    groups = {"": program_, **{name: each for name, each in program_.commands.items() if hasattr(each, "commands")}}
    for above, group in groups.items():
        for name, command in group.commands.items():
            if name not in groups:
                yield (
                    f"{above} {name}".strip(),
                    [option for each in command.params for option in each.opts[:1] if option[0] == "-"],
                )
