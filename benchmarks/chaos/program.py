"""A process of the app, forked from one that has imported all it needs: a new worker serves in no time.

It says `serves` when it is up, and what an enqueuer knows of its transactions. It ends when the other end of its
connection is closed, so that it never outlives the run; any word from there asks an enqueuer to stop.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.chaos import roles


def main(connection: Connection[bytes, bytes], log: Path, role: str, options: dict[str, Any]) -> None:
    """Play a role, and end."""
    # A group of its own: Ctrl-C is for the run alone. Should the run be killed, what we are forked from ends if we hold
    # none of its pipes; and then the system ends processes that are frozen and have nobody.
    os.setpgid(0, 0)
    kept = connection.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, 1024)
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stderr.fileno())
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(process)d %(threadName)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    stopping = threading.Event()
    threading.Thread(target=_obey, args=(connection, stopping), daemon=True).start()
    one_at_a_time = threading.Lock()

    def say(line: str) -> None:
        with one_at_a_time:
            connection.send_bytes(line.encode())

    if role == "worker":
        roles.work(say, **options)
    else:
        roles.enqueue(say, stopping, **options)


def _obey(connection: Connection[bytes, bytes], stopping: threading.Event) -> None:
    try:
        while connection.recv_bytes():
            stopping.set()
    except (EOFError, OSError):
        os._exit(99)
