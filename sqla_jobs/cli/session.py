"""What a command works with: the app's worker, its database in short transactions, and the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sqla_jobs.cli import apps
from sqla_jobs.cli.terminal import Terminal
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.masking import masked_text
from sqla_jobs.runtime.connections import Connector
from sqla_jobs.runtime.worker import Worker

T = TypeVar("T")


class Cli:
    """One run of a command. The app is imported when the command first asks for it."""

    def __init__(self, terminal: Terminal, *, app: str | None) -> None:
        self.terminal = terminal
        self._app = app
        self._connector: Connector | None = None

    @cached_property
    def worker(self) -> Worker:
        """The app's worker."""
        return apps.load(self._app)

    @property
    def jobs(self) -> Jobs[Any]:
        """The app's registry."""
        return self.worker.jobs

    @property
    def engine(self) -> Engine:
        """The app's engine."""
        return self.worker.engine

    @property
    def database(self) -> str:
        """The app's database, for people."""
        if "worker" not in vars(self):
            return "the database"
        return masked_text(f"the database {self.engine.url.render_as_string(hide_password=True)}")

    @property
    def connector(self) -> Connector:
        """The connection of this command."""
        if self._connector is None:
            self._connector = self.worker.new_connector()
        return self._connector

    def run(self, operation: Callable[[Session], T]) -> T:
        """Run *operation* in a short transaction of its own, and commit it."""
        return self.connector.run(operation)

    def read(self, operation: Callable[[Session], T]) -> T:
        """Run *operation*, which only reads."""
        return self.connector.read(operation)

    def rehearse(self, operation: Callable[[Session], T]) -> T:
        """Run *operation* and roll it back: what it gives is what it would do now."""
        results = list[T]()

        def undone(session: Session) -> None:
            results.append(operation(session))
            raise _Undone

        with contextlib.suppress(_Undone):
            self.connector.run(undone)
        return results[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connector is not None:
            self._connector.close()


class _Undone(Exception):
    """Rolls a transaction back."""
