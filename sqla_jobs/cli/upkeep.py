"""`sqla-jobs reap` and `doctor`: give back what vanished workers had, by hand; and what is wrong."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from sqla_jobs.cli.session import Cli
from sqla_jobs.cli.stops import NO
from sqla_jobs.cli.terminal import Page, Sheet, facts_of
from sqla_jobs.cli.texts import plural
from sqla_jobs.doctor import doctor as examine
from sqla_jobs.operations import leases
from sqla_jobs.operations.comparison import Finding
from sqla_jobs.rules.lease import Lease
from sqla_jobs.rules.settlement import Settlement
from sqla_jobs.runtime.connections import as_async
from sqla_jobs.runtime.counters import Tally
from sqla_jobs.runtime.reporting import Reporter
from sqla_jobs.runtime.services import Reaper

_LAST_CALLBACKS: Final = 5.0
"""Seconds that the app's callbacks have for what was reaped."""

_LOOKED_AT: Final = 1000


def reap(
    cli: Cli,
    *,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Give back the jobs of workers that have vanished, now; workers do so by themselves.

    After an outage wait a minute, so that live workers have renewed their leases first.
    """
    if is_dry:
        found = cli.read(lambda session: leases.expired(session, cli.jobs.table, limit=_LOOKED_AT))
        text = f"{plural(len(found), 'job', is_capped=len(found) == _LOOKED_AT)} would be given back"
        document = {"dry_run": True, "jobs": [_lease(lease) for lease in found], "is_capped": len(found) == _LOOKED_AT}
        cli.terminal.show(document, lambda: Page([*(_said(lease) for lease in found), text]))
        return
    reaped = _reaped(cli)
    document = {
        "dry_run": False,
        "jobs": [_lease(each.lease) | {"status": str(each.status)} for each in reaped],
        "is_capped": False,
    }
    lines = [f"{_said(each.lease)}: {each.status}" for each in reaped]
    cli.terminal.show(document, lambda: Page([*lines, f"{plural(len(reaped), 'job')} given back"]))


def _reaped(cli: Cli) -> list[Settlement]:
    """Reap batch after batch, and tell the app's callbacks."""
    # What the reporter logs is printed, too: without a handler, warnings would be on stderr once more.
    logging.getLogger("sqla_jobs").addHandler(logging.NullHandler())
    reporter = Reporter(cli.jobs, Tally())
    reaper = Reaper(cli.jobs, cli.connector, reporter, beat=timedelta(0))
    reaped = list[Settlement]()
    reporter.start()
    try:
        reaped += reaper.reap()
        while reaper.has_more:
            reaped += reaper.reap()
        return reaped
    finally:
        reporter.stop(_LAST_CALLBACKS)


def _lease(lease: Lease) -> dict[str, Any]:
    return {"job_id": lease.id, "type": lease.type, "queue": lease.queue, "locked_by": lease.locked_by}


def _said(lease: Lease) -> str:
    return f"job {lease.id} ({lease.type}), whose worker {lease.locked_by} has vanished"


def doctor(cli: Cli) -> None:
    """Look for what is wrong with the tables, and with the way in which the app reaches them; changes nothing."""
    findings = _findings(cli)
    errors = sum(finding.severity == "error" for finding in findings)
    cli.terminal.show(
        {"findings": [facts_of(each, ("code", "severity", "what", "remedy")) for each in findings], "errors": errors},
        lambda: Page([Sheet([_told(finding) for finding in findings]) if findings else "nothing is wrong"]),
    )
    if errors:
        raise typer.Exit(NO)


def _findings(cli: Cli) -> list[Finding]:
    engine = cli.engine
    if not engine.dialect.is_async:
        try:
            return examine(engine, cli.jobs)
        finally:
            engine.dispose()

    async def look() -> list[Finding]:
        async_engine = as_async(engine)
        try:
            return await examine(async_engine, cli.jobs)
        finally:
            await async_engine.dispose()

    return asyncio.run(look())


def _told(finding: Finding) -> tuple[str, str]:
    return finding.severity, f"{finding.code}: {finding.what}\nremedy: {finding.remedy}"
