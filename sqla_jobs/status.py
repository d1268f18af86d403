"""The five statuses of a job and the moves between them.

.. code-block:: text

     enqueue ──▶ ready ──claim──▶ running ──returned────────────▶ done
                  ▲                 │ │ └──GiveUp, cancel────────▶ failed ──requeue──▶ ready
                  │  Retry, error,  │ └────attempts used up──────▶ dead ────requeue──▶ ready
                  └──Snooze, reap───┘
"""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    """Where a job is in its life. The column holds the text."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"


FINISHED = frozenset({JobStatus.DONE, JobStatus.FAILED, JobStatus.DEAD})
"""A job in one of these runs no more unless somebody requeues it."""

DEAD_LETTERS = frozenset({JobStatus.FAILED, JobStatus.DEAD})

MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.READY: frozenset({JobStatus.RUNNING, JobStatus.FAILED}),
    JobStatus.RUNNING: frozenset({JobStatus.READY, JobStatus.DONE, JobStatus.FAILED, JobStatus.DEAD}),
    JobStatus.DONE: frozenset(),
    JobStatus.FAILED: frozenset({JobStatus.READY}),
    JobStatus.DEAD: frozenset({JobStatus.READY}),
}
"""The legal moves; a ready job that is cancelled ends `failed`."""
