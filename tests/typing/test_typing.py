from __future__ import annotations

from pathlib import Path

import pytest

from tests.typing.checkers import Finding, expectations, run_mypy, run_pyright

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))

EVERY_CHECKER = pytest.mark.parametrize("checker", ["mypy", "pyright"])


@EVERY_CHECKER
def test_checker_reports_exactly_the_expected_errors(checker: str, tmp_path: Path) -> None:
    """Users get an error where the cases say so, and none anywhere else."""
    expected = expectations(CASES, checker)

    reported = run(checker, CASES, tmp_path)

    assert CASES
    assert sorted(reported - expected) == [], "reported without being expected"
    assert sorted(expected - reported) == [], "expected without being reported"


@EVERY_CHECKER
def test_both_kinds_of_disagreement_are_caught(checker: str, tmp_path: Path) -> None:
    """An error without an expectation shows, and so does an expectation without an error."""
    case = tmp_path / "case.py"
    case.write_text('right: int = 1  # error: [assignment] [reportAssignmentType]\nwrong: int = "one"\n')

    expected, reported = expectations([case], checker), run(checker, [case], tmp_path)

    assert [finding.line for finding in expected - reported] == [1]
    assert [finding.line for finding in reported - expected] == [2]


def run(checker: str, cases: list[Path], folder: Path) -> set[Finding]:
    return {"mypy": run_mypy, "pyright": run_pyright}[checker](cases, folder)


def test_expectation_for_one_checker_only_asks_nothing_of_the_other(tmp_path: Path) -> None:
    """A dash says that a checker is content; several codes are several findings."""
    case = tmp_path / "case.py"
    case.write_text("call()  # error: [call-arg, misc] [-]\n")

    assert expectations([case], "mypy") == {Finding("case.py", 1, "call-arg"), Finding("case.py", 1, "misc")}
    assert expectations([case], "pyright") == set()


def test_malformed_expectation_is_refused(tmp_path: Path) -> None:
    """A comment that was meant as an expectation is never skipped in silence."""
    case = tmp_path / "case.py"
    case.write_text("call()  # error: call-arg\n")

    with pytest.raises(ValueError, match="1: not of the form"):
        expectations([case], "mypy")
