from __future__ import annotations

import re
from typing import Final

from tests.examples.programs import run

NIGHTLY: Final = "(?:02:30 CES?T|03:00 CEST)"
"""The night in March that has no 02:30 may be among the next."""


def test_schedules_fire_once_each_with_two_workers() -> None:
    """The program of schedules ends well, and says when the nightly one comes and that no slot had two jobs."""
    ended = run("examples/schedules.py")

    assert ended.returncode == 0, ended.stderr
    assert len(re.findall(rf"^nightly: \d{{4}}-\d\d-\d\d {NIGHTLY}$", ended.stdout, re.MULTILINE)) == 3
    assert re.search(r"^\d+ slots, one job each$", ended.stdout, re.MULTILINE)
