"""How a command ends that does not end well: the exit code, and a text that says what to do."""

from __future__ import annotations

import traceback
from typing import Final

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    NotSupportedError,
    PendingRollbackError,
    ProgrammingError,
    ResourceClosedError,
    SQLAlchemyError,
    TimeoutError,  # noqa: A004  # of the pool
)

from sqla_jobs.errors import (
    ConfigurationError,
    EnqueueConflict,
    InvalidOption,
    InvalidSchedule,
    SqlaJobsError,
    UnsupportedDatabase,
)
from sqla_jobs.rules.failure import describe
from sqla_jobs.rules.masking import masked_text
from sqla_jobs.schema.trouble import is_missing_column, is_missing_table, is_read_only, is_refused

NO: Final = 1
"""The answer is no, or something was found."""

USAGE: Final = 2
"""The command line or the app is wrong."""

DATABASE: Final = 3
"""The database can't be reached, or lacks the tables."""

FAULT: Final = 70
"""A fault of ours."""

INTERRUPTED: Final = 130

BROKEN_PIPE: Final = 141

_MIGRATE: Final = (
    "alembic upgrade head; if no revision has them yet, first alembic revision --autogenerate -m 'the tables of jobs'"
)


_OF_THE_DATABASE: Final = (
    *(DBAPIError, DisconnectionError, PendingRollbackError, ResourceClosedError, TimeoutError, OSError),
)


class Stop(Exception):
    """Ends the command.

    :ivar code: the exit code
    """

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


def refused(text: str) -> Stop:
    """Say that the command line or the app is wrong."""
    return Stop(text, code=USAGE)


def answered_no(text: str) -> Stop:
    """Say that it can't be done, or is not there."""
    return Stop(text, code=NO)


def stop_for(error: Exception, database: str) -> Stop:
    """Say what an error means for who has called the command.

    :param database: which one it is, for people
    """
    match error:
        case Stop():
            return error
        case SqlaJobsError():
            return _stop_for_ours(error)
        case IntegrityError():
            return answered_no(f"the database refuses the row: {cause(error)}")
        case DBAPIError() if error.orig is not None and is_refused(error.orig):
            return answered_no(f"the role that the app connects as may not do that: {cause(error)} (docs/security.md)")
        case DataError():
            return refused(f"{database} refuses a value: {cause(error)}")
        case _ if is_of_database(error):
            return Stop(database_trouble(error, database), code=DATABASE)
        case SQLAlchemyError():
            return refused(
                f"SQLAlchemy can't work with the app's models, or with its engine: {cause(error)} "
                "(--traceback shows where)"
            )
        case _:
            return Stop(f"a fault of sqla_jobs; please report it:\n{describe(error)}", code=FAULT)


def _stop_for_ours(error: SqlaJobsError) -> Stop:
    match error:
        case UnsupportedDatabase():
            return Stop(str(error), code=DATABASE)
        case InvalidSchedule() | EnqueueConflict():
            return answered_no(str(error))
        case ConfigurationError() | InvalidOption():
            return refused(str(error))
        case _:
            return answered_no(str(error))


def is_of_database(error: Exception) -> bool:
    """Tell whether it is the database that is in trouble; other errors of SQLAlchemy's are of the app's code."""
    return isinstance(error, _OF_THE_DATABASE)


def database_trouble(error: Exception, database: str) -> str:
    """Say what is wrong with the database, and what to do about it."""
    driver = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if is_missing_table(driver):
        return f"{database} lacks tables ({cause(error)}): {_MIGRATE}"
    if is_missing_column(driver):
        return (
            f"the tables of {database} are of another release ({cause(error)}): alembic revision --autogenerate, then "
            "alembic upgrade head; sqla-jobs doctor names what differs"
        )
    if is_read_only(driver):
        return f"{database} takes no changes: {cause(error)}. Is it a standby, or a file that you may not write?"
    if isinstance(error, ProgrammingError | NotSupportedError):
        return f"{database} refuses a statement: {cause(error)}. Does sqla-jobs doctor find what is wrong?"
    return f"{database} does not serve us: {cause(error)}. Is it up, and is the app's URL right?"


def cause(error: BaseException) -> str:
    """Give the first line of what the driver says, its secrets hidden."""
    driver = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = [line for line in str(driver).splitlines() if line.strip()]
    return masked_text(f"{type(driver).__name__}: {lines[0].strip()}" if lines else type(driver).__name__)


def place(error: BaseException) -> str:
    """Give the file and line that raised it; for a file that is no Python, where it breaks off."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "nowhere"
