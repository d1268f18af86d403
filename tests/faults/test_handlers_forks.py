from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.architecture.sources import ROOT
from tests.crash.app import write_backend

if TYPE_CHECKING:
    from tests.crash.scene import Scene
    from tests.runtime.app import App

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("made_in", ["parent", "child"])
def test_f41_forked_workers_share_no_connection_with_their_parent(scene: Scene, made_in: str) -> None:
    """Four forks of a process that has used its engine do all jobs once, each over connections of its own."""
    ids = scene.enqueue(write_backend.job() for _ in range(200))

    parent = scene.start(role="fork", made_in=made_in, concurrency=4)

    joined = parent.expect("joined")
    assert parent.ended() == 0
    assert joined.facts["codes"] == [0, 0, 0, 0]
    assert scene.statuses() == {"done": 200}
    effects = scene.effects()
    assert [effect.job_id for effect in effects[::2]] == [effect.job_id for effect in effects[1::2]] == ids
    inherited = set(parent.expect("parent").facts["backends"])
    assert joined.facts["backend"] in inherited
    assert not inherited & {effect.backend for effect in effects}
    users: dict[int | None, set[int]] = {}
    for effect in effects:
        users.setdefault(effect.backend, set()).add(effect.pid)
    assert all(len(pids) == 1 for pids in users.values())


def test_f41_running_worker_refuses_in_a_fork_and_another_works(app: App, database_url: str) -> None:
    """In a child of a fork the parent's running worker refuses, and another one shares no connection with it."""
    program = [sys.executable, "-W", "ignore", "-m", "tests.runtime.forking", database_url]

    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "stop of the parent's running worker: refused, for the fork",
        "worker made by the parent: its own connections",
        "worker made by the child: its own connections",
        "parent: goes on",
    ]
