"""An app of a shape on a database: its sessions, its handlers, its worker, and a clock to move."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flask import Flask
from sqlalchemy import event, func, make_url, select
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.schema import CreateSchema

from sqla_jobs import Handler, Jobs, Retry, Worker, current_job
from sqla_jobs.operations import leases
from sqla_jobs.testing import Clock
from tests.engines import build_engine, prepare_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from sqlalchemy import Engine

    from tests.migrations.shapes import Shape

SECOND = timedelta(seconds=1)


class Scene:
    """An app.

    :ivar ran: what the handlers were told, with the class of the job that they loaded
    """

    def __init__(self, shape: Shape, engine: Engine, sessions: Callable[[], Session]) -> None:
        self.shape = shape
        self.engine = engine
        self.sessions = sessions
        self.clock = Clock(shape.metadata)
        self.ran: list[tuple[str, Any]] = []
        self.jobs = self.registry(shape.job)
        self.note: Handler[Any, ..., ..., Any] = self.jobs.handler(self._note)
        self.stumble: Handler[Any, ..., ..., Any] = self.jobs.handler(self._stumble)
        self.vanish: Handler[Any, ..., ..., Any] = self.jobs.handler(self._vanish)

    def registry(self, job: Any, **options: Any) -> Jobs[Any]:
        """Make a registry on a job class of the shape."""
        return Jobs(job, schedule=self.shape.schedule, archive=self.shape.archive, now=self.clock.now, **options)

    def create(self) -> None:
        """Create the schema and the tables, and the rows that the shape asks for."""
        if self.shape.schema is not None and self.engine.dialect.name == "postgresql":
            with self.engine.begin() as connection:
                connection.execute(CreateSchema(self.shape.schema))
        self.shape.metadata.create_all(self.engine)
        with self.transaction() as session:
            session.add_all(self.shape.first())

    @contextmanager
    def transaction(self) -> Generator[Session]:
        """Give a session, and commit what it did."""
        with self.sessions() as session, session.begin():
            yield session

    def claim(self, handler: Handler[Any, ..., ..., Any], *, limit: int = 1) -> int:
        """Claim jobs as a worker does that is never seen again, for a second; give how many."""
        demand = leases.Demand((handler.name,), None)
        with self.transaction() as session:
            return len(leases.claim(session, self.jobs.table, demand, limit=limit, locked_by="gone", lease=SECOND))

    def advance(self, by: timedelta) -> None:
        """Move the clock."""
        with self.transaction() as session:
            self.clock.advance(session, by)

    def worker(self, jobs: Jobs[Any] | None = None) -> Worker:
        """Make a worker; without LISTEN, which takes half a second to end."""
        return Worker(jobs or self.jobs, self.sessions, concurrency=2, listen=False)

    def ids(self, model: Any) -> list[int]:
        """Read the ids of a table."""
        with self.sessions() as session:
            return list(session.scalars(select(model.id).order_by(model.id)))

    def count(self, model: Any) -> int:
        """Count the rows of a table."""
        with self.sessions() as session:
            return session.scalars(select(func.count()).select_from(model)).one()

    def _note(self, session: Session, text: str) -> None:
        loaded: object = current_job().load(session)
        self.ran.append((text, type(loaded)))

    def _stumble(self, session: Session, text: str) -> None:
        self._note(session, text)
        if current_job().attempt == 1:
            raise Retry(delay=timedelta(0))

    def _vanish(self, session: Session, text: str) -> None:
        self._note(session, text)


@contextmanager
def opened(shape: Shape, url: str) -> Generator[Scene]:
    """Give the app of a shape on an empty database that has its tables."""
    with ExitStack() as closing:
        scene = _on_flask(shape, url, closing) if shape.flask is not None else _on_engine(shape, url, closing)
        scene.create()
        yield scene


def _on_engine(shape: Shape, url: str, closing: ExitStack) -> Scene:
    engine = build_engine(url)
    closing.callback(engine.dispose)
    _attach(engine, shape.schema)
    if shape.translated is not None:
        engine = engine.execution_options(schema_translate_map=shape.translated)
    return Scene(shape, engine, sessionmaker(engine))


def _on_flask(shape: Shape, url: str, closing: ExitStack) -> Scene:
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    shape.flask.init_app(app)
    closing.enter_context(app.app_context())
    prepare_sqlite(shape.flask.engine)
    closing.callback(shape.flask.engine.dispose)
    closing.callback(shape.flask.session.remove)
    return Scene(shape, shape.flask.engine, shape.flask.session)


def _attach(engine: Engine, schema: str | None) -> None:
    """Have what is a schema elsewhere as a file of its own, on each connection."""
    if schema is None or engine.dialect.name != "sqlite":
        return
    path = f"{make_url(str(engine.url)).database}.{schema}"

    @event.listens_for(engine, "connect")
    def attach(connection: Any, _record: object) -> None:
        connection.execute(f"ATTACH DATABASE '{path}' AS {schema}")
        connection.execute(f"PRAGMA {schema}.journal_mode = WAL")
