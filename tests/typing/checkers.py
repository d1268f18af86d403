"""The type checkers, and what they are expected to say.

A case is a file whose lines carry the errors that both checkers must report there, mypy's first::

    enqueue(session, ping, url=1)   # error: [arg-type] [reportArgumentType]
    enqueue(session, ping)          # error: [call-arg, misc] [-]

Several codes are parted by commas; `-` stands for a checker that sees nothing wrong in the line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.architecture.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

EXPECTATION: Final = re.compile(r"#\s*error:\s*\[(?P<mypy>[^\]]+)\]\s*\[(?P<pyright>[^\]]+)\]\s*$")


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """An error that a checker reports, or is expected to."""

    file: str
    line: int
    code: str


def expectations(cases: Iterable[Path], checker: str) -> set[Finding]:
    """Return what the comments in *cases* expect of *checker*, "mypy" or "pyright".

    :raises ValueError: a comment begins as an expectation and is none; write it as the module's docstring says
    """
    return {finding for case in cases for finding in _expected(case, checker)}


def _expected(case: Path, checker: str) -> Iterator[Finding]:
    for number, line in enumerate(case.read_text(encoding="utf-8").splitlines(), start=1):
        if not re.search(r"#\s*error:", line):
            continue
        if (found := EXPECTATION.search(line)) is None:
            raise ValueError(f"{case.name}:{number}: not of the form `# error: [mypy-code] [pyright-rule]`")
        codes = (code.strip() for code in found[checker].split(","))
        yield from (Finding(case.name, number, code) for code in codes if code != "-")


def run_mypy(cases: Iterable[Path], folder: Path) -> set[Finding]:
    """Check *cases* with mypy as pyproject.toml sets it up; *folder* takes its cache.

    Not the project's cache: from it mypy tells of another file of the same name, of an earlier run.
    """
    output = _check("mypy", f"--cache-dir={folder}", "--output=json", *map(str, cases))
    reports = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    found = {(each["file"], each["line"], each["code"]) for each in reports if each["severity"] == "error"}
    return _findings(found, cases)


def run_pyright(cases: Iterable[Path], folder: Path) -> set[Finding]:
    """Check *cases* with pyright as pyproject.toml sets it up; *folder* takes a file of settings that has them in."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["basedpyright"]
    settings |= {"include": list(map(str, cases)), "exclude": [], "extraPaths": [str(ROOT)]}
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    output = _check("basedpyright", f"--project={project}", f"--pythonpath={sys.executable}", "--outputjson")
    reports: list[dict[str, Any]] = json.loads(output)["generalDiagnostics"]
    wrong = [each for each in reports if each["severity"] != "information"]
    return _findings({(each["file"], each["range"]["start"]["line"] + 1, each.get("rule")) for each in wrong}, cases)


def _findings(reported: set[tuple[str, int, str | None]], cases: Iterable[Path]) -> set[Finding]:
    """Keep what is reported in *cases*; the modules that they import are checked elsewhere."""
    names = {case.resolve(): case.name for case in cases}
    paths = {file: (ROOT / file).resolve() for file, _, _ in reported}
    return {
        Finding(names[paths[file]], line, code or "syntax") for file, line, code in reported if paths[file] in names
    }


def _check(checker: str, *arguments: str) -> str:
    """Return the checker's report. It leaves with 1 if it has found errors, and with more if it could not work."""
    checked = subprocess.run(
        [sys.executable, "-m", checker, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=170
    )
    if checked.returncode > 1:
        raise RuntimeError(f"{checker} could not work:\n{checked.stdout}\n{checked.stderr}")
    return checked.stdout
