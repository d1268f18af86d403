"""What is looked at after each step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sqla_jobs.status import MOVES, JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from tests.model.app import Rows, Stored
    from tests.model.life import Life
    from tests.model.slots import ScheduleRow
    from tests.model.stage import Worker


def compare(stored: Stored, life: Life, schedules: Mapping[int, ScheduleRow]) -> None:
    """Check that the tables hold what the model says, row by row and column by column."""
    _same("job", stored.jobs, {id_: vars(row) for id_, row in life.jobs.items()})
    _same("archived job", stored.archive, life.archive)
    found = {id_: row | {"last_error": _marked(row["last_error"])} for id_, row in stored.schedules.items()}
    wanted = {id_: vars(row) | {"last_error": _marked(row.last_error)} for id_, row in schedules.items()}
    _same("schedule", found, wanted)
    assert Counter(stored.effects) == Counter(life.effects), "effects are not those of the runs that were committed"


def _marked(error: object) -> bool:
    return error is not None


def _same(what: str, found: Rows, wanted: Rows) -> None:
    if found == wanted:
        return
    assert found.keys() == wanted.keys(), f"{what}s {sorted(found)} are stored, and should be {sorted(wanted)}"
    for id_, row in wanted.items():
        differing = {
            name: (found[id_].get(name), value) for name, value in row.items() if found[id_].get(name) != value
        }
        assert not differing, f"{what} {id_} has, and should have: {differing}"
    raise AssertionError(f"{what}: {found} is not {wanted}")


def one_live_claim(workers: Iterable[Worker], now: datetime) -> None:
    """Check that no two workers believe to hold an unexpired lease on one job, by the database's time."""
    live = Counter(held.lease.id for worker in workers for held in worker.held if not held.is_void and held.until > now)
    assert all(count == 1 for count in live.values()), f"jobs are held twice: {live}"


class History:
    """What may never happen to a row, whatever the model thinks of it.

    :ivar undone: jobs whose claim was undone by force since the last look
    """

    def __init__(self) -> None:
        self.undone: set[int] = set()
        self._jobs: Rows = {}
        self._schedules: Rows = {}
        self._slots: dict[tuple[Any, Any], int] = {}

    def skip(self) -> None:
        """Let jobs make several moves until the next look."""
        self._jobs = {}

    def add(self, stored: Stored) -> None:
        """Check what has become of the rows since the last look."""
        for id_, row in stored.jobs.items():
            assert row["attempts"] <= row["max_attempts"], f"job {id_} has begun too many attempts"
            if (before := self._jobs.get(id_)) is not None:
                self._check_job(before, row)
        keys = Counter(row["idempotency_key"] for row in stored.jobs.values() if row["idempotency_key"] is not None)
        assert all(count == 1 for count in keys.values()), f"a key is held twice: {keys}"
        self._check_effects(stored)
        self._check_schedules(stored)
        self._jobs, self._schedules, self.undone = stored.jobs, stored.schedules, set()

    def _check_job(self, before: dict[str, Any], row: dict[str, Any]) -> None:
        id_, was, is_ = row["id"], JobStatus(before["status"]), JobStatus(row["status"])
        assert is_ is was or is_ in MOVES[was], f"job {id_} went from {was} to {is_}"
        assert was is not JobStatus.DONE or row == before, f"job {id_} was done, and has changed"
        if id_ not in self.undone:
            assert row["claims"] >= before["claims"], f"the claims of job {id_} fell"
            assert row["claims"] <= before["claims"] + 1, f"job {id_} was claimed twice at once"

    def _check_effects(self, stored: Stored) -> None:
        written = Counter(job_id for job_id, _ in stored.effects)
        assert all(count == 1 for count in written.values()), f"a job's effects were committed twice: {written}"
        ended = stored.jobs | stored.archive
        early = [id_ for id_ in written if id_ in ended and ended[id_]["status"] != "done"]
        assert not early, f"effects of jobs that are not done were committed: {early}"

    def _check_schedules(self, stored: Stored) -> None:
        for id_, row in (stored.jobs | stored.archive).items():
            if row["slot"] is not None:
                # Also over those that were deleted: it is remembered here.
                first = self._slots.setdefault((row["schedule_id"], row["slot"]), id_)
                assert first == id_, f"slot {row['slot']} has the jobs {first} and {id_}"
        for id_, row in stored.schedules.items():
            before = self._schedules.get(id_)
            if before is not None and before["last_slot"] is not None:
                assert row["last_slot"] is not None, f"schedule {id_} has forgotten its last slot"
                assert row["last_slot"] >= before["last_slot"], f"the last slot of schedule {id_} moved back"
