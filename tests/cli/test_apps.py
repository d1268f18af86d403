from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Calls

WORKER = "worker = Worker(jobs, sessionmaker(engine))"


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("", "write module:attribute, as in shop.worker:worker"),
        ("tests.cli.office", "tests.cli.office:worker, or tests.cli:office"),
        ("tests/cli/office.py:make_worker", "a module, and not a file: tests.cli.office:make_worker"),
        ("tests.cli.office:make worker", "write module:attribute"),
        ("nowhere:worker", "no module 'nowhere' in "),
        ("tests.cli.offices:worker", "tests.cli has no module 'offices'"),
        ("tests.cli.office:make_wrker", "has no 'make_wrker' (did you mean 'make_worker'?)"),
        ("tests.cli.office:xyz", f"has no 'xyz': write there {WORKER}"),
        ("tests.cli.office:jobs.xyz", "Jobs has no 'xyz'"),
        ("tests.cli.office:not_a_worker", f"is a Jobs, and no Worker: {WORKER}"),
        ("tests.cli.office:Worker", "is the class Worker, and no Worker"),
        ("tests.cli.office:make_nothing", "returned a NoneType, and no Worker"),
        ("tests.cli.office:make_with", "takes arguments"),
        ("tests.cli.office:make_later", "returned a coroutine, and no Worker"),
        ("tests.cli.office:make_trouble", "RuntimeError: postgresql://ann:***@db/office is down"),
    ],
)
def test_wrong_app_is_refused_with_the_remedy(app: str, says: str, calls: Calls) -> None:
    """Each way to get the app's name wrong ends with 2, one clean text on stderr, and nothing on stdout."""
    ended = calls("--app", app, "jobs", "list", "--json")

    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Error: ")
    assert says in ended.stderr
    assert "(--app)" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("from os import nothing", "ImportError: cannot import name 'nothing' from 'os'"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise ValueError('ftp://ann:hush@files')", "ValueError: ftp://ann:***@files"),
        ("raise SystemExit('no settings')", "SystemExit: no settings"),
    ],
)
def test_error_in_the_apps_module_is_shown(
    code: str, says: str, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the app's own code raises is told with its place, and is not mistaken for a missing app."""
    monkeypatch.chdir(tmp_path)
    name = f"broken_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(f"x = 1\n{code}\n")

    ended, traced = calls("-a", f"{name}:worker", "doctor"), calls("-a", f"{name}:worker", "doctor", "--traceback")

    assert ended.code == traced.code == 2
    assert f"{name}.py, line 2:\n  {says}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Traceback (most recent call last)" in traced.stderr
    assert "hush" not in ended.stderr + traced.stderr


@pytest.mark.usefixtures("sqlite_office")
def test_app_is_found_where_people_have_named_it(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option goes before the environment, and that before the nearest pyproject.toml that names an app."""
    inner = tmp_path / "project" / "package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.sqla_jobs]\napp = "too_far:worker"\n')
    (tmp_path / "project" / "pyproject.toml").write_text('[tool.sqla_jobs]\napp = "my_office:make"\n')
    (tmp_path / "project" / "my_office.py").write_text("from tests.cli.office import make_worker as make\n")
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(inner)

    assert calls("jobs", "list").code == 0
    assert "from_environment:x (SQLA_JOBS_APP)" in calls("jobs", "list", SQLA_JOBS_APP="from_environment:x").stderr
    assert "from_option:x (--app)" in calls("-a", "x:y", "jobs", "list", "-a", "from_option:x").stderr
    monkeypatch.delenv("SQLA_JOBS_APP")
    assert calls("jobs", "list").lines == ["no such jobs"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "which app? Name its worker: --app shop.worker:worker, or SQLA_JOBS_APP"),
        ("[tool.sqla_jobs\n", "pyproject.toml can't be read: "),
        ("[tool.sqla_jobs]\nname = 1\n", 'pyproject.toml: [tool.sqla_jobs] names no app: app = "shop.worker:worker"'),
        ("[tool]\nsqla_jobs = 1\n", "pyproject.toml: [tool.sqla_jobs] names no app"),
        ("tool = 1\n", "pyproject.toml can't be read: "),
    ],
)
def test_no_app_is_told_with_the_three_ways_to_name_it(
    text: str, says: str, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an app, or with a pyproject.toml that can't be read, the text says where to write it."""
    monkeypatch.delenv("SQLA_JOBS_APP")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(text)

    ended = calls("status")

    assert ended.code == 2
    assert says in ended.stderr
