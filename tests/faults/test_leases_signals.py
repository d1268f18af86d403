from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.crash.app import hold, hold_async, hold_async_session, hold_plain, speak

if TYPE_CHECKING:
    from sqla_jobs import Handler
    from tests.crash.processes import Process
    from tests.crash.scene import Scene

pytestmark = pytest.mark.slow

LEASE = 1.0

LONGER = 3.0
"""So that a busy machine lets none run out where none is to."""

Held: TypeAlias = "Handler[Any, ..., [], Any]"

STOPPING = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


def start_beside_idle(scene: Scene, job_id: int, *, grace: float, lease: float = LONGER) -> tuple[Process, Process]:
    """Start the worker that runs the job, and then one beside it that finds nothing to do."""
    runs = scene.start(lease=lease, grace=grace)
    runs.expect("started", job=job_id, attempt=1)
    idle = scene.start(lease=lease)
    idle.expect_log("serves")
    return runs, idle


@pytest.mark.parametrize(
    ("kind", "number"),
    [(hold, signal.SIGTERM), (hold_plain, signal.SIGINT)],
    ids=["session-SIGTERM", "plain-SIGINT"],
)
def test_f11_job_that_ends_within_the_grace_is_done_and_the_worker_exits_with_zero(
    scene: Scene, kind: Held, number: signal.Signals
) -> None:
    """While it drains, a worker claims no more and its heartbeats go on, over more than a lease."""
    (job_id,) = scene.enqueue([kind.job()])
    runs, idle = start_beside_idle(scene, job_id, grace=60)

    runs.signal(number)
    runs.expect_log("claims no more")
    (next_id,) = scene.enqueue([speak.job()])
    idle.expect("started", job=next_id)
    scene.until(lambda change: change.id == job_id and change.renewed, times=4)
    runs.open_gate()

    assert runs.ended() == 0
    row = scene.job(job_id)
    assert (row.status, row.attempts, row.lease_expirations, row.result) == ("done", 1, 0, runs.pid)
    assert not runs.said("started", job=next_id)
    assert not idle.said("started", job=job_id)
    assert idle.stopped() == 0


@pytest.mark.parametrize(
    ("kind", "number"),
    [(hold, signal.SIGINT), (hold_plain, signal.SIGTERM)],
    ids=["session-SIGINT", "plain-SIGTERM"],
)
def test_f11_job_that_outlasts_the_grace_is_given_back_without_an_attempt_used(
    scene: Scene, kind: Held, number: signal.Signals
) -> None:
    """Giving back a running sync handler's job is the process's last act, and another worker takes it at once."""
    (job_id,) = scene.enqueue([kind.job()])
    runs, idle = start_beside_idle(scene, job_id, grace=0.2)

    runs.signal(number)

    assert runs.ended() == 0
    idle.expect("started", job=job_id, attempt=1)
    idle.open_gate()
    idle.expect("log", job=job_id, end="done")
    assert idle.stopped() == 0
    row = scene.job(job_id)
    assert (row.status, row.attempts, row.claims, row.lease_expirations) == ("done", 1, 2, 0)
    assert [said.facts["end"] for said in runs.said("log", job=job_id)] == ["released"]
    assert [effect.pid for effect in scene.effects()] == ([idle.pid] if kind is hold else [])


@pytest.mark.parametrize("kind", [hold_async, hold_async_session], ids=["plain", "session"])
def test_f11_async_job_that_outlasts_the_grace_is_cancelled_and_given_back(scene: Scene, kind: Held) -> None:
    """An async handler is cancelled at the end of the grace, uses no attempt, and leaves no write."""
    (job_id,) = scene.enqueue([kind.job()])
    runs = scene.start(lease=LONGER, grace=0.2)
    runs.expect("started", job=job_id)

    assert runs.stopped() == 0

    row = scene.job(job_id)
    assert (row.status, row.attempts, row.claims, row.locked_by, row.last_error) == ("ready", 0, 1, None, None)
    assert [said.facts["end"] for said in runs.said("log", job=job_id)] == ["released"]
    assert scene.effects() == []


@STOPPING
def test_f11_second_signal_ends_the_worker_at_once(scene: Scene, number: signal.Signals) -> None:
    """It exits non-zero whatever runs, and the reaper gives the job back."""
    (job_id,) = scene.enqueue([hold.job()])
    runs, idle = start_beside_idle(scene, job_id, grace=60, lease=LEASE)

    runs.signal(number)
    runs.expect_log("claims no more")
    runs.signal(number)

    assert runs.ended() == 128 + number
    idle.expect("started", job=job_id, attempt=2)
    idle.open_gate()
    idle.expect("log", job=job_id, end="done")
    assert idle.stopped() == 0
    assert scene.job(job_id).lease_expirations == 1
    assert [effect.pid for effect in scene.effects()] == [idle.pid]


@STOPPING
def test_f11_idle_worker_ends_at_once(any_scene: Scene, number: signal.Signals) -> None:
    """A worker that waits for work needs none of its grace, and nothing of its poll interval."""
    idle = any_scene.start(grace=3600, poll_interval=3600)
    idle.expect_log("serves")

    idle.signal(number)

    assert idle.ended() == 0
