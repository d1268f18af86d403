from __future__ import annotations

import ast
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import inspect

from tests.architecture.sources import ROOT
from tests.engines import build_engine

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS: Final = ROOT / "alembic" / "versions"

TABLES: Final = {"archived_job", "customer", "job", "order", "receipt", "schedule"}


def alembic(*arguments: str, folder: Path = ROOT, url: str) -> str:
    """Run the command as in a fresh clone; fail with what it says."""
    ended = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=folder,
        env=os.environ | {"DATABASE_URL": url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def tables(url: str) -> set[str]:
    engine = build_engine(url)
    try:
        return set(inspect(engine).get_table_names()) - {"alembic_version"}
    finally:
        engine.dispose()


def body(revision: Path) -> list[str]:
    """Return what the revision's two functions do, without its number and date."""
    functions = [part for part in ast.parse(revision.read_text("utf-8")).body if isinstance(part, ast.FunctionDef)]
    assert [function.name for function in functions] == ["upgrade", "downgrade"]
    return [ast.unparse(function) for function in functions]


def test_history_goes_up_and_down_when_run_from_a_clone(database_url: str) -> None:
    """One history makes the shop's tables on both databases, as the models are, and takes all of them away again."""
    alembic("upgrade", "head", url=database_url)

    assert tables(database_url) == TABLES
    assert "No new upgrade operations detected" in alembic("check", url=database_url)

    alembic("downgrade", "base", url=database_url)

    assert tables(database_url) == set()
    alembic("upgrade", "head", url=database_url)
    assert tables(database_url) == TABLES


def test_revision_is_what_autogenerate_writes(tmp_path: Path) -> None:
    """The history is one revision, and autogenerate writes the very same from the models as they are."""
    [kept] = VERSIONS.glob("*.py")
    (tmp_path / "alembic" / "versions").mkdir(parents=True)
    for name in ("env.py", "script.py.mako"):
        (tmp_path / "alembic" / name).write_bytes((ROOT / "alembic" / name).read_bytes())
    (tmp_path / "pyproject.toml").write_text('[tool.alembic]\nscript_location = "%(here)s/alembic"\n')

    alembic("revision", "--autogenerate", "-m", "x", folder=tmp_path, url=f"sqlite:///{tmp_path}/empty.sqlite")

    [written] = (tmp_path / "alembic" / "versions").glob("*.py")
    assert body(written) == body(kept)


def test_history_needs_no_import_that_alembic_did_not_write() -> None:
    """Revisions import SQLAlchemy and alembic, and nothing of ours, which may move."""
    for revision in VERSIONS.glob("*.py"):
        tree = ast.parse(revision.read_text("utf-8"))
        imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert imported <= {"sqlalchemy", "alembic", "sqlalchemy.dialects"}


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_history_is_written_as_sql_when_offline(dialect: str, tmp_path: Path) -> None:
    """`upgrade --sql` needs no database."""
    url = {"postgresql": "postgresql+psycopg://nobody@nowhere/none", "sqlite": f"sqlite:///{tmp_path}/none"}[dialect]

    said = alembic("upgrade", "head", "--sql", url=url)

    assert "CREATE TABLE job" in said
    assert "CREATE INDEX ix_schedule_edited" in said
    assert ("AUTOINCREMENT" in said) == (dialect == "sqlite")
    assert not (tmp_path / "none").exists()


def test_folder_does_not_shadow_the_package_alembic() -> None:
    """`alembic/` has no `__init__.py`, so that `python -m alembic` in the clone is the installed one."""
    assert not (ROOT / "alembic" / "__init__.py").exists()
