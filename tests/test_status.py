from __future__ import annotations

import json
import re

from sqla_jobs import status
from sqla_jobs.status import DEAD_LETTERS, FINISHED, MOVES, JobStatus


def test_status_is_its_text() -> None:
    """A status compares, formats and serializes as the text that the column holds."""
    assert [str(each) for each in JobStatus] == ["ready", "running", "done", "failed", "dead"]
    assert {"ready": 1}[JobStatus.READY] == 1
    assert json.dumps(JobStatus.DEAD) == '"dead"'


def test_every_status_has_its_moves() -> None:
    """The table of moves names each status, and leads to statuses only."""
    assert set(MOVES) == set(JobStatus)
    assert set().union(*MOVES.values()) <= set(JobStatus)


def test_finished_jobs_move_to_ready_only() -> None:
    """What has ended runs again only by a requeue; what is done never does."""
    assert {JobStatus.DONE, *DEAD_LETTERS} == FINISHED
    assert MOVES[JobStatus.DONE] == frozenset()
    assert all(MOVES[letter] == {JobStatus.READY} for letter in DEAD_LETTERS)


def test_only_a_claim_makes_a_job_running() -> None:
    """A job is running only after it was ready."""
    assert [start for start, ends in MOVES.items() if JobStatus.RUNNING in ends] == [JobStatus.READY]


def test_diagram_names_every_status() -> None:
    """The drawing at the top of the module knows the five statuses."""
    assert set(JobStatus) <= set(re.findall(r"\w+", status.__doc__ or ""))
