"""A machine that plays many workers, schedulers and people on a real database, and knows what must come of it.

A failure is printed as the turns that lead to it, as few as there can be. To keep one as a test, call them on a
`Machine` as methods, each followed by `look_over()`, and `teardown()` at the end.

==============================  =======================================================================================
`SQLA_JOBS_MODEL_EXAMPLES=…`    how many examples on each database, 40 on SQLite and, since it is slower, 20 on
                                PostgreSQL unless given; with `-n 0 -o faulthandler_timeout=0` for many
`SQLA_JOBS_MODEL_SEED=…`        which ones; in CI always the same, else others at each run
==============================  =======================================================================================
"""

from __future__ import annotations

import faulthandler
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from sqla_jobs.operations import leases
from tests.model.app import Scene
from tests.model.machine import Machine

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from sqla_jobs.rules.lease import Lease
    from sqla_jobs.schema.tables import JobTable

EXAMPLES: Final = {
    name: int(os.environ.get("SQLA_JOBS_MODEL_EXAMPLES", usual)) for name, usual in (("sqlite", 40), ("postgresql", 20))
}

BATCH: Final = 10
"""Examples for each of Hypothesis's runs: from the eleventh on, it varies the ones that it has already had."""

LOOK: Final = (Phase.reuse, Phase.generate)

SETTINGS: Final = settings(
    max_examples=BATCH,
    stateful_step_count=40,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
    # To find the shortest program takes minutes; in CI the seed will do.
    phases=LOOK if "CI" in os.environ else (*LOOK, Phase.shrink),
)

PATHS: Final = {
    "cancel of a job that is ready",
    "effects committed with the settle",
    "effects of a lost lease rolled back",
    "heartbeat finds a lease lost",
    "job archived",
    "job claimed again after a refund or a requeue",
    "job claimed while somebody still works on it",
    "job reaped",
    "job reaped to death",
    "job rolled back with its savepoint",
    "jobs rolled back with their transaction",
    "key of a job that is done",
    "key of a job that is ready",
    "key of a job that is running",
    "key twice in a batch",
    "late settle of a job that is dead",
    "late settle of a job that is done",
    "late settle of a job that is ready",
    "late settle of a job that is running again",
    "lease renewed",
    "requeue of a job that is dead",
    "requeue of a job that is failed",
    "schedule in error",
    "schedule of an unknown type marked",
    "settled after the lease, which nobody had reaped",
    "settled in time",
    "slot fired",
    "slots missed",
    "stale write after an edit",
    "stale write after another's",
}
"""What comes up in at least every fifth example: forty that have not had it all are not what they should be."""


def test_rows_are_what_they_must_be_whatever_happens(database_url: str) -> None:
    """Whatever workers, schedulers and people do, in whatever order, the tables hold what the model says."""
    paths: Counter[str] = Counter()

    examples = play(database_url, paths)

    assert examples < 40 or not PATHS - paths.keys(), f"{PATHS - paths.keys()} never came up, only {dict(paths)}"


def test_machine_finds_a_reaper_that_takes_live_leases(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine can fail: a library without one of its guards is told from a whole one."""

    def running(session: Session, table: JobTable, *, limit: int, but: object) -> list[Lease]:
        return leases.strays(session, table, locked_by="w1", held=frozenset())[:limit]

    monkeypatch.setattr(leases, "expired", running)

    with pytest.raises(AssertionError):
        play(sqlite_url, Counter(), settings(SETTINGS, phases=[Phase.generate]))


def play(database_url: str, paths: Counter[str], how: settings = SETTINGS) -> int:
    """Play as many examples as there are to be, some at a time; give how many."""
    scene = Scene(database_url)
    examples = EXAMPLES[scene.engine.dialect.name]

    class Played(Machine):
        def __init__(self) -> None:
            super().__init__(scene, paths)

    # What takes long is the search for the shortest program: no example waits for anything for more than seconds.
    faulthandler.cancel_dump_traceback_later()
    first = int(os.environ.get("SQLA_JOBS_MODEL_SEED", "0" if "CI" in os.environ else str(random.randrange(10**6))))
    try:
        for number in range(first, first + max(1, examples // BATCH)):
            try:
                run_state_machine_as_test(seed(number)(Played), settings=how)
            except Exception as error:
                error.add_note(f"SQLA_JOBS_MODEL_SEED={number} gives the same examples again")
                raise
    finally:
        scene.close()
    return examples
