"""The program `sqla-jobs`: its commands, and what stands before them."""

from __future__ import annotations

import io
import os
import sys

import typer

from sqla_jobs.cli import dead, jobs, schedules
from sqla_jobs.cli.archiving import archive
from sqla_jobs.cli.commands import AppOption, Basics, JsonOption, TracebackOption, command
from sqla_jobs.cli.enqueueing import enqueue_one
from sqla_jobs.cli.running import work
from sqla_jobs.cli.status import status
from sqla_jobs.cli.upkeep import doctor, reap

program = typer.Typer(
    help="Run workers; look at jobs and schedules, and move them.",
    epilog="Exit codes: 0 fine, 1 no or found something, 2 wrong usage or app, 3 the database, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@program.callback()
def start(
    context: typer.Context,
    *,
    app: AppOption = None,
    is_json: JsonOption = False,
    has_traceback: TracebackOption = False,
) -> None:
    """Keep what stands before the command."""
    context.obj = Basics(app=app, is_json=is_json, has_traceback=has_traceback)


command(program, "worker")(work)
command(program, "status")(status)
program.add_typer(jobs.group, name="jobs")
program.add_typer(dead.group, name="dead")
program.add_typer(schedules.group, name="schedules")
command(program, "enqueue")(enqueue_one)
command(program, "archive")(archive)
command(program, "reap")(reap)
command(program, "doctor")(doctor)


def run() -> None:
    """Run the command line that this process was given."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A stored text may have what the terminal's encoding has no word for.
            stream.reconfigure(errors="backslashreplace")
    program(prog_name="sqla-jobs")


def _open_streams() -> None:
    """Give streams that are closed a place to go to; a connection would take the number of one, and its output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # as the lowest number that is free
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
