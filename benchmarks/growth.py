"""The plain drain again, in a table full of rows that have nothing to do with it.

Ours and `raw` are both the library here: `job` holds the other rows, `lean_job` is the same table without them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from sqlalchemy import text

from benchmarks.bench import Bench
from benchmarks.draining import LEAN, PLAIN, Drain, Side, drain, fill_backlog
from benchmarks.measuring import Figure, rounds
from benchmarks.tables import Job, fill

DAY: Final = 86_400.0

OTHERS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "done": (1_000_000, {"status": "done", "due": -DAY}),
    "due later": (100_000, {"due": DAY}),
    "ready in a queue not served": (100_000, {"queue": "elsewhere", "due": -3600.0}),
    "ready of an unknown type": (100_000, {"type": "unknown", "due": -3600.0}),
}

BACKLOG: Final = 20_000

LONG_BACKLOG: Final = 100_000


def run(bench: Bench) -> list[Figure]:
    """Each kind of other rows alone, all together, and all together under an old snapshot."""
    figures: list[Figure] = []
    for name in OTHERS:
        figures += measured(bench, f"growth: {bench.rows(OTHERS[name][0]):,} {name}", [name])
    figures += measured(bench, "growth: all of these", list(OTHERS))
    figures += measured(bench, "growth: all, an old snapshot held", list(OTHERS), rows=LONG_BACKLOG, is_held=True)
    return figures


def measured(bench: Bench, title: str, names: list[str], *, rows: int = BACKLOG, is_held: bool = False) -> list[Figure]:
    """Fill once, then drain in turn; what a round has drained is deleted after it."""
    rows = bench.rows(rows)
    bench.fresh()
    others = {name: bench.rows(OTHERS[name][0]) for name in names}
    with bench.engine.begin() as connection:
        for name, count in others.items():
            fill(connection, Job, count, **OTHERS[name][1])
    found = rounds(
        {"ours": _drained(bench, PLAIN, rows, is_held=is_held), "plain": _drained(bench, LEAN, rows)}, bench.repeat
    )
    settings = {"jobs": rows, "others": others, "raw": "the library's own drain of a table without other rows"}
    figures = [_figure(title, found, settings, lambda drain: drain.rate)]
    if is_held:
        # The longer the snapshot is held, the more dead rows there are to walk over.
        figures.append(_figure(f"{title}, last fifth", found, settings, lambda drain: drain.late_rate))
    return figures


def _figure(
    title: str, found: dict[str, tuple[Drain, ...]], settings: dict[str, Any], rate: Callable[[Drain], float]
) -> Figure:
    ours, plain = (tuple(rate(drain) for drain in found[side]) for side in ("ours", "plain"))
    return Figure(title, "jobs/s", ours, plain, settings=settings)


def _drained(bench: Bench, side: Side, rows: int, *, is_held: bool = False) -> Callable[[], Drain]:
    def measure() -> Drain:
        backlog = fill_backlog(bench, side, rows)
        bench.tidy()
        with old_snapshot(bench) if is_held else nullcontext():
            found = drain(bench, side, backlog)
        backlog.forget(bench)
        return found

    return measure


@contextmanager
def old_snapshot(bench: Bench) -> Generator[None]:
    """Keep a transaction open that may yet look at every row as it is now."""
    with bench.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT count(*) FROM (SELECT 1 FROM job LIMIT 1) AS row"))
        yield
