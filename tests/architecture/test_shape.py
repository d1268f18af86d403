from __future__ import annotations

import ast
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import sqla_jobs
from tests.architecture.sources import Definition, Source, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_FUNCTION: Final = 45
LONGEST_FILE: Final = 400


def test_functions_fit_on_a_screen() -> None:
    """No function of the library has more than 45 lines, its docstring aside."""
    assert not [line for source in sources("sqla_jobs") for line in long_functions(source)]


def test_long_function_is_caught() -> None:
    """46 lines are too many, 45 are not, and the docstring's don't count."""
    head = 'async def f():\n    """' + "\n" * 50 + '    """\n'

    assert not list(long_functions(Source.of("snippet.py", head + "    pass\n" * (LONGEST_FUNCTION - 1))))
    assert list(long_functions(Source.of("snippet.py", head + "    pass\n" * LONGEST_FUNCTION)))


def test_files_fit_in_a_head() -> None:
    """No file of the library has more than 400 lines."""
    assert not [line for source in sources("sqla_jobs") for line in long_files(source)]


def test_long_file_is_caught() -> None:
    """401 lines are too many, 400 are not."""
    assert not list(long_files(Source.of("snippet.py", "pass\n" * LONGEST_FILE)))
    assert list(long_files(Source.of("snippet.py", "pass\n" * (LONGEST_FILE + 1))))


def test_public_functions_and_classes_say_what_they_do() -> None:
    """All that `sqla_jobs` exports, and each public method of it, has a docstring of its own."""
    assert not list(undocumented(sqla_jobs, sqla_jobs.__all__))


def test_missing_docstring_is_caught() -> None:
    """A function, a class and a method without a docstring are found; what a dataclass makes up is none."""
    module = ModuleType("snippet")
    code = (
        "from dataclasses import dataclass\n"
        "def bare(): ...\n"
        "class Plain: ...\n"
        "@dataclass\nclass Made: x: int\n"
        "class Told:\n    'Doc.'\n    def method(self): ...\n    def told(self): 'Doc.'\n    def _private(self): ...\n"
    )
    exec(compile(code, "snippet", "exec", dont_inherit=True), vars(module))  # noqa: S102  # our own text

    assert list(undocumented(module, ["bare", "Plain", "Made", "Told"])) == ["bare", "Plain", "Made", "Told.method"]


def test_all_is_exactly_the_public_names() -> None:
    """`__all__` names what `sqla_jobs` offers, once each, and nothing public is left out."""
    assert sorted(sqla_jobs.__all__) == sorted(public_names(sqla_jobs))


def test_name_missing_in_all_is_caught() -> None:
    """A public name that `__all__` leaves out shows; modules and private names are not public."""
    module = ModuleType("snippet")
    vars(module).update(offered=1, _private=2, errors=ModuleType("snippet.errors"))

    assert public_names(module) == {"offered"}


def test_tests_say_which_truth_they_guard() -> None:
    """Every test has a docstring of one sentence on one line."""
    assert not [line for source in sources("tests") for line in untold_tests(source)]


def test_test_without_its_sentence_is_caught() -> None:
    """No docstring, more than one line, and a sentence without an end are found, in classes too."""
    code = (
        "def test_none(): ...\n"
        "def test_long():\n    'One.\\nTwo.'\n"
        "class TestIt:\n    async def test_endless(self): 'One'\n"
        "def test_told(): 'One.'\n"
        "def check(): ...\n"
    )

    found = [line.rpartition(": ")[2] for line in untold_tests(Source.of("tests/test_snippet.py", code))]

    assert sorted(found) == ["test_endless", "test_long", "test_none"]


def long_functions(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, Definition) and (lines := _lines(node)) > LONGEST_FUNCTION:
            yield f"{source.path}:{node.lineno}: {node.name} has {lines} lines"


def _lines(node: Definition) -> int:
    lines = _height(node)
    first = node.body[0]
    return lines - _height(first) if ast.get_docstring(node, clean=False) is not None else lines


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def long_files(source: Source) -> Iterator[str]:
    if (lines := len(source.text.splitlines())) > LONGEST_FILE:
        yield f"{source.path} has {lines} lines"


def untold_tests(source: Source) -> Iterator[str]:
    if source.path.rpartition("/")[2].startswith("test_") and not source.is_in("tests/typing/cases"):
        for node in ast.walk(source.tree):
            if isinstance(node, Definition) and node.name.startswith("test_"):
                told = ast.get_docstring(node) or ""
                if not told.endswith((".", "!")) or "\n" in told:
                    yield f"{source.path}:{node.lineno}: {node.name}"


def undocumented(module: ModuleType, names: list[str]) -> Iterator[str]:
    for name in names:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            if not _own_docstring(thing):
                yield name
            yield from (f"{name}.{method}" for method in _methods_without_docstring(thing))
        elif inspect.isroutine(thing) and not thing.__doc__:
            yield name


def _own_docstring(thing: type[Any]) -> bool:
    # A dataclass without a docstring gets its signature for one.
    return bool(thing.__doc__) and not str(thing.__doc__).startswith(f"{thing.__name__}(")


def _methods_without_docstring(thing: type[Any]) -> list[str]:
    return [
        name
        for name, member in vars(thing).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod))
        and not member.__doc__
    ]


def public_names(module: ModuleType) -> set[str]:
    return {
        name for name, thing in vars(module).items() if not name.startswith("_") and not isinstance(thing, ModuleType)
    }
