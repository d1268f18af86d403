from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.architecture.sources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LINTER = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(cache_dir=None))"

WITHOUT_EXTRAS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import sqla_jobs
for name in sqla_jobs.__all__:
    getattr(sqla_jobs, name)
"""
BLOCKED = (
    *(
        "greenlet",
        "psycopg",
        "asyncpg",
        "aiosqlite",
        "alembic",
        "flask_sqlalchemy",
        "typer",
        "rich",
        "prometheus_client",
    ),
    "pydantic",  # a dependency, but imported when it is first needed
)


def test_imports_follow_the_ranks() -> None:
    """Every contract of import-linter in pyproject.toml is kept."""
    linted = lint(ROOT)

    assert linted.returncode == 0, linted.stdout
    assert "4 kept, 0 broken" in linted.stdout


@pytest.mark.parametrize(
    ("path", "line"),
    [
        pytest.param("rules/offence.py", "from sqla_jobs.schema import types", id="upwards"),
        pytest.param("errors.py", "from sqla_jobs.rules import retry", id="upwards-from-the-lowest"),
        pytest.param("operations/offence.py", "import sqla_jobs.runtime", id="upwards-to-a-package"),
        pytest.param("rules/offence.py", "from sqlalchemy import Engine", id="sqlalchemy-in-rules"),
        pytest.param("status.py", "if TYPE_CHECKING:\n    from sqlalchemy import Engine", id="as-a-type-only"),
        pytest.param("rules/offence.py", "def f():\n    import croniter", id="croniter-inside-a-function"),
        pytest.param("runtime/offence.py", "from alembic import op", id="alembic"),
        pytest.param("elsewhere.py", "", id="module-without-a-rank"),
    ],
)
def test_linter_catches_an_offending_import(path: str, line: str, tmp_path: Path) -> None:
    """The contracts can fail: a package of our layout with one wrong line is refused."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for room in ("", "rules", "schema", "operations", "runtime"):
        (tmp_path / "sqla_jobs" / room).mkdir()
        (tmp_path / "sqla_jobs" / room / "__init__.py").touch()
    for module in ("errors.py", "status.py", "rules/retry.py", "rules/cron.py", "schema/types.py"):
        (tmp_path / "sqla_jobs" / module).write_text("from typing import TYPE_CHECKING\n")
    (tmp_path / "sqla_jobs" / "rules" / "cron.py").write_text("import croniter\n")
    assert lint(tmp_path).returncode == 0

    with (tmp_path / "sqla_jobs" / path).open("a") as offence:
        offence.write(f"{line}\n")

    assert lint(tmp_path).returncode != 0


def test_package_is_imported_without_extras() -> None:
    """`import sqla_jobs` needs no extra, greenlet included, and gives no warning."""
    program = WITHOUT_EXTRAS.format(blocked=BLOCKED)

    imported = run("-W", "error", "-c", program, folder=ROOT)

    assert imported.returncode == 0, imported.stderr


def test_blocked_module_is_missed() -> None:
    """The block can fail: SQLAlchemy itself is missed when it is blocked."""
    program = WITHOUT_EXTRAS.format(blocked=("sqlalchemy",))

    imported = run("-c", program, folder=ROOT)

    assert "sqlalchemy is blocked" in imported.stderr


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return run("-c", LINTER, folder=folder)


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
