"""A database with the app's tables, the processes on it, and a view of the job rows that tells of each change."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from sqlalchemy import func, make_url, select, text
from sqlalchemy.orm import Session

from sqla_jobs import enqueue_many
from tests.crash.app import Base, Effect, Job, build_app_engine
from tests.crash.processes import LONGEST, Crew, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import TracebackType
    from typing import Self

    from sqla_jobs import NewJob

FINISHED: Final = ("done", "failed", "dead")

# The test's own view of the rows: committed changes, in the order of their commits, and nobody has to ask for them.
TELL: Final = """
CREATE FUNCTION tell_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('changes', json_build_object('id', NEW.id, 'status', NEW.status, 'claims', NEW.claims,
        'renewed', OLD.claims = NEW.claims AND NEW.status = 'running')::text);
    RETURN NULL;
END $$;
CREATE TRIGGER tell_change AFTER UPDATE ON job FOR EACH ROW EXECUTE FUNCTION tell_change();
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change of a job's row; *renewed* if only its lease was extended."""

    id: int
    status: str
    claims: int
    renewed: bool


class Scene:
    """The app's database and processes. On PostgreSQL it hears of every change of a row."""

    def __init__(self, url: str, **engine_options: Any) -> None:
        self.url = url
        self.crew = Crew()
        self.engine = build_app_engine(url, **engine_options)
        Base.metadata.create_all(self.engine)
        self._view: psycopg.Connection[Any] | None = None
        if self.engine.dialect.name == "postgresql":
            with self.engine.begin() as connection:
                connection.execute(text(TELL))
            self.look_again()

    @contextmanager
    def quiet(self, job_id: int) -> Generator[None]:
        """Let nobody else lock a running job's row, just after a beat: whoever is frozen now holds no lock on it.

        Frozen in a beat, a worker would keep the row locked, and nobody could reap it before it wakes.
        """
        if self._view is not None:
            self.until(lambda change: change.id == job_id and change.renewed)
        with self.engine.begin() as connection:
            connection.execute(select(Job.id).where(Job.id == job_id).with_for_update())
            yield

    def look_again(self) -> None:
        """Connect the view, afresh if the server was away; what came meanwhile was not heard."""
        if self._view is not None:
            self._view.close()
        url = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._view = psycopg.connect(url, autocommit=True)
        self._view.execute("LISTEN changes")

    def start(self, **options: Any) -> Process:
        """Start a process of the app on this database."""
        return self.crew.start(self.url, **options)

    def enqueue(self, new_jobs: Iterable[NewJob[Any]]) -> list[int]:
        """Enqueue in one transaction, and give the ids."""
        with Session(self.engine) as session, session.begin():
            return [enqueued.id for enqueued in enqueue_many(session, list(new_jobs))]

    def columns(self, job_id: int) -> dict[str, Any]:
        """Give all that a row says."""
        with self.engine.connect() as connection:
            row = connection.execute(select(Job.__table__).where(Job.id == job_id)).mappings().one()
            return dict(row)

    def job(self, job_id: int) -> Job:
        """Give a row as it is now."""
        with Session(self.engine) as session:
            return session.get_one(Job, job_id)

    def jobs(self) -> list[Job]:
        """Give all rows as they are now."""
        with Session(self.engine) as session:
            return list(session.scalars(select(Job).order_by(Job.id)))

    def statuses(self) -> dict[str, int]:
        """Count the rows by status."""
        with Session(self.engine) as session:
            rows = session.execute(select(Job.status, func.count()).group_by(Job.status))
            return {str(row[0]): int(row[1]) for row in rows}

    def effects(self) -> list[Effect]:
        """Give what stands of the handlers' writes, in the order of the jobs."""
        with Session(self.engine) as session:
            return list(session.scalars(select(Effect).order_by(Effect.job_id, Effect.id)))

    def until(self, matches: Callable[[Change], bool], *, times: int = 1, within: float = LONGEST) -> list[Change]:
        """Wait for that many such changes since the last look."""
        assert self._view is not None  # on PostgreSQL
        found: list[Change] = []
        deadline = time.monotonic() + within
        while len(found) < times:
            remaining = deadline - time.monotonic()
            notes = list(self._view.notifies(timeout=max(0.0, remaining), stop_after=1))
            if not notes:
                self.crew.fail(f"saw {len(found)} of {times} such changes within {within} s: {self.statuses()}")
            changes = [Change(**json.loads(note.payload)) for note in notes]
            found += [change for change in changes if matches(change)]
        return found

    def until_finished(self, ids: Iterable[int], *, within: float = LONGEST) -> None:
        """Wait until all of these are done, failed or dead."""
        if self._view is None:
            left = set(ids)
            ends = {"done", "failed", "dead"}
            self.crew.wait(lambda said: _strike(left, said.facts.get("job"), said.facts.get("end") in ends))
            return
        with Session(self.engine) as session:
            unfinished = select(Job.id).where(Job.status.not_in(FINISHED))
            left = set(ids) & set(session.scalars(unfinished))
        if left:
            self.until(lambda change: _strike(left, change.id, change.status in FINISHED), within=within)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            stack.callback(self.engine.dispose)
            if self._view is not None:
                stack.callback(self._view.close)
            stack.enter_context(self.crew)


def _strike(left: set[int], job_id: int | None, is_finished: bool) -> bool:
    """Strike a finished job from the list; give whether none is left."""
    if is_finished and job_id is not None:
        left.discard(job_id)
    return not left
