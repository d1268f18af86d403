from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.app import hold, hold_plain, hold_then_write, speak

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqla_jobs import NewJob
    from tests.crash.processes import Process
    from tests.crash.scene import Scene

pytestmark = pytest.mark.slow

LEASE = 1.0

HELD: dict[str, Callable[[bool], NewJob[Any]]] = {
    "session": lambda fails: hold.job(fails_first=fails),
    "plain": lambda fails: hold_plain.job(fails_first=fails),
}


def freeze_in_job(scene: Scene, new_job: NewJob[Any], *, names: str = "pod pod") -> tuple[int, Process, Process]:
    """Freeze one of two workers inside a job, its gate open; give the job, the frozen worker and the other."""
    workers = [scene.start(lease=LEASE, name=name) for name in names.split()]
    for worker in workers:
        worker.expect_log("serves")
    (job_id,) = scene.enqueue([new_job])
    (started,) = scene.crew.wait(lambda said: said.is_about("started", job=job_id, attempt=1))
    frozen = started.process
    with scene.quiet(job_id):
        frozen.freeze()
    frozen.open_gate()
    (other,) = (worker for worker in workers if worker is not frozen)
    return job_id, frozen, other


@pytest.mark.parametrize(
    ("kind", "fails", "names"),
    [
        ("session", False, "pod pod"),
        ("session", True, "first second"),
        ("plain", False, "first second"),
        ("plain", True, "pod pod"),
    ],
    ids=["session-returns", "session-raises", "plain-returns", "plain-raises"],
)
def test_f01_worker_frozen_beyond_its_lease_changes_nothing_when_it_wakes(
    scene: Scene, kind: str, fails: bool, names: str
) -> None:
    """When another has run the job, of its name or not, the first one's end leaves the row alone, and it goes on."""
    job_id, frozen, other = freeze_in_job(scene, HELD[kind](fails), names=names)
    other.expect("started", job=job_id, attempt=2)
    other.open_gate()
    other.expect("log", job=job_id, end="done")
    assert other.stopped() == 0
    before = scene.columns(job_id)

    frozen.signal(signal.SIGCONT)

    frozen.expect("log", job=job_id, end="lease_lost")
    (next_id,) = scene.enqueue([speak.job()])
    frozen.expect("log", job=next_id, end="done")
    assert frozen.stopped() == 0
    assert scene.columns(job_id) == before
    assert [said.facts["end"] for said in frozen.said("log", job=job_id)] == ["lease_lost"]
    assert [effect.attempt for effect in scene.effects()] == ([2] if kind == "session" else [])


@pytest.mark.parametrize(("kind", "fails"), [("session", False), ("plain", True)], ids=["session", "plain-raises"])
def test_f01_worker_that_wakes_while_another_runs_its_job_takes_no_lease_away(
    scene: Scene, kind: str, fails: bool
) -> None:
    """The second run keeps its fence, its heartbeats and its outcome."""
    job_id, frozen, other = freeze_in_job(scene, HELD[kind](fails))
    other.expect("started", job=job_id, attempt=2)
    before = scene.job(job_id)

    frozen.signal(signal.SIGCONT)
    frozen.expect("log", job=job_id, end="lease_lost")
    assert frozen.stopped() == 0
    during = scene.job(job_id)
    scene.until(lambda change: change.id == job_id and change.renewed and change.claims == 2, times=4)
    other.open_gate()

    other.expect("log", job=job_id, end="done")
    fence = (during.status, during.locked_by, during.claims, during.attempts)
    assert fence == ("running", before.locked_by, 2, 2)
    assert before.locked_until is not None
    assert during.locked_until is not None
    assert during.locked_until >= before.locked_until


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_f01_worker_frozen_before_it_writes_changes_nothing_on_one_file(any_scene: Scene) -> None:
    """What a session writes after the lease was lost is rolled back, where one write lock serves all, too."""
    job_id, frozen, other = freeze_in_job(any_scene, hold_then_write.job())
    other.expect("started", job=job_id, attempt=2)
    other.open_gate()
    other.expect("log", job=job_id, end="done")
    before = any_scene.columns(job_id)

    frozen.signal(signal.SIGCONT)

    frozen.expect("log", job=job_id, end="lease_lost")
    assert frozen.stopped() == 0
    assert any_scene.columns(job_id) == before
    assert [effect.attempt for effect in any_scene.effects()] == [2]
