"""Draws ratios as bars: one for each figure that has a limit, with the spread of its rounds.

    python -m benchmarks drain latency --plot ratios.png

Needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.measuring import Figure

WIDEST: Final = 2.0
"""Where the bars end that are longer, such as those of peers; the number tells how long they are."""


class NoMatplotlib(Exception):
    """It can't be imported."""


def check_matplotlib() -> None:
    """Find out before measuring whether there can be a plot.

    :raises NoMatplotlib: it is not installed; leave `--plot` out, or install it
    """
    _pyplot()


def draw(figures: Sequence[Figure], file: str) -> None:
    """Draw *figures* into *file*, in the format that its name ends with.

    :raises NoMatplotlib: it is not installed
    :raises ValueError: no figure has a limit to compare it with
    """
    pyplot = _pyplot()
    compared = [figure for figure in figures if figure.ratio is not None][::-1]
    if not compared:
        raise ValueError("there is nothing to plot: none of these figures has a raw limit beside it")
    drawing, axes = pyplot.subplots(figsize=(9, 1.2 + 0.4 * len(compared)), layout="constrained")
    ratios = [figure.ratio or 0.0 for figure in compared]
    below = [ratio - min(figure.ratios) for ratio, figure in zip(ratios, compared, strict=True)]
    above = [max(figure.ratios) - ratio for ratio, figure in zip(ratios, compared, strict=True)]
    places = range(len(compared))
    axes.barh(places, ratios, xerr=[below, above], capsize=3)
    axes.set_yticks(places, [_label(figure) for figure in compared])
    axes.set_xlim(0, WIDEST)
    for place, ratio, more in zip(places, ratios, above, strict=True):
        inside = ratio + more < WIDEST * 0.9
        at = (
            {"x": ratio + more + 0.03, "ha": "left"}
            if inside
            else {"x": WIDEST - 0.03, "ha": "right", "color": "white"}
        )
        axes.text(y=place, s=f"{ratio:.2f}" if inside else f"{ratio:.2f} ⟶", va="center", **at)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("ratio to the limit beside it, 1.0 is as good; medians, with the lowest round and the highest")
    drawing.savefig(file)
    pyplot.close(drawing)


def _label(figure: Figure) -> str:
    return f"{figure.name} ({figure.median:,.4g} {figure.unit})"


def _pyplot() -> Any:
    try:
        # By its name, since it is no dependency: no type checker finds it.
        importlib.import_module("matplotlib").use("Agg")  # draws into files, without a display
        return importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise NoMatplotlib(
            "--plot needs matplotlib, which this Python does not have: pip install matplotlib"
        ) from error
