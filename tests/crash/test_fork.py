from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crash.app import write_backend

if TYPE_CHECKING:
    from tests.crash.scene import Scene


@pytest.mark.parametrize("made_in", ["parent", "child"])
def test_forked_workers_share_no_connection_with_their_parent(scene: Scene, made_in: str) -> None:
    """Four forks of a process that has used its engine do all jobs once, each over connections of its own."""
    ids = scene.enqueue(write_backend.job() for _ in range(200))

    parent = scene.start(role="fork", made_in=made_in, concurrency=4)

    joined = parent.expect("joined")
    assert parent.ended() == 0
    assert joined.facts["codes"] == [0, 0, 0, 0]
    assert scene.statuses() == {"done": 200}
    effects = scene.effects()
    assert [effect.job_id for effect in effects] == ids
    inherited = set(parent.expect("parent").facts["backends"])
    assert joined.facts["backend"] in inherited
    assert not inherited & {effect.backend for effect in effects}
    users: dict[int | None, set[int]] = {}
    for effect in effects:
        users.setdefault(effect.backend, set()).add(effect.pid)
    assert all(len(pids) == 1 for pids in users.values())
