"""Asks whether the database answers, and does not wait for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Probe:
    """One question at a time, in a thread of its own: who asks while one is under way waits for that answer.

    :param ask: returns if the database answers; what it raises says that it doesn't
    """

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._question: _Question | None = None

    def is_answered(self, seconds: float) -> bool:
        """Give whether the database answers within that time."""
        with self._lock:
            if self._question is None or self._question.has_ended.is_set():
                self._question = _Question(self._ask)
            question = self._question
        return question.has_ended.wait(seconds) and question.is_answered


class _Question:
    def __init__(self, ask: Callable[[], object]) -> None:
        self.has_ended = threading.Event()
        self.is_answered = False
        threading.Thread(target=self._run, args=(ask,), name="sqla_jobs probe", daemon=True).start()

    def _run(self, ask: Callable[[], object]) -> None:
        try:
            ask()
            self.is_answered = True
        except Exception:  # noqa: BLE001  # recorded as no answer
            self.is_answered = False
        finally:
            self.has_ended.set()
