"""Hears the statements that an engine, and the engines made like it, send."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, event

from tests.runtime.app import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

HEARTBEAT = "SET locked_until="
"""What only the heartbeat says: the claim sets more before it."""

LISTEN = "LISTEN "


class Statements:
    """Counts the statements with *text* in them, once they have been answered; can stop one on its way.

    Deaf on SQLite: there the worker begins its transactions itself, without the events of the app's engine.
    """

    def __init__(self, engine: Engine, text: str) -> None:
        self._text = text
        self._answered = 0
        self._more = threading.Condition()
        self._next: Callable[[Connection], None] | None = None
        self.connections: list[Any] = []
        event.listen(engine, "before_cursor_execute", self._before)
        event.listen(engine, "after_cursor_execute", self._after)

    @property
    def answered(self) -> int:
        """How many there were."""
        return self._answered

    def before_next(self, do: Callable[[Connection], None]) -> None:
        """Do something with the connection of the next such statement, once, before it is sent."""
        self._next = do

    def wait_for(self, number: int) -> None:
        """Wait until so many have been answered."""
        with self._more:
            found = self._more.wait_for(lambda: self._answered >= number, PATIENCE)
        assert found, f"{self._answered} statements with {self._text!r}, and not {number}"

    def _before(self, connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if self._text in statement and self._next is not None:
            do, self._next = self._next, None
            do(connection)

    def _after(self, connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if self._text in statement:
            with self._more:
                self._answered += 1
                self.connections.append(connection.connection.driver_connection)
                self._more.notify_all()
