"""That the benchmarks run and say what they found. No test looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.measuring import Figure, compare, rounds

ROOT: Final = Path(__file__).parents[2]

NUMBERS: Final = {
    *("ours", "raw", "ratio"),
    *("ours_min", "ours_max", "raw_min", "raw_max", "ratio_min", "ratio_max"),
}


@pytest.mark.slow
def test_benchmarks_print_one_object_a_line_for_each_figure() -> None:
    """A short run on a server of its own prints figures with their limits, ratios and settings, and nothing else."""
    names = ["enqueue", "enqueue-bulk", "drain", "latency"]
    command = [sys.executable, "-m", "benchmarks", *names, "--json", "--scale", "0.01", "--repeat", "1"]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not ran.stderr
    figures: dict[str, dict[str, Any]] = {line["name"]: line for line in map(json.loads, ran.stdout.splitlines())}
    rates = ["enqueue", "enqueue / psycopg", "enqueue-bulk", "drain", "drain, two processes"]
    assert list(figures)[:5] == rates
    assert {"latency p50", "latency p95", "latency p99"} <= set(list(figures)[5:])
    for figure in figures.values():
        assert set(figure) == {"name", "unit", "settings"} | NUMBERS
        assert all(figure[name] > 0 for name in NUMBERS), figure
        ours, raw = figure["ours"], figure["raw"]
        assert figure["ratio"] == (ours / raw if figure["name"] in rates else raw / ours)
        told = {"scale": 0.01, "repeat": 1, "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
        assert told.items() <= figure["settings"].items()
    assert figures["drain, two processes"]["settings"]["processes"] == 2


def test_ratio_is_of_the_rounds_and_better_when_it_is_more() -> None:
    """A ratio is the middle one of the rounds' own, ours to the limit for rates and the other way round for times."""
    rate = Figure("rate", "jobs/s", ours=(50.0, 90.0, 10.0), raw=(100.0, 100.0, 100.0))
    delay = Figure("delay", "ms", ours=(4.0, 2.0, 8.0), raw=(2.0, 2.0, 2.0), is_rate=False)
    alone = Figure("alone", "MiB", ours=(4.0,))

    assert (rate.ratio, rate.ratios, rate.median) == (0.5, (0.5, 0.9, 0.1), 50.0)
    assert (delay.ratio, delay.ratios) == (0.5, (0.5, 1.0, 0.25))
    assert (alone.ratio, alone.as_json()["raw"], alone.as_json()["ratio_min"]) == (None, None, None)


def test_rounds_take_turns_at_going_first() -> None:
    """All sides are measured in each round, and every other round goes backwards."""
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = rounds({name: partial(measure, name) for name in ("ours", "orm", "raw")}, 3)
    figure = compare("turns", ours=lambda: 1.0, raw=lambda: 2.0, repeat=2, unit="jobs/s", settings={"jobs": 7})

    assert order == ["ours", "orm", "raw", "raw", "orm", "ours", "ours", "orm", "raw"]
    assert found == {"ours": (1.0, 6.0, 7.0), "orm": (2.0, 5.0, 8.0), "raw": (3.0, 4.0, 9.0)}
    assert (figure.ours, figure.raw, figure.settings) == ((1.0, 1.0), (2.0, 2.0), {"jobs": 7})
