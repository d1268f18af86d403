from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.sources import ROOT
from tests.test_readme import ALL

SECTION: Final = "Migrations"

ASYNC_ENV: Final = "sed -i 's|^sqlalchemy.url = .*|sqlalchemy.url = sqlite+aiosqlite:///app.sqlite|' alembic.ini"


def block(language: str) -> str:
    """Return the README's block on migrations in that language."""
    [found] = [block.text for block in ALL if block.section == SECTION and block.language == language]
    return found


def run(folder: Path, script: str) -> str:
    """Run the README's commands in *folder*, as a shell does that stops at the first error; return what they say."""
    (folder / "app.py").write_text(block("python"), encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": f"{ROOT}:{folder}"}
    ended = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def job_of(folder: Path) -> tuple[str, str]:
    connection = sqlite3.connect(folder / "app.sqlite")
    try:
        [job] = connection.execute("SELECT type, status FROM job").fetchall()
    finally:
        connection.close()
    return tuple(job)


@pytest.mark.slow
def test_fresh_app_goes_from_alembic_init_to_a_job_done(tmp_path: Path) -> None:
    """The README's steps, as they stand there, lead a new app to its first job, with autogenerate alone."""
    said = run(tmp_path, block("sh"))

    assert "Hello, Ann!" in said
    assert "No new upgrade operations detected" in said
    assert job_of(tmp_path) == ("greet", "done")
    [revision] = (tmp_path / "migrations" / "versions").glob("*.py")
    assert "sqla_jobs" not in revision.read_text("utf-8")


@pytest.mark.slow
def test_fresh_app_has_an_async_env_when_alembic_made_one(tmp_path: Path) -> None:
    """The same steps work with alembic's template for async drivers."""
    script = block("sh").replace("alembic init migrations", "alembic init -t async migrations")
    lines = [ASYNC_ENV if "sqlalchemy.url" in line else line for line in script.splitlines()]

    said = run(tmp_path, "\n".join(lines))

    assert "No new upgrade operations detected" in said
    assert job_of(tmp_path) == ("greet", "done")


def test_fresh_app_is_small() -> None:
    """The README's app is whole in about thirty lines."""
    assert len(block("python").splitlines()) <= 32
