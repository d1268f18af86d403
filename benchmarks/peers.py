"""Other libraries drain as many no-op jobs, each in an environment of its own and in an empty database of this server.

Of the settings that are tried on a quarter of the jobs, a peer has its fastest. Its handlers are async, as suits it
best; ours are plain functions in threads. Rates are by the database's times, for all alike. In these figures `raw` is
the peer: a ratio of 30 is thirty times its rate.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from benchmarks.bench import Bench
from benchmarks.draining import PLAIN, drain_fresh
from benchmarks.measuring import Figure, rounds
from benchmarks.observing import ROOT

JOBS: Final = 20_000


@dataclass(frozen=True)
class Peer:
    """A program that drains with a peer's worker.

    :ivar tried: arguments of which the fastest are taken
    """

    module: str
    tried: tuple[tuple[str, ...], ...]


PEERS: Final = {
    "procrastinate": Peer(
        "benchmarks.peer_procrastinate",
        (
            ("--concurrency", "1", "--pool", "4"),
            ("--concurrency", "10", "--pool", "12"),
            ("--concurrency", "30", "--pool", "32"),
        ),
    ),
    "pgqueuer": Peer(
        "benchmarks.peer_pgqueuer", (("--batch", "500"), ("--batch", "1000"), ("--batch", "2000"), ("--batch", "5000"))
    ),
}


@dataclass(frozen=True)
class Found:
    """What a peer's program says."""

    rate: float
    settings: dict[str, Any]


def run(bench: Bench) -> list[Figure]:
    """Compare with all peers that were given, none of which is none."""
    jobs = bench.rows(JOBS)
    ours: dict[str, Callable[[], float]] = {"ours": partial(drain_fresh, bench, PLAIN, jobs)}
    peers: dict[str, Callable[[], float]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for name in bench.peers:
        arguments, settings[name] = fastest(bench, name, jobs // 4)
        peers[name] = partial(_rate, bench, name, jobs, arguments)
    found = rounds(ours | peers, bench.repeat) if peers else {}
    return [
        Figure(f"drain / {name}", "jobs/s", found["ours"], found[name], settings={"jobs": jobs, "raw": settings[name]})
        for name in peers
    ]


def peer_of(name: str) -> Peer:
    """
    :raises ValueError: no program here drives it
    """
    if name not in PEERS:
        raise ValueError(f"no peer named {name!r} is known here, only {', '.join(PEERS)}: see benchmarks/peers.py")
    return PEERS[name]


def fastest(bench: Bench, name: str, jobs: int) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Try a peer's settings, and give the arguments of the fastest, and what they are."""
    tried = {arguments: drain(bench, name, jobs, arguments) for arguments in peer_of(name).tried}
    best = max(tried, key=lambda arguments: tried[arguments].rate)
    return best, {"peer": name} | tried[best].settings


def _rate(bench: Bench, name: str, jobs: int, arguments: tuple[str, ...]) -> float:
    return drain(bench, name, jobs, arguments).rate


def drain(bench: Bench, name: str, jobs: int, arguments: tuple[str, ...]) -> Found:
    with empty_database(bench, f"peer_{name}") as url:
        program = [bench.peers[name], "-m", peer_of(name).module, "--url", url, "--jobs", str(jobs), *arguments]
        said = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)  # noqa: S603  # our own
    return Found(**json.loads(said.stdout.splitlines()[-1]))


@contextmanager
def empty_database(bench: Bench, name: str) -> Generator[str]:
    """Make a database beside that of the benchmarks, and give its URL for drivers; it is dropped at the end."""
    url = make_url(bench.url).set(drivername="postgresql", database=name)
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield url.render_as_string(hide_password=False)
        finally:
            connection.execute(drop)
