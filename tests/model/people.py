"""What the app and its people do: enqueue, cancel, requeue, delete, and have finished jobs archived."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from hypothesis import strategies as st
from sqlalchemy import delete

from sqla_jobs import cancel_jobs, delete_jobs, enqueue, enqueue_many, requeue_jobs
from sqla_jobs.operations.archive import archive_batch, delete_archived_batch
from sqla_jobs.operations.batches import cancel_batch, delete_batch, requeue_batch
from sqla_jobs.operations.listing import JobFilter
from tests.model.app import HANDLERS, MINUTE, Job, jobs
from tests.model.life import FINISHED, MOVABLE, JobRow
from tests.model.stage import Ending, pick
from tests.model.turns import turn
from tests.model.workers import ALL, ENDINGS, MOSTLY, NTH, Workers

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class Order(NamedTuple):
    """A job to enqueue."""

    type: str
    key: str | None = None
    delay: int | None = None


ORDERS: Final = st.builds(
    Order,
    st.sampled_from(["mail", "report", "report"]),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, None, None, 2, 30]),
)

Place = Literal["plain", "kept savepoint", "lost savepoint"]

PLACES: Final[st.SearchStrategy[Place]] = st.sampled_from(["plain", "kept savepoint", "lost savepoint"])

Verb = Literal["cancel", "requeue", "delete"]

VERBS: Final[st.SearchStrategy[Verb]] = st.sampled_from(["requeue", "requeue", "requeue", "cancel", "delete"])

BY_IDS: Final[dict[str, Any]] = {"cancel": cancel_jobs, "requeue": requeue_jobs, "delete": delete_jobs}

BY_FILTER: Final[dict[str, Any]] = {"cancel": cancel_batch, "requeue": requeue_batch, "delete": delete_batch}

BECOMES: Final = {"cancel": "failed", "requeue": "ready", "delete": None}

REASON: Final = "not wanted"


class People(Workers):
    """The turns of the app and of its people."""

    _number = 0

    # --- enqueue

    @turn(orders=st.lists(st.tuples(ORDERS, PLACES), min_size=1, max_size=3), is_kept=MOSTLY)
    def enqueue(self, orders: list[tuple[Order, Place]], *, is_kept: bool) -> None:
        """A transaction enqueues jobs, some of them in savepoints; it is committed or rolled back."""
        session, stored = self.open(), list[JobRow]()
        for wanted, place in orders:
            order = self._free(wanted)
            if place == "plain":
                self._enqueue(session, order, stored)
                continue
            before = list(stored)
            savepoint = session.begin_nested()
            self._enqueue(session, order, stored)
            if place == "kept savepoint":
                savepoint.commit()
            else:
                savepoint.rollback()
                self.saw("job rolled back with its savepoint")
                stored = before
        if not is_kept:
            self.saw("jobs rolled back with their transaction")
        self.end_transaction(session, "commit" if is_kept else "rollback", lambda: self._stored(stored))

    def _enqueue(self, session: Session, order: Order, stored: list[JobRow]) -> None:
        row = self._new(order)
        job = enqueue(session, _handler(order), **row.payload)
        held_by = self._holder(order.key, stored)
        assert job.is_duplicate == (held_by is not None)
        if held_by is not None:
            assert job.id == held_by.id
        else:
            row.id = job.id
            stored.append(row)

    @turn(orders=st.lists(ORDERS, min_size=1, max_size=5), is_kept=MOSTLY)
    def enqueue_many(self, orders: list[Order], *, is_kept: bool) -> None:
        """A transaction enqueues jobs by the batch; a key may come several times."""
        session, stored = self.open(), list[JobRow]()
        free = [self._free(order) for order in orders]
        rows = [self._new(order) for order in free]
        results = enqueue_many(
            session, [_handler(order).job(**row.payload) for order, row in zip(free, rows, strict=True)]
        )
        for row, result in zip(rows, results, strict=True):
            if any(other.idempotency_key == row.idempotency_key is not None for other in stored):
                self.saw("key twice in a batch")
            held_by = self._holder(row.idempotency_key, stored)
            assert result.is_duplicate == (held_by is not None)
            if held_by is not None:
                assert result.id == held_by.id
            else:
                row.id = result.id
                stored.append(row)
        unkeyed = [row.id for row in stored if row.idempotency_key is None]
        assert unkeyed == sorted(unkeyed)
        self.end_transaction(session, "commit" if is_kept else "rollback", lambda: self._stored(stored))

    def _free(self, order: Order) -> Order:
        """Give the order, without its key if an open transaction has its row: there would be a wait."""
        holder = self.life.holder(order.key)
        return order if holder is None or not self.is_locked(holder.id) else order._replace(key=None)

    def _new(self, order: Order) -> JobRow:
        handler = HANDLERS[order.type]
        self._number += 1
        return JobRow(
            id=0,
            type=order.type,
            payload={"n": self._number},
            queue=handler.spec.queue,
            run_at=self.now + (order.delay or 0) * MINUTE,
            created_at=self.now,
            max_attempts=handler.spec.max_attempts,
            idempotency_key=order.key,
        )

    def _holder(self, key: str | None, stored: list[JobRow]) -> JobRow | None:
        """Give the job that holds the key as this transaction sees it, and take note of what it is."""
        if key is None:
            return None
        if (row := self.life.holder(key)) is not None:
            self.saw(f"key of a job that is {row.status}")
            return row
        if (row := next((row for row in stored if row.idempotency_key == key), None)) is not None:
            return row
        if key in self.life.freed:
            self.saw(f"key free again, its job {self.life.freed[key]}")
        return None

    def _stored(self, rows: list[JobRow]) -> None:
        for row in rows:
            self.life.add(row)

    # --- people

    @turn(
        weight=2,
        when=lambda self: self.life.jobs,
        verb=VERBS,
        nths=st.lists(NTH, min_size=1, max_size=3),
        max_attempts=st.sampled_from([None, None, 1, 3]),
    )
    def move(self, verb: Verb, nths: list[int], max_attempts: int | None) -> None:
        """Somebody cancels, requeues or deletes jobs by their ids, of whatever status they are."""
        ids = [pick(self._movable(verb), nth) for nth in nths if self._movable(verb)]
        options: dict[str, dict[str, Any]] = {"cancel": {"reason": REASON}, "requeue": {"max_attempts": max_attempts}}
        before = {id_: self._status(id_) for id_ in ids}
        moved = {id_: self.life.jobs[id_] for id_ in ids if id_ in self.life.jobs and before[id_] in MOVABLE[verb]}
        with self.transaction() as session:
            answers = BY_IDS[verb](session, jobs, ids, **options.get(verb, {}))
        told = [(answer.job_id, answer.is_changed, answer.status) for answer in answers]
        assert told == [(id_, id_ in moved, BECOMES[verb] if id_ in moved else before[id_]) for id_ in ids]
        for row in moved.values():
            self._moved(verb, row, max_attempts)

    @turn(when=lambda self: self.life.jobs, verb=VERBS, type_=st.sampled_from(["mail", "report"]), nth=NTH)
    def move_all(self, verb: Verb, type_: str, nth: int) -> None:
        """Somebody does the same to all jobs of a type, passing over locked ones; or deletes one row by plain SQL."""
        if verb == "delete":
            self._wipe(pick(list(self.life.jobs.values()), nth))
            return
        rows = [row for row in self.life.jobs.values() if row.type == type_ and row.status in MOVABLE[verb]]
        free = [row for row in rows if not self.is_locked(row.id)]
        more = {"reason": REASON} if verb == "cancel" else {}
        with self.transaction() as session:
            batch = BY_FILTER[verb](session, jobs, JobFilter(status=MOVABLE[verb], type=type_), **more)
        assert (batch.changed, batch.skipped, batch.after) == (len(free), len(rows) - len(free), None)
        for row in free:
            self._moved(verb, row, None)

    def _wipe(self, row: JobRow) -> None:
        if not self.is_locked(row.id):
            self.saw(f"row of a job that is {row.status} deleted by SQL")
            with self.transaction() as session:
                session.execute(delete(Job.__table__).where(Job.id == row.id))  # type: ignore[arg-type]
            self.revoke(row.id)
            self._forget(row)

    def _movable(self, verb: Verb) -> list[int]:
        """Give the ids to choose from, those first that the verb is meant for; a locked row would be waited for."""
        rows = [row for row in self.life.jobs.values() if not self.is_locked(row.id)]
        rows.sort(key=lambda row: (row.status not in MOVABLE[verb], row.slot is None))
        return [*(row.id for row in rows), *self.life.archive, *sorted(self.life.gone)]

    def _status(self, job_id: int) -> str | None:
        row = self.life.jobs.get(job_id)
        if row is not None:
            return row.status
        return self.life.archive[job_id]["status"] if job_id in self.life.archive else None

    def _moved(self, verb: Verb, row: JobRow, max_attempts: int | None) -> None:
        self.saw(f"{verb} of a job that is {row.status}")
        if verb == "cancel":
            self.revoke(row.id)
            self.life.cancel(row, REASON, self.now)
        elif verb == "requeue":
            self.life.requeue(row, max_attempts, self.now)
        else:
            self._forget(row)

    def _forget(self, row: JobRow) -> None:
        if row.slot is not None:
            self.saw("job of a slot deleted")
        self.life.delete(row.id)

    # --- the archiver

    @turn(
        weight=2,
        when=lambda self: self.has(*FINISHED),
        status=st.sampled_from(["done", "done", "failed", "dead"]),
        minutes=st.sampled_from([0, 0, 3, 60]),
        limit=st.sampled_from([1, ALL]),
        ending=ENDINGS,
    )
    def archive(self, status: str, minutes: int, limit: int, ending: Ending) -> None:
        """An archiver moves one batch of what has ended long enough ago."""
        rows = self.life.old(status, minutes * MINUTE, self.now)
        rows = [row for row in rows if not self.is_locked(row.id)][:limit]
        session = self.open()
        batch = archive_batch(session, jobs, status, minutes * MINUTE, limit=limit)
        assert (batch.changed, batch.after is not None) == (len(rows), len(rows) == limit)
        now = self.now

        def apply() -> None:
            for row in rows:
                self.saw("job archived" if row.slot is None else "job of a slot archived")
                self.life.store_away(row, now)

        self.end_transaction(session, ending, apply, jobs=[row.id for row in rows])

    @turn(when=lambda self: self.life.archive, minutes=st.sampled_from([0, 60]))
    def purge(self, minutes: int) -> None:
        """An archiver deletes what has been in the archive for long."""
        old = [
            id_ for id_, row in self.life.archive.items() if row["archived_at"] <= self.now - timedelta(minutes=minutes)
        ]
        with self.transaction() as session:
            batch = delete_archived_batch(session, jobs, timedelta(minutes=minutes))
        assert batch.changed == len(old)
        for id_ in old:
            del self.life.archive[id_]
            self.life.gone.add(id_)


def _handler(order: Order) -> Any:
    return HANDLERS[order.type].using(key=order.key, delay=None if order.delay is None else order.delay * MINUTE)
