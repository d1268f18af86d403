from __future__ import annotations

import socket
import sys
import threading
from contextlib import ExitStack
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import StaticPool, create_engine, event, make_url
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.orm import DeclarativeBase

import sqla_jobs.doctor
from sqla_jobs import JobMixin, Jobs
from sqla_jobs.migrations import doctor
from tests.engines import build_engine, prepare_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Engine

    from sqla_jobs.migrations import Finding


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"


JOBS = Jobs(Job)


@pytest.fixture
def new_engine() -> Iterator[Callable[..., Engine]]:
    """Give a function that makes an engine with the tables on it, as plain as `create_engine` makes it."""
    with ExitStack() as engines:

        def make(url: str, **options: Any) -> Engine:
            maker = build_engine(url)
            Base.metadata.create_all(maker)
            maker.dispose()
            engine = create_engine(url, **options)
            engines.callback(engine.dispose)
            return engine

        yield make


def found(engine: Engine) -> dict[str, Finding]:
    """Let the doctor look; what it found, by code."""
    return {finding.code: finding for finding in doctor(engine, JOBS)}


def severities(engine: Engine) -> dict[str, str]:
    return {code: finding.severity for code, finding in found(engine).items() if code not in ("fsync", "untuned")}


def test_doctor_finds_a_driver_that_begins_late(sqlite_url: str, new_engine: Callable[..., Engine]) -> None:
    """The stock settings of Python's driver begin no transaction for a savepoint; the remedy says which do."""
    plain = new_engine(sqlite_url)

    finding = found(plain)["sqlite-begin"]

    assert finding.severity == "error"
    assert "isolation_level = None" in finding.remedy
    assert "BEGIN IMMEDIATE" in finding.remedy


def test_doctor_finds_transactions_without_the_write_lock(sqlite_url: str, new_engine: Callable[..., Engine]) -> None:
    """A plain BEGIN keeps savepoints, and fails where BEGIN IMMEDIATE waits."""
    engine = new_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    assert severities(engine) == {"sqlite-deferred": "warning"}
    assert "'BEGIN'" in found(engine)["sqlite-deferred"].what


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python's sqlite3 has no autocommit=False before 3.12")
def test_doctor_finds_a_driver_that_keeps_transactions_open(sqlite_url: str) -> None:
    """What begins with the connection begins without the write lock; the option has to go first."""
    engine = create_engine(sqlite_url, connect_args={"autocommit": False})

    assert "take connect_args={'autocommit': False} off" in found(engine)["sqlite-deferred"].remedy
    engine.dispose()


def test_doctor_finds_what_makes_sqlite_writers_fail(sqlite_url: str, new_engine: Callable[..., Engine]) -> None:
    """A short busy_timeout is a warning, a journal that blocks readers a hint."""
    engine = new_engine(sqlite_url)
    prepare_sqlite(engine)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA busy_timeout = 100")
        connection.execute("PRAGMA journal_mode = DELETE")

    assert severities(engine) == {"sqlite-busy-timeout": "warning", "sqlite-journal": "hint"}
    assert "100 ms" in found(engine)["sqlite-busy-timeout"].what


def test_doctor_finds_a_database_in_memory() -> None:
    """What one connection holds, no worker sees."""
    engine = build_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)

    assert severities(engine) == {"in-memory": "error"}
    engine.dispose()


@pytest.mark.parametrize("way", ["of the engine", "of execution_options"])
def test_doctor_finds_autocommit(way: str, database_url: str, new_engine: Callable[..., Engine]) -> None:
    """Where each statement commits by itself the first promise is void, on either database."""
    level = "AUTOCOMMIT"
    if way == "of the engine":
        engine = new_engine(database_url, isolation_level=level)
    else:
        engine = new_engine(database_url).execution_options(isolation_level=level)

    finding = found(engine)["autocommit"]

    assert finding.severity == "error"
    assert "AUTOCOMMIT" in finding.remedy


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_doctor_hints_at_timeouts_above_read_committed(
    level: str, postgresql_url: str, new_engine: Callable[..., Engine]
) -> None:
    """Higher isolation works, and wants timeouts."""
    finding = found(new_engine(postgresql_url, isolation_level=level))["isolation"]

    assert finding.severity == "hint"
    assert "timeout=" in finding.remedy


@pytest.mark.parametrize(
    ("setting", "code", "severity"),
    [
        ("synchronous_commit=off", "asynchronous-commit", "warning"),
        ("default_transaction_read_only=on", "read-only", "error"),
    ],
)
def test_doctor_finds_settings_of_the_server(
    setting: str, code: str, severity: str, postgresql_url: str, new_engine: Callable[..., Engine]
) -> None:
    """Settings that break or weaken a promise are told with how to set them; the doctor itself writes nothing."""
    finding = found(new_engine(postgresql_url, connect_args={"options": f"-c {setting}"}))[code]

    assert finding.severity == severity
    assert setting.partition("=")[0] in finding.remedy


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_doctor_finds_an_encoding_that_not_all_text_has(
    encoding: str, postgresql_server: str, new_engine: Callable[..., Engine]
) -> None:
    """Where text may have no characters, jobs can't be stored, nor how they ended; another database is the remedy."""
    url = make_url(postgresql_server).set(database=f"sqla_jobs_{encoding.lower()}")
    admin = create_engine(postgresql_server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        version = connection.dialect.server_version_info or ()
        provider = "LOCALE_PROVIDER libc" if version >= (15,) else ""
        connection.exec_driver_sql(
            f"CREATE DATABASE {url.database} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' {provider} "
            "TEMPLATE template0"
        )
    try:
        # psycopg gives text of SQL_ASCII as bytes, and SQLAlchemy does not even connect, unless told so.
        engine = new_engine(url.set(query=dict(url.query) | {"client_encoding": "utf8"}))
        finding = found(engine)["encoding"]
        engine.dispose()
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {url.database} WITH (FORCE)")
        admin.dispose()

    assert finding.severity == "error"
    assert f"encoding is {encoding}" in finding.what
    assert "ENCODING 'UTF8'" in finding.remedy


@pytest.mark.skipif(
    "skip_autocommit_rollback" not in signature(DefaultDialect).parameters, reason="of a later SQLAlchemy"
)
def test_doctor_finds_rollbacks_that_are_left_out(sqlite_url: str) -> None:
    """With `skip_autocommit_rollback`, no rollback undoes anything on SQLite: an error, found without a look."""
    engine = build_engine(sqlite_url, skip_autocommit_rollback=True)

    findings = doctor(engine, JOBS)

    assert [(finding.code, finding.severity) for finding in findings] == [("skipped-rollback", "error")]
    assert "take the option off create_engine" in findings[0].remedy


def test_doctor_finds_a_table_that_is_never_vacuumed(postgresql_url: str, new_engine: Callable[..., Engine]) -> None:
    """Autovacuum that is off for the table is a warning, and parameters that nobody has set are a hint."""
    engine = new_engine(postgresql_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE job SET (autovacuum_enabled = false)")

    seen = found(engine)

    assert seen["autovacuum-off"].severity == "warning"
    assert "RESET (autovacuum_enabled)" in seen["autovacuum-off"].remedy
    assert seen["untuned"].severity == "hint"
    assert "op.tune_job_table('job')" in seen["untuned"].remedy


def test_doctor_is_content_with_a_tuned_table(postgresql_url: str, new_engine: Callable[..., Engine]) -> None:
    """Whoever has set a parameter of these has thought of it, whatever its value."""
    engine = new_engine(postgresql_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE job SET (fillfactor = 95)")

    assert "untuned" not in found(engine)


def test_doctor_finds_an_old_server(engine: Engine) -> None:
    """A server that lacks what we need is the only finding: it may not understand the questions."""
    with engine.connect():
        engine.dialect.server_version_info = (3, 1)

    assert {code: finding.severity for code, finding in found(engine).items()} == {"old-server": "error"}


def test_doctor_finds_a_database_that_is_not_served(sqlite_url: str) -> None:
    """Another kind of database is a finding, and is not even connected to."""
    engine = create_engine(sqlite_url)
    engine.dialect.name = "mariadb"

    assert {code: finding.severity for code, finding in found(engine).items()} == {"unsupported-database": "error"}


@pytest.mark.parametrize(("host", "says"), [(0.0, "ahead of"), (4e9, "behind")])
def test_doctor_hints_at_clocks_that_differ(
    host: float, says: str, postgresql_url: str, new_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of ours goes by the host's clock, but the app's own run_at may."""
    engine = new_engine(postgresql_url)
    assert "clock" not in found(engine)

    monkeypatch.setattr(sqla_jobs.doctor, "_host_time", lambda: host)

    assert found(engine)["clock"].severity == "hint"
    assert says in found(engine)["clock"].what


@pytest.mark.parametrize(("prepare_threshold", "severity"), [(5, "warning"), (None, "hint")])
def test_doctor_finds_a_pooler(
    prepare_threshold: int | None,
    severity: str,
    postgresql_url: str,
    tmp_path: Path,
    new_engine: Callable[..., Engine],
) -> None:
    """A pooler names a process that is none of the server's; statements that the driver prepares make it worse."""
    new_engine(postgresql_url)
    with Pooler(postgresql_url, tmp_path) as url:
        engine = create_engine(url, connect_args={"prepare_threshold": prepare_threshold})

        finding = found(engine)["pooler"]
        engine.dispose()

    assert finding.severity == severity
    assert "listen=" in finding.remedy


class Pooler:
    """Passes bytes on like PgBouncer, and like it makes up the process that serves a connection (BackendKeyData)."""

    KEY = b"K\x00\x00\x00\x0c"

    def __init__(self, server_url: str, folder: Path) -> None:
        self._server = make_url(server_url)
        self._folder = folder
        self._listening = socket.socket(socket.AF_UNIX)
        self._sockets = [self._listening]

    def __enter__(self) -> str:
        self._listening.bind(str(self._folder / ".s.PGSQL.5432"))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        url = self._server.set(host=None, port=None, query={"host": str(self._folder), "sslmode": "disable"})
        return url.render_as_string(hide_password=False)

    def __exit__(self, *_error: object) -> None:
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        server = self._connect()
        self._sockets += [client, server]
        threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()
        self._pass_on(server, client)

    def _connect(self) -> socket.socket:
        folder = self._server.query.get("host")
        if folder is None:
            return socket.create_connection((self._server.host, self._server.port or 5432))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{folder}/.s.PGSQL.{self._server.port or 5432}")
        return server

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while received := source.recv(65536):
                at = received.find(self.KEY)
                if at >= 0:
                    received = received[: at + 5] + b"\x00\x00\x00\x07" + received[at + 9 :]
                target.sendall(received)
        except OSError:
            pass
        finally:
            target.close()
