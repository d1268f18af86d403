"""The caller's session, whatever wraps it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy.orm import Session, scoped_session

from sqla_jobs.errors import InvalidOption

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


def unscoped(session: object) -> Session | AsyncSession:
    """Give the session itself, also behind a `scoped_session` or an `async_scoped_session`.

    :raises InvalidOption: it is no session
    """
    # Whoever has an AsyncSession has imported it; without greenlet it can't be.
    extension: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    scopes = (scoped_session, extension.async_scoped_session) if extension else (scoped_session,)
    kinds = (Session, extension.AsyncSession) if extension else (Session,)
    inner = cast("Any", session)() if isinstance(session, scopes) else session
    if isinstance(inner, kinds):
        return cast("Session | AsyncSession", inner)
    raise InvalidOption(f"a Session or an AsyncSession is wanted first, and not a {type(session).__name__}")


def flush(session: Session) -> None:
    """Flush what is pending; not inside a flush, whose events may enqueue, and where SQLAlchemy refuses another."""
    if not getattr(session, "_flushing", False):
        session.flush()
