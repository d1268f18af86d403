"""A commit whose answer gets lost on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session


class CutCommit:
    """Cuts the connection of one transaction at its commit, once: before it gets through, or after.

    It stands in for the driver's own `commit`, for all engines of this dialect, and lets every other commit pass.
    """

    def __init__(self, engine: Engine, *, gets_through: bool) -> None:
        self._dialect = engine.dialect
        self._commit: Any = engine.dialect.do_commit
        self._gets_through = gets_through
        self._target: Any = None
        self.cuts = 0
        engine.dialect.do_commit = self._do_commit  # type: ignore[assignment]  # what SQLAlchemy calls to commit

    def arm(self, session: Session) -> None:
        """Cut the commit of the transaction that *session* is in."""
        self._target = session.connection().connection.dbapi_connection

    def _do_commit(self, connection: Any) -> None:
        if self._target is None or connection.dbapi_connection is not self._target:
            self._commit(connection)
            return
        self._target = None
        self.cuts += 1
        if self._gets_through:
            self._commit(connection)
        errors: Any = self._dialect.loaded_dbapi
        if self._dialect.name == "sqlite":
            raise errors.OperationalError("disk I/O error")
        connection.dbapi_connection.close()
        raise errors.OperationalError("server closed the connection unexpectedly")
