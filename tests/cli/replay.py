"""Says again what docs/cli.md says: its commands run in the order of the page, on the shop as `scene` leaves it.

python -m tests.cli.replay     writes what they print now into docs/cli.md
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

from examples.shop.db import make_engine
from examples.shop.handlers import jobs
from examples.shop.models import Base
from examples.shop.orders import place_order
from sqla_jobs.cli.program import program
from sqla_jobs.runtime.worker import Worker
from sqla_jobs.testing import drain
from tests.architecture.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE: Final = ROOT / "docs" / "cli.md"

APP: Final = "examples.shop.worker:make_worker"

_BLOCK: Final = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)

_CHANGING: Final = (
    # What differs from run to run, and what it becomes before two pages are compared.
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?( ?[+-]\d\d:?\d\d|Z| UTC)?", "TIME"),
    (r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b", "DAY"),
    (r"(?<![\w.])\d+(\.\d+)?(s|m|h|d| s| min| h)( \d+[smhd])?(?![\w])", "AGE"),
    (r"shop:\S+?:\d+:[0-9a-f]{8}", "WORKER"),
    (r'(?<="offset": )[\d.]+|(?<="oldest": )[\d.]+|(?<="oldest_ready": )[\d.]+|(?<="age": )[\d.]+', "SECONDS"),
    (r"(--after |\"after\": \")[\w-]+", r"\1TOKEN"),
    (r"[ \t]+", " "),
)


def commands(page: str) -> list[str]:
    """Give the commands of the page, in order."""
    return [line for block in _BLOCK.findall(page) for line in block.splitlines() if line.startswith("$ ")]


def replayed(page: str) -> str:
    """Give the page with what its commands print now, in the database of DATABASE_URL."""
    return _BLOCK.sub(lambda block: "".join(_replayed(block[0].splitlines())), page)


def _replayed(lines: list[str]) -> Iterable[str]:
    for line in lines:
        if line.startswith("$ "):
            yield f"{line}\n{printed(line)}"


def printed(line: str) -> str:
    """Run a command of the page, and give what its reader sees."""
    _dollar, name, *arguments = shlex.split(line)
    assert name == "sqla-jobs"
    ended = CliRunner().invoke(program, arguments, prog_name=name)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    code = f"(exit code {ended.exit_code})\n" if ended.exit_code else ""
    return ended.stdout + ended.stderr + code


def lasting(page: str) -> str:
    """Put words for times, ages and other things that change from run to run."""
    for pattern, word in _CHANGING:
        page = re.sub(pattern, word, page)
    return page


def scene() -> None:
    """Fill the shop's database: receipts that were mailed, some that can't be, and a worker that has vanished.

    Files come into the current folder: error texts with a name of it would be cut at another place each time.
    """
    engine = make_engine()
    Base.metadata.create_all(engine)
    _order(engine, "ann@example.org", "bob@example.org", "nobody")
    _work(engine)
    Path("no folder").touch()
    _order(engine, "cid@example.org", "dan@example.org")
    _work(engine, queue="default")
    with Session(engine) as session, session.begin():
        # One has only this attempt, the other waits for its next: in one transaction, so that it does not get it, too.
        session.execute(text("UPDATE job SET max_attempts = 1 WHERE id = 9"))
        os.environ["SHOP_OUTBOX"] = "no folder"
        drain(session, jobs)
        in_an_hour = "strftime('%Y-%m-%d %H:%M:%S.000000', run_at, '+1 hour')"
        session.execute(text(f"UPDATE job SET run_at = {in_an_hour} WHERE id = 10"))
    _order(engine, "eve@example.org", "fay@example.org")
    with engine.begin() as connection:
        vanished = {"worker": "shop:host-7:4242:9f3c2d1e"}
        connection.execute(
            text(
                "UPDATE job SET status = 'running', attempts = 1, claims = 1, locked_by = :worker, "
                "started_at = created_at, locked_until = created_at WHERE id = 12"
            ),
            vanished,
        )
    engine.dispose()


def _order(engine: Engine, *emails: str) -> None:
    with Session(engine) as session, session.begin():
        for email in emails:
            place_order(session, email, 1999)


def _work(engine: Engine, queue: str | None = None) -> None:
    os.environ["SHOP_OUTBOX"] = "outbox"
    queues = None if queue is None else [queue]
    Worker(jobs, sessionmaker(engine), queues=queues, concurrency=1).run_until_idle()


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"DATABASE_URL": f"sqlite:///{name}/shop.sqlite", "SQLA_JOBS_APP": APP}
        os.chdir(name)
        scene()
        PAGE.write_text(replayed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
