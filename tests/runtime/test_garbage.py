from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqla_jobs.runtime.garbage import spared
from tests.runtime.app import App, ended, wait_for

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest


def test_spared_objects_are_collected_again_in_the_end() -> None:
    """Those that were there before are left alone only meanwhile."""
    with spared():
        meanwhile = gc.get_freeze_count()

    assert meanwhile > 0
    assert gc.get_freeze_count() == 0


def test_spared_when_the_app_has_frozen_objects_itself() -> None:
    """What an app froze, as before a fork, stays frozen."""
    gc.freeze()
    count = gc.get_freeze_count()
    with spared():
        pass
    left = gc.get_freeze_count()
    gc.unfreeze()

    assert left == count > 0


def test_objects_are_spared_by_a_process_that_is_a_workers_own(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run()` does so until it ends; a worker inside an app leaves the collector as it is."""
    begun, over = threading.Event(), threading.Event()

    @contextmanager
    def told() -> Generator[None]:
        begun.set()
        yield
        over.set()

    monkeypatch.setattr("sqla_jobs.runtime.worker.spared", told)
    with app.worker():
        is_embedded = begun.is_set()
    worker = app.worker()
    with ended(threading.Thread(target=worker.run, daemon=True)):
        wait_for(begun)
        is_running = not over.is_set()
        worker.stop()
        wait_for(over)

    assert (is_embedded, is_running) == (False, True)
