"""The modules of `sqla_jobs` as syntax trees, and the full names that stand in them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One module.

    :ivar path: relative to the root of the repository, as `sqla_jobs/rules/retry.py`
    """

    path: str
    text: str
    tree: ast.Module

    @staticmethod
    def of(path: str, text: str) -> Source:
        """Parse *text* as the module at *path*."""
        return Source(path, text, ast.parse(text, path))

    def is_in(self, *places: str) -> bool:
        """Tell whether this is one of *places*, or below one that is a folder."""
        return any(self.path == place or self.path.startswith(f"{place.rstrip('/')}/") for place in places)


def sources(*folders: str) -> list[Source]:
    """Parse every module below *folders*, in the order of their paths."""
    return [_parsed(path) for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]


@cache
def _parsed(path: Path) -> Source:
    return Source.of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


def docstrings(tree: ast.AST) -> set[int]:
    """Return the ids of the constants that are docstrings, those below an attribute included."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {id(node.value) for node in statements if isinstance(node.value, ast.Constant)}


@cache
def full_names(tree: ast.AST) -> tuple[tuple[ast.AST, str], ...]:
    """Give every name that was imported, where it is imported and where it is used, as `datetime.datetime.now`.

    Builtins come as `builtins.eval`. What an object's type gives it, as in `session.commit`, has no full name.
    """
    return tuple(_full_names(tree))


def _full_names(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
                top = alias.name.partition(".")[0]
                imported[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node)):
            head, dot, rest = name.partition(".")
            if head in imported:
                yield node, imported[head] + dot + rest
            elif not dot:
                yield node, f"builtins.{head}"


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return None
