from __future__ import annotations

import re
import shlex
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy.dialects import postgresql

from sqla_jobs.cli.program import program
from sqla_jobs.prometheus.figures import LOOK_SECONDS, TABLE, UP, WORKER, Figure
from sqla_jobs.runtime import machinery
from sqla_jobs.schema.dialects import capabilities
from tests.architecture.sources import ROOT
from tests.test_readme import blocks, folder

__all__ = ["folder"]  # a fixture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOC: Final = ROOT / "docs" / "operations.md"
TEXT: Final = DOC.read_text(encoding="utf-8")
PROSE: Final = " ".join(TEXT.split())
BLOCKS: Final = list(blocks(TEXT))

ALL_FIGURES: Final[tuple[Figure[Any], ...]] = (UP, LOOK_SECONDS, *TABLE, *WORKER)
FIGURES: Final = {figure.name: figure for figure in ALL_FIGURES}

DEFAULT_GRACE: Final = 25


def commands() -> Iterator[str]:
    """Give each call of the program: in text as `code`, in blocks up to the end of the line or of a string."""
    for part in re.findall(r"`(sqla-jobs\s[^`]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)):
        yield " ".join(part.split())
    for block in BLOCKS:
        yield from re.findall(r"(?<!\")\bsqla-jobs [^\"\n]+", block.text)


def test_code_runs_as_it_is_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # a fixture
    """The Python blocks of the document run one after the other."""
    module = ModuleType("operations")
    monkeypatch.setitem(sys.modules, "operations", module)

    for block in (block for block in BLOCKS if block.language == "python"):
        code = compile("\n" * (block.line - 1) + block.text, "<operations.md>", "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102  # our own document

    assert (folder / "shop.sqlite").exists()


def test_table_of_metrics_is_that_of_the_code() -> None:
    """The document lists each metric there is, with its type and labels, and no other."""
    rows = re.findall(r"^\| `(sqla_jobs_\w+)` \| (\w+) \| ([^|]*)\| ([^|]+) \|$", TEXT, re.MULTILINE)

    told = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}

    assert told == {name: (figure.kind, figure.labels) for name, figure in FIGURES.items()}


def test_queries_name_metrics_and_labels_that_there_are() -> None:
    """Whatever looks like a metric of ours in the document is one, and has the labels that it is asked for."""
    queried = list(re.finditer(r"\b(sqla_jobs_\w+)(?:\{([^}]*)\})?", TEXT))
    names = dict[str, Figure[Any]](FIGURES)
    for figure in FIGURES.values():
        if figure.kind == "summary":
            names |= {f"{figure.name}_{part}": figure for part in ("sum", "count")}

    unknown = {name for name, _ in (match.groups() for match in queried) if name not in names}
    wrong = {
        (name, label)
        for name, inside in (match.groups() for match in queried)
        if name in names
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside or "")
        if label not in {"registry", *names[name].labels}
    }

    assert (unknown, wrong) == (set(), set())
    assert len(queried) > len(FIGURES)


def test_yaml_is_well_formed() -> None:
    """The rules for Prometheus and the Deployment are YAML, and each rule has what it needs."""
    yaml: Any = pytest.importorskip("yaml", reason="PyYAML is no dependency")
    documents = [yaml.safe_load(block.text) for block in BLOCKS if block.language == "yaml"]
    [deployment] = [document for document in documents if "kind" in document]
    [rules] = [document["groups"][0]["rules"] for document in documents if "groups" in document]

    container = deployment["spec"]["template"]["spec"]["containers"][0]

    assert container["command"][:2] == ["sqla-jobs", "worker"]
    assert all({"alert", "expr", "labels", "annotations"} <= set(rule) for rule in rules)
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_commands_exist(line: str) -> None:
    """Each command that the document names is one of the program, with each of the options that are given to it."""
    words = shlex.split(line)[1:]

    assert words
    assert not list(unknown_words(words))


def test_unknown_command_and_option_are_caught() -> None:
    """The check can fail: a word that is no command and an option that is none are found, wherever they stand."""
    assert list(unknown_words(["dead", "groups", "--wrong", "1"])) == ["--wrong"]
    assert list(unknown_words(["--app", "a:b", "dead", "bury"])) == ["bury"]
    assert not list(unknown_words(["--app", "a:b", "jobs", "list", "--status", "ready"]))


def test_numbers_are_those_of_the_code() -> None:
    """What a supervisor waits is longer than a stop can take, and storage parameters are those that are set."""
    last_steps = machinery.ASYNC_CANCEL + 4 * machinery.LAST_FLUSH + machinery.LAST_TICK
    waits = re.findall(r"^\s*(?:TimeoutStopSec=|terminationGracePeriodSeconds: )(\d+)$", TEXT, re.MULTILINE)
    dialect: Any = postgresql
    tuned = capabilities(dialect.dialect()).storage
    storage = ", ".join(f"`{name}` {value}" for name, value in tuned)

    assert f"**at most {last_steps:.0f} s**" in TEXT
    assert len(waits) == 2
    assert all(int(wait) > DEFAULT_GRACE + last_steps for wait in waits)
    assert re.sub(r", `autovacuum_\w+_threshold` ", " and threshold ", storage) in PROSE


def test_links_lead_somewhere() -> None:
    """Whatever the document links to is there: a file, or a heading of one."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        file = (DOC.parent / path) if path else DOC

        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def unknown_words(words: list[str]) -> Iterator[str]:
    """Give the words that are neither command nor option; behind the command, values are not looked at."""
    from typer.main import get_command

    command: Any = get_command(program)
    is_value = False
    for word in words:
        options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
        if is_value:
            is_value = False
        elif word.startswith("-"):
            name = word.partition("=")[0]
            if name not in options:
                yield word
            is_value = name in options and "=" not in word and not options[name].is_flag
        elif hasattr(command, "commands"):
            if word not in command.commands:
                yield word
                return
            command = command.commands[word]
