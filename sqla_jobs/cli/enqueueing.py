"""`sqla-jobs enqueue`: store a job by its type and its arguments as JSON."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, cast

import typer
from sqlalchemy.orm import Session

from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.stops import refused
from sqla_jobs.cli.terminal import Page, facts_of
from sqla_jobs.cli.texts import LARGEST, clock, duration, instant
from sqla_jobs.errors import PayloadError, UnknownHandler
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.registry import Handler, Jobs
from sqla_jobs.rules.options import EnqueueOptions

_REMEDY_FOR_ROWS: Final = re.compile(r": (other code stored|the job was stored).*")
"""How an error of a stored payload ends; this one is not stored yet."""


def enqueue_one(
    cli: Cli,
    *,
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="The handler's name.")],
    payload: Annotated[
        str, typer.Option("--payload", "-p", metavar="JSON", help="Its arguments, by name; - reads them from stdin.")
    ] = "{}",
    key: Annotated[str | None, typer.Option("--key", help="While a job has this key, no other is enqueued.")] = None,
    delay: Annotated[
        timedelta | None,
        typer.Option("--delay", parser=duration, metavar="DURATION", help="Due after 90s, 15m, 2h, 7d."),
    ] = None,
    run_at: Annotated[
        datetime | None,
        typer.Option("--run-at", parser=instant, metavar="TIME", help="Due at 2026-03-01T06:00+01:00."),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Instead of the handler's.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, max=LARGEST, help="Instead of the handler's.")
    ] = None,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Check it, and store nothing.")] = False,
) -> None:
    """Enqueue a job. What its handler's annotations don't allow is refused."""
    if delay is not None and run_at is not None:
        raise refused("--delay (from now on) or --run-at (a time), and not both")
    handler, arguments = _called(cli.jobs, type_, _read(payload))
    options = EnqueueOptions(key=key, delay=delay, run_at=run_at, queue=queue, max_attempts=max_attempts)
    using: Handler[Any, ..., ..., Any] = Handler(cli.jobs, handler.spec, options)

    def store(session: Session) -> dict[str, Any]:
        job = enqueue(session, using, **arguments)
        return {"job_id": job.id, **facts_of(job, ("type", "queue", "status", "is_duplicate", "run_at"))}

    stored = cli.rehearse(store) if is_dry else cli.run(store)
    is_new = not stored["is_duplicate"]
    if is_dry and is_new:
        stored["job_id"] = None
    text = _told(stored, key, is_dry=is_dry, is_timed=delay is not None or run_at is not None)
    cli.terminal.show({"dry_run": is_dry, **stored}, lambda: Page([text]))


def _called(jobs: Jobs[Any], type_: str, payload: dict[str, Any]) -> tuple[Handler[Any, ..., ..., Any], dict[str, Any]]:
    try:
        spec = jobs.handlers.find(type_)
        arguments = spec.arguments.load(payload)
        handler: Handler[Any, ..., ..., Any] = Handler(jobs, spec)
        handler.job(**arguments)
    except UnknownHandler as error:
        known = ", ".join(jobs.handlers.names) or "none"
        raise refused(f"{error}; this app has {known}") from error
    except PayloadError as error:
        raise refused(_REMEDY_FOR_ROWS.sub("", str(error))) from error
    return handler, arguments


def _read(payload: str) -> dict[str, Any]:
    try:
        found: object = json.loads(sys.stdin.read() if payload == "-" else payload)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise refused(f"the payload is no JSON ({why}): --payload '{{\"order_id\": 1}}'") from error
    if not isinstance(found, dict):
        raise refused("the payload is a JSON object of the arguments by name: --payload '{\"order_id\": 1}'")
    return cast("dict[str, Any]", found)


def _told(stored: dict[str, Any], key: str | None, *, is_dry: bool, is_timed: bool) -> str:
    if stored["is_duplicate"]:
        return f"job {stored['job_id']} has the key {key!r} already, and is {stored['status']}: nothing is enqueued"
    due = f", due at {clock(stored['run_at'])}" if is_timed else ""
    if is_dry:
        return f"a job {stored['type']} in queue {stored['queue']} would be enqueued{due}"
    return f"job {stored['job_id']}: {stored['type']} in queue {stored['queue']}{due}"
