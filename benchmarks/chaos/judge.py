"""What is lost, what is doubled, and what else is wrong, in the words of the database.

Each check is a query whose rows are the violations. They read `final`, in which each job stands as it ended: in the job
table, in the archive, or as somebody has deleted it by hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import Connection, RowMapping, text

from benchmarks.chaos.app import KINDS
from benchmarks.chaos.enqueuing import VOID

Sort = Literal["lost", "doubled", "broken"]

SHOWN = 5
"""Rows of a check that are told in full."""


@dataclass(frozen=True, slots=True)
class Check:
    """A truth, and the query that finds what goes against it."""

    sort: Sort
    says: str
    query: str


@dataclass(slots=True)
class Verdict:
    """What the checks have found: how many rows of each sort, and the rows in words."""

    lost: int = 0
    doubled: int = 0
    broken: int = 0
    details: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.broken)

    def add(self, sort: Sort, says: str, rows: Sequence[str]) -> None:
        """Count violations, and tell the first of them."""
        if rows:
            setattr(self, sort, getattr(self, sort) + len(rows))
            self.details.append(f"{sort.upper()}: {says}: {len(rows)}")
            self.details += [f"    {row}" for row in rows[:SHOWN]]
            if len(rows) > SHOWN:
                self.details.append("    …")


CHECKS = (
    # --- lost
    Check(
        "lost",
        "a job whose enqueue was committed is nowhere",
        "SELECT * FROM entry WHERE NOT EXISTS (SELECT FROM final WHERE final.id = entry.job_id)",
    ),
    Check(
        "lost",
        "a transaction was committed, and not all of it is there",
        """
        SELECT batch, known.entries, count(entry.id) AS found FROM known LEFT JOIN entry USING (batch)
        GROUP BY batch, known.entries HAVING count(entry.id) < known.entries
        UNION ALL
        SELECT batch, known.entries, 0 FROM known
        WHERE known.entries IS NOT NULL AND NOT EXISTS (SELECT FROM purchase WHERE purchase.batch = known.batch)
        """,
    ),
    Check(
        "lost",
        "a transaction's jobs are there, and its business row is not",
        """
        SELECT * FROM entry WHERE batch IS NOT NULL
        AND NOT EXISTS (SELECT FROM purchase WHERE purchase.batch = entry.batch)
        """,
    ),
    Check(
        "lost",
        "a job has not ended",
        "SELECT * FROM final WHERE status NOT IN ('done', 'failed', 'dead')",
    ),
    Check(
        "lost",
        "a job is done, and the effect that it wrote through its session is not there",
        """
        SELECT * FROM final WHERE status = 'done' AND type = ANY(:with_session)
        AND NOT EXISTS (SELECT FROM effect WHERE job_id = final.id)
        """,
    ),
    Check(
        "lost",
        "a job is done, and what it wrote to its own row is not there",
        "SELECT * FROM final WHERE status = 'done' AND type = 'annotate' AND note IS DISTINCT FROM 'annotated'",
    ),
    Check(
        "lost",
        "a job is done, and never ran",
        """
        SELECT * FROM final WHERE status = 'done' AND type = ANY(:without_session)
        AND NOT EXISTS (SELECT FROM outside_run WHERE job_id = final.id)
        """,
    ),
    Check(
        "lost",
        "a job is done, and the one that it enqueued was not committed with it",
        """
        SELECT * FROM final WHERE status = 'done' AND type = 'chain'
        AND NOT EXISTS (SELECT FROM entry WHERE parent = final.id)
        """,
    ),
    Check(
        "lost",
        "a slot has no job",
        """
        SELECT schedule.name, slot FROM planned JOIN schedule ON schedule.id = schedule_id,
        generate_series(first_slot, last_slot, step * interval '1 second') AS slot
        WHERE NOT leaves_out AND NOT EXISTS (
            SELECT FROM final WHERE final.schedule_id = planned.schedule_id AND final.slot = slot.slot)
        """,
    ),
    Check(
        "lost",
        "slots have no job, and are not counted as missed or overlapping",
        """
        SELECT * FROM (
            SELECT name, slots_missed, overlaps_skipped,
                1 + extract(epoch FROM last_slot - first_slot) / step AS slots,
                (SELECT count(*) FROM final WHERE final.schedule_id = schedule.id
                    AND final.slot BETWEEN first_slot AND last_slot) AS jobs
            FROM planned JOIN schedule ON schedule.id = schedule_id) AS account
        WHERE jobs + slots_missed + overlaps_skipped < slots
        """,
    ),
    Check(
        "lost",
        "a schedule has never fired",
        """
        SELECT name FROM planned JOIN schedule ON schedule.id = schedule_id
        WHERE last_slot IS NULL AND step < 60
        """,
    ),
    # --- doubled
    Check(
        "doubled",
        "a job has more effects than one",
        """
        SELECT job_id, count(*), array_agg(attempt) AS attempts, array_agg(pid) AS pids,
            (SELECT concat_ws(' ', type, status, attempts, claims) FROM final WHERE id = job_id LIMIT 1) AS job
        FROM effect GROUP BY job_id HAVING count(*) > 1
        """,
    ),
    Check(
        "doubled",
        "the effect of an attempt was committed, and the attempt did not end as done",
        """
        SELECT final.*, effect.attempt FROM effect JOIN final ON final.id = effect.job_id
        WHERE status <> 'done' OR effect.attempt <> final.attempts
        """,
    ),
    Check(
        "doubled",
        "the job that an attempt enqueued was committed more than once, or without the attempt",
        """
        SELECT parent, count(*) FROM entry JOIN final ON final.id = parent WHERE NOT is_duplicate
        GROUP BY parent HAVING count(*) > 1 OR bool_or(final.status <> 'done')
        """,
    ),
    Check(
        "doubled",
        "a slot has more than one job",
        """
        SELECT schedule_id, slot, array_agg(id) AS jobs FROM final WHERE slot IS NOT NULL
        GROUP BY schedule_id, slot HAVING count(*) > 1
        """,
    ),
    Check(
        "doubled",
        "slots are accounted for more than once",
        """
        SELECT * FROM (
            SELECT name, slots_missed, overlaps_skipped,
                1 + extract(epoch FROM last_slot - first_slot) / step AS slots,
                (SELECT count(*) FROM final WHERE final.schedule_id = schedule.id
                    AND final.slot BETWEEN first_slot AND last_slot) AS jobs
            FROM planned JOIN schedule ON schedule.id = schedule_id WHERE last_slot >= first_slot) AS account
        WHERE jobs + slots_missed + overlaps_skipped > slots
        """,
    ),
    Check(
        "doubled",
        "a key had two jobs at a time",
        """
        SELECT first.id, first.idempotency_key, first.place, first.created_at, first.finished_at, second.id,
            second.created_at
        FROM final AS first JOIN final AS second ON second.idempotency_key = first.idempotency_key
        WHERE first.id <> second.id AND first.created_at <= second.created_at
        AND (first.place = 'live' OR first.finished_at IS NULL OR first.finished_at > second.created_at)
        """,
    ),
    Check(
        "doubled",
        "a job stands in two places",
        "SELECT id, array_agg(place) AS places FROM final GROUP BY id HAVING count(*) > 1",
    ),
    Check(
        "doubled",
        "two enqueues say that they have made the same job",
        "SELECT job_id, array_agg(batch) AS b FROM entry WHERE NOT is_duplicate GROUP BY job_id HAVING count(*) > 1",
    ),
    # --- broken
    Check(
        "broken",
        "a job is there, and no committed transaction has enqueued it",
        """
        SELECT * FROM final WHERE schedule_id IS NULL
        AND NOT EXISTS (SELECT FROM entry WHERE job_id = final.id AND NOT is_duplicate)
        """,
    ),
    Check(
        "broken",
        "a transaction was rolled back, and something of it is there",
        """
        SELECT batch, 'job' AS what
        FROM known JOIN final ON final.payload ->> 'token' = batch WHERE entries IS NULL
        UNION ALL SELECT batch, 'purchase' FROM known JOIN purchase USING (batch) WHERE entries IS NULL
        UNION ALL SELECT payload ->> 'token', 'job of a savepoint'
        FROM final WHERE payload ->> 'token' LIKE '%' || :void
        """,
    ),
    Check(
        "broken",
        "a job has more attempts than it may, or than claims",
        "SELECT * FROM final WHERE attempts > max_attempts OR attempts > claims OR attempts < 0",
    ),
    Check(
        "broken",
        "a job is dead, and has attempts left",
        """
        SELECT * FROM final WHERE status = 'dead' AND attempts < max_attempts
        AND coalesce(last_error, '') NOT LIKE 'refunded %'
        """,
    ),
    Check(
        "broken",
        "a job has not ended as its kind does, and nobody has cancelled it",
        """
        SELECT * FROM final
        WHERE status IN ('done', 'failed', 'dead') AND NOT CAST(:ends AS jsonb) -> type ? status
        AND NOT (status = 'failed' AND EXISTS (SELECT FROM act WHERE job_id = final.id AND becomes = 'failed'))
        """,
    ),
    Check(
        "broken",
        "a finished job does not say when it ended, or still has a lease",
        """
        SELECT * FROM final WHERE status IN ('done', 'failed', 'dead')
        AND (finished_at IS NULL OR locked_until IS NOT NULL)
        """,
    ),
    Check("broken", "something was seen that must not be", "SELECT * FROM violation"),
)


def judge(connection: Connection) -> Verdict:
    """Look at all that is there."""
    verdict = Verdict()
    for check in CHECKS:
        rows = connection.execute(text(check.query), _PARAMETERS).mappings().all()
        verdict.add(check.sort, check.says, [_brief(row) for row in rows])
    return verdict


def _brief(row: RowMapping) -> str:
    """Give a row in one line: what is NULL tells nothing, and times are UTC."""
    values = {name: value for name, value in row.items() if value is not None}
    for name, value in values.items():
        if isinstance(value, datetime):
            values[name] = f"{value.astimezone(UTC):%H:%M:%S.%f}"
    return ", ".join(f"{name}={value}" for name, value in values.items())


_PARAMETERS = {
    "with_session": [kind.name for kind in KINDS if kind.has_session],
    "without_session": [kind.name for kind in KINDS if not kind.has_session],
    "ends": json.dumps({kind.name: kind.ends for kind in KINDS}),
    "void": VOID,
}
