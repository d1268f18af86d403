"""Hears NOTIFY, so that a job starts at once and not at the next poll. Never needed for correctness."""

from __future__ import annotations

from collections.abc import Callable

from sqla_jobs.runtime.connections import Connector
from sqla_jobs.runtime.services import NEVER


class Listener:
    """A tick that listens until it is stopped or its connection dies; then the next one listens again.

    :param wake: called with a queue's name, or None when there may be work in any queue
    :param on_listening: called when it has begun to listen
    """

    def __init__(
        self,
        connector: Connector,
        channel: str,
        *,
        wake: Callable[[str | None], None],
        on_listening: Callable[[], object],
    ) -> None:
        self._connector = connector
        self._channel = channel
        self._wake = wake
        self._on_listening = on_listening
        self.is_stopping = False
        self.is_listening = False

    def stop(self) -> None:
        """End the tick that listens, within half a second."""
        self.is_stopping = True

    def tick(self) -> float:
        """Listen. Comes back when stopped, or for good if the driver can't listen; a dead connection raises."""
        try:
            can_listen = self._connector.listen(self._channel, self._hear, lambda: self.is_stopping)
        finally:
            self.is_listening = False
        return 0.0 if can_listen else NEVER

    def _hear(self, queue: str | None) -> None:
        if queue is None:
            # It listens from now on; what came before was not heard.
            self.is_listening = True
            self._on_listening()
        self._wake(queue)
