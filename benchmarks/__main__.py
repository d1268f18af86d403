"""Measure this library against what its database can do.

    python -m benchmarks NAME… [--json] [--url …] [--repeat 3] [--scale 1.0] [--peer NAME=PYTHON] [--plot FILE]

Each benchmark measures ours and a raw limit in turn: hand-written code for the same work, on a table of the same
columns and indexes. The ratio says how near ours comes to it; 1.0 is as good. It starts a PostgreSQL of its own, with
durable settings, unless given a URL; tables of the names in `benchmarks.tables` are dropped there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks import contention, draining, enqueueing, growth, idle, latency, peers, plots
from benchmarks.bench import Bench, durable_server
from benchmarks.measuring import Figure

BENCHMARKS: Final[dict[str, Callable[[Bench], list[Figure]]]] = {
    "enqueue": enqueueing.run,
    "enqueue-bulk": enqueueing.run_bulk,
    "drain": draining.run,
    "drain-session": draining.run_session,
    "drain-async": draining.run_async,
    "latency": latency.run,
    "growth": growth.run,
    "idle": idle.run,
    "contention": contention.run,
}


def main() -> None:
    asked = parser()
    arguments = asked.parse_args()
    if arguments.plot:
        try:
            plots.check_matplotlib()
        except plots.NoMatplotlib as error:
            asked.error(str(error))
    names = list(BENCHMARKS) if "all" in arguments.names else list(dict.fromkeys(arguments.names))
    if arguments.url:
        measure(arguments, names, arguments.url)
        return
    with durable_server() as url:
        measure(arguments, names, url)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("names", nargs="+", metavar="NAME", choices=[*BENCHMARKS, "all"], help=", ".join(BENCHMARKS))
    made.add_argument("--json", action="store_true", help="one object a line")
    made.add_argument("--url", help="postgresql+psycopg://… of a database to use up, by a superuser")
    made.add_argument("--repeat", type=int, default=3, help="rounds")
    made.add_argument("--scale", type=float, default=1.0, help="how much of the full work to do, for trials")
    made.add_argument(
        "--peer", action="append", default=[], type=_peer, metavar="NAME=PYTHON", help="drain with it, too"
    )
    made.add_argument("--plot", metavar="FILE", help="draw the ratios; needs matplotlib")
    return made


def _peer(given: str) -> tuple[str, str]:
    name, _, python = given.partition("=")
    if not python:
        raise argparse.ArgumentTypeError(f"NAME=PYTHON, such as procrastinate=/opt/p/bin/python, and not {given!r}")
    try:
        peers.peer_of(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name, python


def measure(arguments: argparse.Namespace, names: list[str], url: str) -> None:
    """Run the benchmarks, and print each figure as soon as there is one."""
    bench = Bench(url, arguments.scale, arguments.repeat, dict(arguments.peer))
    figures: list[Figure] = []
    if not arguments.json:
        print("  ".join(f"{name} {value}" for name, value in bench.settings.items()))
        print(f"\n{'':44} {'ours':>10} {'(spread)':>9} {'raw':>10} {'ratio':>6}")
    for figure in measured(bench, names):
        figures.append(figure)
        line = figure.as_json()
        line["settings"] = bench.settings | figure.settings
        print(json.dumps(line) if arguments.json else row(figure), flush=True)
    if arguments.plot:
        plots.draw(figures, arguments.plot)


def measured(bench: Bench, names: list[str]) -> Iterator[Figure]:
    for name in names:
        yield from BENCHMARKS[name](bench)
    if bench.peers:
        yield from peers.run(bench)


def row(figure: Figure) -> str:
    """Write a figure as a line of the table."""
    raw = "" if figure.raw_median is None else amount(figure.raw_median)
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    spread = f"±{50 * figure.spread:.0f} %"
    return f"{figure.name:44} {amount(figure.median):>10} {spread:>9} {raw:>10} {ratio:>6}  {figure.unit}"


def amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


if __name__ == "__main__":
    main()
