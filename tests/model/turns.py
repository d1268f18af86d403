"""What may happen next.

Hypothesis has rules of its own for this, and switches each of them off for whole examples, at random. Here that leaves
few examples in which jobs are enqueued, claimed, lost and settled. So the machine has one rule, that takes one turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st

F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True)
class Kind:
    """A method that is a turn: how often it comes, when it may, and what its arguments are."""

    name: str
    weight: int
    when: Callable[[Any], object]
    arguments: st.SearchStrategy[dict[str, Any]]


@dataclass(frozen=True, repr=False)
class Turn:
    """One call, printed as it is to be written in a test of its own."""

    name: str
    arguments: dict[str, Any]

    def _repr_pretty_(self, printer: Any, _is_cycle: object) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"


def turn(
    *, weight: int = 1, when: Callable[[Any], object] = lambda _: True, **arguments: st.SearchStrategy[Any]
) -> Callable[[F], F]:
    """Make a method a turn."""

    def mark(function: F) -> F:
        vars(function)["kind"] = Kind(function.__name__, weight, when, st.fixed_dictionaries(arguments))
        return function

    return mark


def kinds(machine: type[Any]) -> list[Kind]:
    """Give the turns that a class has, each as often as it weighs."""
    methods = [method for name, method in sorted(vars_of(machine).items()) if not name.startswith("_")]
    found: list[Kind] = [vars(method)["kind"] for method in methods if "kind" in getattr(method, "__dict__", {})]
    # The heaviest first: it is what Hypothesis takes for simplest.
    return [kind for kind in sorted(found, key=lambda kind: -kind.weight) for _ in range(kind.weight)]


def vars_of(machine: type[Any]) -> dict[str, Any]:
    """Give what a class has and inherits."""
    return {name: value for base in reversed(machine.__mro__) for name, value in vars(base).items()}


@st.composite
def next_turn(draw: st.DrawFn, machine: Any) -> Turn:
    """Draw a turn that may come now."""
    possible = [kind for kind in machine.kinds if kind.when(machine)]
    kind = draw(st.sampled_from(possible))
    return Turn(kind.name, draw(kind.arguments))
