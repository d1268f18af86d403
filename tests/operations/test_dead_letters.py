from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import ForeignKey, MetaData, String, func, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.batches import delete_batch
from sqla_jobs.operations.dead_letters import Answer, cancel_jobs, delete_jobs, requeue_jobs
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.listing import JobFilter, find_jobs, show_job
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.settlement import LAST_ERROR_BYTES
from sqla_jobs.runtime.context import current_job
from sqla_jobs.schema.mixins import JobMixin
from sqla_jobs.testing import drain
from tests.operations.operating import HOUR, MOVES, NOW, STATUSES, Job, Note, Scene, add, clock, jobs
from tests.operations.scheduling import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    return Scene(app_engine)


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Give the columns that differ, with their new values; times of now as `NOW`."""
    new = {name: value for name, value in after.items() if value != before[name]}
    return {name: NOW if is_now(value) else value for name, value in new.items()}


def is_now(value: Any) -> bool:
    return hasattr(value, "tzinfo") and NOW <= value < NOW + HOUR / 4


FULL: dict[str, Any] = {
    "payload": {"order_id": 7},
    "attempts": 3,
    "refunds": 2,
    "claims": 6,
    "last_error": "OSError: no route",
    "errors": [{"attempt": 1, "started_at": None, "worker": "w0", "error": "boom"}],
    "result": {"so": "far"},
    "lease_expirations": 2,
    "last_lease_expired_at": NOW - 2 * HOUR,
    "schedule_id": 9,
    "slot": NOW - 3 * HOUR,
    "trace": {"t": "1"},
}
"""A row that has been through much."""


def full(key: str) -> dict[str, Any]:
    return FULL | {"idempotency_key": key}


REQUEUED = {"status": "ready", "run_at": NOW, "attempts": 0, "refunds": 0, "locked_by": None, "finished_at": None}
CANCELLED = {"status": "failed", "last_error": "cancelled", "finished_at": NOW}

CHANGED: dict[str, dict[str, dict[str, Any]]] = {
    "requeue": {"failed": REQUEUED, "dead": REQUEUED},
    "cancel": {"ready": CANCELLED, "running": CANCELLED | {"locked_until": None}},
    "delete": {"done": {}, "failed": {}, "dead": {}},
}
"""What each verb changes in a row of each status; nothing in those of the others."""

TEXTS = {
    "requeue": ("requeued", "only failed and dead jobs are requeued"),
    "cancel": ("cancelled", "only ready and running jobs are cancelled"),
    "delete": ("deleted", "only finished jobs are deleted: cancel it first"),
}


@pytest.mark.parametrize("verb", CHANGED)
def test_job_is_moved_from_its_statuses_and_answered_in_the_others(scene: Scene, verb: str) -> None:
    """Each id gets an answer in turn, twice if asked twice; a row that can't be moved is left as it was."""
    past, advice = TEXTS[verb]
    with scene.transaction() as session:
        ids = {status: add(session, status, **full(status)) for status in STATUSES[::-1]}
        archived = add(session, "done", id=9999, is_archived=True)
    before = {status: scene.row(job_id) for status, job_id in ids.items()}

    with scene.transaction() as session:
        answers = MOVES[verb](session, jobs, [*ids.values(), 404, archived, ids["dead"]])

    moved = CHANGED[verb]
    becomes: dict[str, str | None] = {"requeue": "ready", "cancel": "failed", "delete": None}
    for status, answer in zip([*ids, None, None, "dead"], answers, strict=True):
        if status is not None:
            job_id = ids[status]
            assert answer == (
                Answer(job_id, is_changed=True, status=becomes[verb], text=f"job {job_id} is {past}")
                if status in moved
                else Answer(job_id, False, status, f"job {job_id} is {status}, and is not {past}: {advice}")
            )
    assert answers[5] == Answer(404, is_changed=False, status=None, text="there is no job 404")
    assert (answers[6].is_changed, answers[6].status) == (False, "done")
    assert answers[6].text == f"job 9999 (done) is in the archive, and is not {past}"
    for status, job_id in ids.items():
        if verb == "delete" and status in moved:
            assert job_id not in scene.statuses()
        else:
            assert changes(before[status], scene.row(job_id)) == moved.get(status, {})


def test_ids_come_in_any_shape(scene: Scene) -> None:
    """One id, a set, a generator, none at all, and more than one statement takes, among them some that can't be."""
    with scene.transaction() as session:
        ids = [add(session, "dead") for _ in range(4)]
        assert [answer.job_id for answer in requeue_jobs(session, jobs, ids[0])] == [ids[0]]
        assert [answer.is_changed for answer in requeue_jobs(session, jobs, {ids[1]})] == [True]
        answers = requeue_jobs(session, jobs, (job_id for job_id in (ids[3], ids[2])))
        assert [answer.job_id for answer in answers] == [ids[3], ids[2]]
        assert requeue_jobs(session, jobs, []) == []

        many = [2**63 - 1, -5, 0, *range(10**6, 10**6 + 1200), *ids]
        answers = cancel_jobs(session, jobs, many)

    assert [answer.job_id for answer in answers] == many
    assert [answer.job_id for answer in answers if answer.is_changed] == ids


# --- requeue --------------------------------------------------------------------------------------------------------


def attempts_of(session: Session, registry: Jobs[Any], *, most: int = 9) -> list[str]:
    """Run jobs until none is left to retry, and give the events with their attempts."""
    told: list[str] = []
    for _ in range(most):
        told += [f"{event.name} {event.attempt} of {event.max_attempts}" for event in drain(session, registry)]
        clock.advance(session, timedelta(days=1))
    return told


@pytest.mark.parametrize(("given", "limit"), [(None, 2), (3, 3), (1, 1)])
def test_requeued_job_has_all_its_attempts_again(scene: Scene, given: int | None, limit: int) -> None:
    """It runs from attempt 1 to its end, with the old number of attempts or the new, and its history goes on."""
    registry = Jobs(Job, now=clock.now)
    seen: list[int] = []

    @registry.handler(max_attempts=2)
    def pay(card: str) -> None:
        seen.append(current_job().attempt)
        raise ValueError(card)

    with scene.transaction() as session:
        job = enqueue(session, pay, card="visa")
        assert attempts_of(session, registry) == ["retried 1 of 2", "dead 2 of 2"]

        answers = requeue_jobs(session, registry, job.id, max_attempts=given)
        attempts_again = attempts_of(session, registry)

        assert [answer.text for answer in answers] == [f"job {job.id} is requeued"]
        retried = [f"retried {attempt} of {limit}" for attempt in range(1, limit)]
        assert attempts_again == [*retried, f"dead {limit} of {limit}"]
        assert seen == [1, 2, *range(1, limit + 1)]
        assert (job.status, job.attempts, job.max_attempts, job.claims) == ("dead", limit, limit, 2 + limit)
        assert [error["attempt"] for error in job.errors] == [1, 2, *range(1, limit + 1)]


def test_requeued_job_can_end_well(scene: Scene) -> None:
    """Its result is that of the new run; what had failed stays to be read."""
    registry = Jobs(Job, now=clock.now)
    is_mended = False

    @registry.handler(max_attempts=1)
    def pay() -> str:
        if not is_mended:
            raise ValueError("no card")
        return "paid"

    with scene.transaction() as session:
        job = enqueue(session, pay)
        drain(session, registry)
        is_mended = True
        requeue_jobs(session, registry, job.id)
        drain(session, registry)

        assert (job.status, job.result, job.attempts, job.claims, len(job.errors)) == ("done", "paid", 1, 2, 1)
        assert (job.last_error or "").endswith("ValueError: no card")


# --- cancel ---------------------------------------------------------------------------------------------------------

SECRET = "s3cr3t"  # noqa: S105  # a marker

REASONS = {
    "plain": ("the order was withdrawn", "the order was withdrawn"),
    "NUL": ("a\x00b", "a\\x00b"),
    "lone surrogate": ("a\ud800", "a\\ud800"),
    "URL": (f"see https://ann:{SECRET}@shop", "see https://ann:***@shop"),
}


@pytest.mark.parametrize("name", REASONS)
def test_reason_is_kept_as_the_last_error(scene: Scene, name: str) -> None:
    """Whatever it holds, it can be stored, and shows no password."""
    given, kept = REASONS[name]
    ids = [scene.add(), scene.add("running")]

    with scene.transaction() as session:
        cancel_jobs(session, jobs, ids, reason=given)

    assert [scene.row(job_id)["last_error"] for job_id in ids] == [kept] * 2


def test_reason_is_bounded(scene: Scene) -> None:
    """It takes no more room than any other error, in bytes."""
    job_id = scene.add()

    with scene.transaction() as session:
        cancel_jobs(session, jobs, job_id, reason="é" * 10_000)

    assert len(scene.row(job_id)["last_error"].encode()) in {LAST_ERROR_BYTES, LAST_ERROR_BYTES - 1}


# --- delete ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["by id", "batch"])
def test_job_that_rows_of_the_app_refer_to_is_not_deleted(scene: Scene, form: str) -> None:
    """The app's foreign key keeps that job, which is told, and no other: the rest of the batch is deleted."""
    ids = [scene.add("done") for _ in range(2)]
    with scene.transaction() as session:
        session.add(Note(job_id=ids[1]))

    with scene.transaction() as session:
        if form == "by id":
            answers = delete_jobs(session, jobs, ids)
            assert [answer.is_changed for answer in answers] == [True, False]
            assert answers[1].text == f"job {ids[1]} is done, and is not deleted: rows of yours refer to it"
        else:
            batch = delete_batch(session, jobs, JobFilter())
            assert (batch.changed, batch.skipped) == (1, 1)

    assert list(scene.statuses()) == ids[1:]


@pytest.mark.parametrize("app_engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("verb", ["requeue", "requeue a batch", "cancel", "cancel a batch"])
def test_move_of_a_job_that_a_new_row_of_the_app_refers_to_waits_for_nobody(scene: Scene, verb: str) -> None:
    """A handler that has inserted such a row, and runs for hours, keeps nobody from cancelling its job meanwhile."""
    job_id = scene.add("dead" if verb.startswith("requeue") else "running")

    with scene.transaction() as handler:
        handler.add(Note(job_id=job_id))
        handler.flush()
        with scene.transaction() as session:
            session.execute(text("SET LOCAL lock_timeout = '1s'"))
            MOVES[verb](session, jobs, job_id)
        moved = scene.row(job_id)["status"]

    assert moved == ("ready" if verb.startswith("requeue") else "failed")


# --- the session ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", MOVES)
def test_move_is_undone_by_a_rollback(scene: Scene, verb: str) -> None:
    """Every move is the caller's transaction: rolled back, it never was."""
    with scene.transaction() as session:
        ids = [add(session, status) for status in STATUSES]
    before = [scene.row(job_id) for job_id in ids]

    with Session(scene.engine) as session:
        MOVES[verb](session, jobs, ids[0])
        for job_id in ids:
            MOVES[verb](session, jobs, job_id)
        session.rollback()

    assert [scene.row(job_id) for job_id in ids] == before


@pytest.mark.parametrize("form", ["by id", "batch"])
def test_objects_of_the_session_see_the_move(scene: Scene, form: str) -> None:
    """An object that was loaded before is loaded anew, and so is what the flush of its own changes has written."""
    with scene.transaction() as session:
        ids = [add(session, status) for status in ("dead", "ready", "done")]
        dead, ready, done = (session.get_one(Job, job_id) for job_id in ids)
        dead.queue = "mail"
        for name, job in {"requeue": dead, "cancel": ready, "delete": done}.items():
            MOVES[name if form == "by id" else f"{name} a batch"](session, jobs, job.id)
            if name == "requeue":
                assert (dead.status, dead.finished_at, dead.queue) == ("ready", None, "mail")
                dead.status = "running"
            if name == "cancel":
                assert (ready.status, ready.last_error) == ("failed", "cancelled")

        assert session.get(Job, ids[2]) is None


# --- models ---------------------------------------------------------------------------------------------------------


def single_table_child(schema: str | None) -> type[Any]:
    class Base(DeclarativeBase): ...

    class Job(JobMixin, Base):
        __tablename__ = "job"
        kind: Mapped[str] = mapped_column(String(20))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012

    class ReportJob(Job):
        __mapper_args__ = {"polymorphic_identity": "report"}  # noqa: RUF012

    return ReportJob


def with_odd_names(schema: str | None) -> type[Any]:
    class Base(DeclarativeBase):
        metadata = MetaData(schema=schema)

    class Customer(Base):
        __tablename__ = "Customer"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Job(JobMixin, Base):
        __tablename__ = 'Job "of" the Shop'
        customer_id: Mapped[int | None] = mapped_column("Customer Id", ForeignKey(Customer.id))

    return Job


MODELS: dict[str, tuple[str, Callable[[str | None], type[Any]], str | None]] = {
    "single-table child": ("postgresql", single_table_child, None),
    "single-table child in a file": ("sqlite", single_table_child, None),
    "odd names": ("postgresql", with_odd_names, "The Shop"),
    "odd names in a file": ("sqlite", with_odd_names, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_operations_take_tables_of_any_name_and_kind(request: pytest.FixtureRequest, name: str) -> None:
    """A child of a single table, a schema, names that must be quoted: jobs are found, moved, refreshed and shown."""
    kind, make, schema = MODELS[name]
    model = make(schema)
    registry: Jobs[Any] = Jobs(model)
    handler = registry.handler(name="send")(lambda: None)
    with engine_of(request, kind) as engine:
        if schema is not None:
            with engine.begin() as connection:
                connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
        model.metadata.create_all(engine)
        with Session(engine) as session:
            job = enqueue(session, handler)
            for verb, status in (("cancel", "failed"), ("requeue", "ready"), ("cancel a batch", "failed")):
                MOVES[verb](session, registry, job.id)
                assert (job.status, show_job(session, registry, job.id).status) == (status, status)
                assert [found.id for found in find_jobs(session, registry).jobs] == [job.id]
            MOVES["requeue a batch"](session, registry, job.id)
            MOVES["cancel"](session, registry, job.id)
            (answer,) = delete_jobs(session, registry, job.id)
            assert answer.is_changed
            assert session.scalar(select(func.count()).select_from(model)) == 0


# --- what is refused ------------------------------------------------------------------------------------------------

untyped: Any = SimpleNamespace(requeue=requeue_jobs, cancel=cancel_jobs, delete=delete_jobs)
"""To be called as nobody should."""

BAD_CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text for ids": (
        lambda session: untyped.requeue(session, jobs, "15"),
        "ids is a job's id, or several, and is a str",
    ),
    "nothing for ids": (lambda session: untyped.cancel(session, jobs, None), "ids is a job's id, or several"),
    "an object": (lambda session: untyped.delete(session, jobs, Job()), "ids is a job's id, or several, and is a Job"),
    "texts for ids": (lambda session: untyped.delete(session, jobs, ["5"]), "a job's id is an int, and this is a str"),
    "truth": (lambda session: untyped.delete(session, jobs, True), "a job's id is an int, and this is a bool"),
    "more bits": (lambda session: untyped.delete(session, jobs, [2**63]), "a job's id has 64 bits"),
    "no attempts": (lambda session: untyped.requeue(session, jobs, 1, max_attempts=0), "max_attempts is from 1 to"),
    "text of attempts": (lambda session: untyped.requeue(session, jobs, 1, max_attempts="3"), "max_attempts is an int"),
    "empty reason": (lambda session: untyped.cancel(session, jobs, 1, reason=" "), "reason is a text that says why"),
    "no reason": (lambda session: untyped.cancel(session, jobs, 1, reason=None), "reason is a text that says why"),
    "wrong order": (lambda session: untyped.requeue(jobs, session, 1), "a Jobs comes second, and this is a Session"),
    "no session": (lambda _: untyped.cancel(jobs, jobs, 1), "a Session or an AsyncSession is wanted first"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_option_that_is_none_is_refused(name: str) -> None:
    """What can't be meant is refused with what to write instead, before anything is asked of the database."""
    call, says = BAD_CALLS[name]

    with Session() as session, pytest.raises(InvalidOption, match=says):
        call(session)
