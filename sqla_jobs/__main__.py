"""`sqla-jobs`, and `python -m sqla_jobs`."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line; without what it needs, say what to install."""
    if missing := [name for name in ("typer", "rich") if find_spec(name) is None]:
        sys.stderr.write(f"sqla-jobs needs {' and '.join(missing)}: pip install 'sqla_jobs[cli]'\n")
        sys.exit(2)
    from sqla_jobs.cli.program import run

    run()


if __name__ == "__main__":
    main()
