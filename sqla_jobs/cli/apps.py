"""The app that a command works for: `module:worker`, from the command line, the environment, or pyproject.toml."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqla_jobs.cli.stops import Stop, place, refused
from sqla_jobs.errors import SqlaJobsError
from sqla_jobs.rules.masking import masked_text
from sqla_jobs.runtime.worker import Worker

VARIABLE: Final = "SQLA_JOBS_APP"

_EXAMPLE: Final = "shop.worker:worker"

_WANTED: Final = "worker = Worker(jobs, sessionmaker(engine)), or a function without arguments that returns one"


@dataclass(frozen=True, slots=True)
class AppName:
    """Where an app is.

    :ivar text: `module:attribute`
    :ivar source: who says so
    :ivar folder: of the pyproject.toml that says so
    """

    text: str
    source: str
    folder: Path | None = None


def load(given: str | None) -> Worker:
    """Import the app and give its worker. The current folder can be imported from.

    :raises Stop: no app is named, or it is not there, or it is no worker; the text says what to do
    """
    app = find(given)
    module_name, attribute = _split(app)
    for folder in filter(None, (app.folder, Path.cwd())):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return _worker(_found(_imported(module_name, app), attribute, app), app)


def find(given: str | None) -> AppName:
    """Find the app's name: the one *given*, else the environment's, else that of the nearest pyproject.toml."""
    if given is not None:
        return AppName(given, "--app")
    if named := os.environ.get(VARIABLE):
        return AppName(named, VARIABLE)
    for folder in (Path.cwd(), *Path.cwd().parents):
        file = folder / "pyproject.toml"
        if file.is_file() and (text := _configured(file)) is not None:
            return AppName(text, str(file), folder)
    raise refused(
        f"which app? Name its worker: --app {_EXAMPLE}, or {VARIABLE} in the environment, or in pyproject.toml\n"
        f'  [tool.sqla_jobs]\n  app = "{_EXAMPLE}"'
    )


def _configured(file: Path) -> str | None:
    try:
        section: object = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("sqla_jobs")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError, OSError) as error:
        raise refused(f"{file} can't be read: {error}") from error
    if section is None:
        return None
    app: object = section.get("app") if isinstance(section, dict) else None  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]  # TOML
    if not isinstance(app, str):
        raise refused(f'{file}: [tool.sqla_jobs] names no app: app = "{_EXAMPLE}"')
    return app


def _split(app: AppName) -> tuple[str, str]:
    module, colon, attribute = app.text.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        return module, attribute
    hint = ""
    if "/" in module or module.endswith(".py"):
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        hint = f"; a module, and not a file: {dotted}:{attribute or 'worker'}"
    elif not colon and "." in module:
        hint = f"; {module}:worker, or {'{}:{}'.format(*module.rsplit('.', 1))}"
    raise refused(f"{app.text!r} ({app.source}) is no app: write module:attribute, as in {_EXAMPLE}{hint}")


def _imported(name: str, app: AppName) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise _missing_module(error.name, app) from error
        raise _failed(f"importing {name}", error, app) from error
    except (Exception, SystemExit) as error:  # the app's code: whatever it raises is what people have to see
        raise _failed(f"importing {name}", error, app) from error


def _missing_module(name: str, app: AppName) -> Stop:
    above, _, last = name.rpartition(".")
    where = f"{above} has no module {last!r}" if above else f"no module {name!r} in {Path.cwd()}, nor installed"
    return refused(f"{app.text} ({app.source}): {where}. Run it from the app's folder, or install the app")


def _failed(what: str, error: BaseException, app: AppName) -> Stop:
    if isinstance(error, Stop):
        return error
    text = str(error) if isinstance(error, SqlaJobsError) else f"{type(error).__name__}: {error}"
    return refused(f"{what} ({app.source}) failed, in {place(error)}:\n  {masked_text(text)}")


def _found(module: Any, attribute: str, app: AppName) -> Any:
    found = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise refused(f"{app.text} ({app.source}): {_name(found)} has no {name!r}{_hint(found, name)}")
        found = getattr(found, name)
    return found


def _hint(owner: Any, name: str) -> str:
    values: dict[str, Any] = {each: getattr(owner, each, None) for each in dir(owner) if not each.startswith("_")}
    workers = [each for each, value in values.items() if isinstance(value, Worker)]
    near = difflib.get_close_matches(name, values, n=1) or workers[:1]
    return f" (did you mean {near[0]!r}?)" if near else f": write there {_WANTED}"


def _worker(found: Any, app: AppName) -> Worker:
    if isinstance(found, Worker):
        return found
    if not callable(found) or inspect.isclass(found):
        raise refused(f"{app.text} ({app.source}) is {_described(found)}, and no Worker: {_WANTED}")
    try:
        inspect.signature(found).bind()
    except TypeError:
        raise refused(f"{app.text} ({app.source}) takes arguments: {_WANTED}") from None
    except ValueError:
        pass  # a builtin, which does not tell
    try:
        made = found()
    except (Exception, SystemExit) as error:  # as above
        raise _failed(f"calling {app.text}", error, app) from error
    if inspect.iscoroutine(made):
        made.close()
    if not isinstance(made, Worker):
        raise refused(f"{app.text} ({app.source}) returned {_described(made)}, and no Worker: {_WANTED}")
    return made


def _described(found: object) -> str:
    if inspect.isclass(found):
        return f"the class {found.__name__}"
    kind = type(found).__name__
    return f"{'an' if kind[:1] in 'aeiouAEIOU' else 'a'} {kind}"


def _name(found: object) -> str:
    return str(getattr(found, "__name__", type(found).__name__))
