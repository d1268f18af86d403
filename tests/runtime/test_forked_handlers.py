from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sqla_jobs.runtime import signals
from sqla_jobs.runtime.signals import Signals
from tests.architecture.sources import ROOT
from tests.engines import build_engine
from tests.runtime.app import PATIENCE, App

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Give what came of the program `parenting`."""
    path: Path = tmp_path_factory.mktemp("parent") / "jobs.sqlite"
    url = f"sqlite:///{path}"
    engine = build_engine(url)
    App(engine).create()
    engine.dispose()
    program = [sys.executable, "-W", "ignore", "-m", "tests.runtime.parenting", url]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)


def test_worker_when_several_children_start_it(parent: subprocess.CompletedProcess[str]) -> None:
    """A worker made before a fork has a name of its own in each child: none takes another's jobs for strays."""
    names = [line for line in parent.stdout.splitlines() if line.startswith("name: default:")]

    assert len({*names}) == len(names) == 3


def test_child_of_a_handler_when_it_is_ended(parent: subprocess.CompletedProcess[str]) -> None:
    """SIGTERM to a process that a handler has forked ends that process, and not the worker."""
    said = parent.stdout.splitlines()

    assert f"child: {-signal.SIGTERM}" in said
    assert "worker: goes on" in said


def test_worker_when_a_handler_leaves_a_thread_at_work(parent: subprocess.CompletedProcess[str]) -> None:
    """A worker that is stopped ends its process although an async handler has left a thread that nothing can end."""
    assert parent.returncode == 0, parent
    assert "run: has returned" not in parent.stdout
    assert "leaves threads that handlers have started, and ends" in parent.stderr


def test_signals_when_a_handler_was_set_from_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that Python does not know of, as a server that embeds it sets one, is followed by the default."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def set_from_c(number: int, handler: Any) -> Any:
        former = signal.signal(number, handler)
        return None if former is before[signal.Signals(number)] else former

    known = SimpleNamespace(signal=set_from_c, set_wakeup_fd=signal.set_wakeup_fd, SIG_DFL=signal.SIG_DFL)
    monkeypatch.setattr(signals, "signal", known)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
        after = [signal.getsignal(number) for number in before]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    assert after == [signal.SIG_DFL, signal.SIG_DFL]
