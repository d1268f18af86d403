"""What is done to the app: drawn from a seed, one after the other, several at a time.

A fault that lasts ends when its time is up, or when the run is to heal. One that can't be injected just now, the server
being away for another, is not counted.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from benchmarks.chaos.app import LEASE, vanish
from benchmarks.chaos.crew import Crew, Name, Post, Process
from benchmarks.chaos.tables import Entry, Purchase
from sqla_jobs import enqueue
from tests.servers import PostgresServer, StopMode

DECK = {
    "kill": 8,
    "kill_enqueuer": 1,
    "vanish": 1,
    "freeze": 6,
    "freeze_all": 1,
    "freeze_enqueuer": 1,
    "deploy": 4,
    "deploy_impatiently": 1,
    "terminate": 4,
    "cancel_statements": 2,
    "stall": 2,
    "restart": 1,
    "crash": 2,
    "read_only": 1,
    "no_connections": 1,
    "snapshot": 1,
    "lock_jobs": 3,
    "lock_schedules": 1,
    "lock_table": 1,
}
"""How many of each come before any comes again."""

PACE = 0.8
"""Seconds between two faults, on average."""

WRITABLE = "ALTER SYSTEM RESET default_transaction_read_only"

TERMINATE = """
SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE usename = 'app'
    AND application_name ~ '^(worker|enqueuer|outside)' ORDER BY random() LIMIT 1) AS chosen
"""

CANCEL = """
SELECT pg_cancel_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE usename = 'app'
    AND application_name ~ '^(worker|enqueuer|outside)' AND state = 'active' ORDER BY random() LIMIT 1) AS chosen
"""

Say = Callable[[str], None]


class Faults:
    """Injects faults for a while, each in a thread of its own.

    :ivar counts: by kind; of those that last, once each
    :ivar backends: that were terminated or cancelled
    """

    def __init__(self, server: PostgresServer, urls: Urls, crew: Crew, draw: random.Random, say: Say) -> None:
        self.counts: Counter[str] = Counter()
        self.backends: Counter[str] = Counter()
        self._server = server
        self._urls = urls
        self._crew = crew
        self._draw = draw
        self._say = say
        self._began = time.monotonic()
        self._healing = threading.Event()
        self._is_up = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def run(self, seconds: float) -> None:
        """Inject faults for that long, and heal."""
        self._began = time.monotonic()
        deadline = self._began + seconds
        try:
            for kind in self._kinds():
                pause = self._draw.expovariate(1 / PACE)
                if self._healing.wait(max(0.0, min(pause, deadline - time.monotonic()))):
                    break
                if time.monotonic() >= deadline:
                    break
                self._begin(kind, random.Random(self._draw.random()))
        finally:
            self.heal()
        if self._error is not None:
            raise self._error

    def heal(self) -> None:
        """End all that lasts."""
        self._healing.set()
        for thread in self._threads:
            thread.join()
        self._configure(WRITABLE)

    def _kinds(self) -> Iterator[str]:
        while True:
            deck = [kind for kind, count in DECK.items() for _ in range(count)]
            self._draw.shuffle(deck)
            yield from deck

    def _begin(self, kind: str, draw: random.Random) -> None:
        thread = threading.Thread(target=self._inject, args=(kind, draw), name=kind, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _inject(self, kind: str, draw: random.Random) -> None:
        inject: Callable[[random.Random], Generator[None]] = getattr(self, f"_{kind}")
        try:
            for _ in inject(draw):
                self.counts[kind] += 1
                self._say(f"{time.monotonic() - self._began:7.2f}  {kind}")
        except (psycopg.Error, SQLAlchemyError, LookupError) as error:
            self._say(f"{time.monotonic() - self._began:7.2f}  {kind}: {str(error).splitlines()[0]}")
        except BaseException as error:
            self._error = self._error or error
            self._healing.set()
            raise

    # Each fault is a generator that yields once, when it has begun.

    # --- processes

    def _kill(self, draw: random.Random) -> Generator[None]:
        alive = [process for post in self._crew.workers if (process := post.process) is not None]
        # Also one that is frozen or drains; one that is only just starting would tell nothing.
        draw.choice([process for process in alive if process.is_serving.is_set()]).signal(signal.SIGKILL)
        yield

    def _kill_enqueuer(self, draw: random.Random) -> Generator[None]:
        self._victim(self._crew.enqueuers, draw).signal(signal.SIGKILL)
        yield

    def _vanish(self, draw: random.Random) -> Generator[None]:
        """Enqueue a job that kills its worker, and the next one."""
        batch = f"vanish {draw.getrandbits(60):x}"
        engine = create_engine(self._urls.sqlalchemy, connect_args={"application_name": "harness"})
        with contextlib.closing(Session(engine)) as session, session.begin():
            job = enqueue(session, vanish, token=batch)
            session.add_all([Purchase(batch=batch), Entry(batch=batch, job_id=job.id, is_duplicate=False)])
        engine.dispose()
        yield

    def _freeze(self, draw: random.Random) -> Generator[None]:
        yield from self._frozen([self._victim(self._crew.workers, draw)], LEASE * draw.uniform(0.8, 2.4))

    def _freeze_enqueuer(self, draw: random.Random) -> Generator[None]:
        yield from self._frozen([self._victim(self._crew.enqueuers, draw)], draw.uniform(1, 4))

    def _freeze_all(self, draw: random.Random) -> Generator[None]:
        processes = [process for post in self._crew.workers if (process := post.serving) is not None]
        yield from self._frozen(processes, LEASE * draw.uniform(1.2, 2))

    def _frozen(self, processes: list[Process], seconds: float) -> Generator[None]:
        for process in processes:
            process.is_frozen = True
            process.signal(signal.SIGSTOP)
        try:
            yield
            self._healing.wait(seconds)
        finally:
            for process in processes:
                process.signal(signal.SIGCONT)
                process.is_frozen = False

    def _deploy(self, draw: random.Random) -> Generator[None]:
        self._crew.stop(self._victim(self._crew.workers, draw))
        yield

    def _deploy_impatiently(self, draw: random.Random) -> Generator[None]:
        process = self._victim(self._crew.workers, draw)
        process.may_end.update({128 + signal.SIGTERM, -signal.SIGTERM})
        self._crew.stop(process)
        yield
        process.has_ended.wait(draw.uniform(0, 0.8))
        process.signal(signal.SIGTERM)

    def _victim(self, posts: list[Post], draw: random.Random) -> Process:
        serving = [process for post in posts if (process := post.serving) is not None]
        if not serving:
            raise LookupError("nobody serves")
        return draw.choice(serving)

    # --- connections

    def _terminate(self, draw: random.Random) -> Generator[None]:
        yield from self._stream(TERMINATE, draw)

    def _cancel_statements(self, draw: random.Random) -> Generator[None]:
        yield from self._stream(CANCEL, draw)

    def _stream(self, statement: LiteralString, draw: random.Random) -> Generator[None]:
        """Hit backends of the app, one after the other."""
        with self._connect(self._urls.admin) as connection:
            yield
            deadline = time.monotonic() + draw.uniform(0.5, 3)
            while time.monotonic() < deadline and not self._healing.wait(draw.expovariate(1 / 0.08)):
                found = connection.execute(statement).fetchall()
                self.backends[threading.current_thread().name] += len(found)

    def _stall(self, draw: random.Random) -> Generator[None]:
        """Have processes of the server stand still: whoever waits for them hears nothing at all."""
        with self._connect(self._urls.admin) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE usename = 'app' AND application_name ~ '^worker' "
                "ORDER BY state = 'active' DESC, random() LIMIT %s",
                (draw.randint(1, 8),),
            ).fetchall()
        with contextlib.ExitStack() as stack:
            for (pid,) in rows:
                with contextlib.suppress(ProcessLookupError):
                    backend = stack.enter_context(contextlib.closing(Name(pid)))
                    stack.callback(backend.signal, signal.SIGCONT)
                    backend.signal(signal.SIGSTOP)
            yield
            self._healing.wait(draw.uniform(0.5, 1.8 * LEASE))

    def _no_connections(self, draw: random.Random) -> Generator[None]:
        """Take all connections that the server has left."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(psycopg.OperationalError):
                while not self._healing.is_set():
                    stack.enter_context(self._connect(self._urls.app))
            yield
            self._healing.wait(draw.uniform(1, 4))

    # --- the server

    def _restart(self, draw: random.Random) -> Generator[None]:
        yield from self._stopped("fast", draw)

    def _crash(self, draw: random.Random) -> Generator[None]:
        yield from self._stopped("immediate", draw)

    def _stopped(self, mode: StopMode, draw: random.Random) -> Generator[None]:
        with self._is_up:
            try:
                self._server.stop(mode)
                yield
                self._healing.wait(draw.uniform(0, 2))
            finally:
                self._server.start()

    def _read_only(self, draw: random.Random) -> Generator[None]:
        try:
            self._configure("ALTER SYSTEM SET default_transaction_read_only = on")
            yield
            self._healing.wait(draw.uniform(1, 3))
        finally:
            with self._is_up:
                self._configure(WRITABLE)

    def _configure(self, statement: LiteralString) -> None:
        with self._connect(self._urls.admin) as connection:
            connection.execute(statement)
            connection.execute("SELECT pg_reload_conf()")

    # --- transactions

    def _snapshot(self, draw: random.Random) -> Generator[None]:
        yield from self._held(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM job", draw.uniform(5, 15)
        )

    def _lock_jobs(self, draw: random.Random) -> Generator[None]:
        yield from self._held(
            "SELECT id FROM job WHERE status IN ('ready', 'running') ORDER BY random() LIMIT 20 FOR UPDATE SKIP LOCKED",
            LEASE * draw.uniform(0.3, 2),
        )

    def _lock_schedules(self, draw: random.Random) -> Generator[None]:
        yield from self._held("SELECT id FROM schedule ORDER BY id FOR UPDATE", draw.uniform(1, 4))

    def _lock_table(self, draw: random.Random) -> Generator[None]:
        """Lock the job table as a migration does."""
        yield from self._held("LOCK TABLE job IN ACCESS EXCLUSIVE MODE", draw.uniform(0.3, 2.5))

    def _held(self, statement: LiteralString, seconds: float) -> Generator[None]:
        with self._connect(self._urls.app) as connection, connection.transaction():
            connection.execute(statement)
            yield
            self._healing.wait(seconds)

    @contextmanager
    def _connect(self, url: str) -> Generator[psycopg.Connection[Any]]:
        connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        try:
            yield connection
        finally:
            connection.close()


class Urls:
    """Ways to the server.

    :ivar app: of the app's role
    :ivar admin: of a superuser, whom neither read-only spells nor a lack of connections keep out
    """

    def __init__(self, server: PostgresServer) -> None:
        folder = server.url.partition("host=")[2]
        self.sqlalchemy = server.url.replace("postgres@", "app@")
        self.app = make_conninfo(host=folder, dbname="postgres", user="app", application_name="harness")
        self.admin = make_conninfo(
            host=folder, dbname="postgres", user="postgres", options="-c default_transaction_read_only=off"
        )
