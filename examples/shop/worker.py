"""The shop's worker: start as many as you like.

sqla-jobs --app examples.shop.worker:make_worker worker      runs until SIGTERM or Ctrl-C, then drains
python -m examples.shop.worker                               does the same
python -m examples.shop.worker --until-idle                  runs until nothing is due
"""

from __future__ import annotations

import logging
import sys

from sqlalchemy.orm import sessionmaker

from examples.shop.db import make_engine
from examples.shop.handlers import jobs
from sqla_jobs import Worker


def make_worker() -> Worker:
    """Make the shop's worker; the command line `sqla-jobs` works with it, too."""
    return Worker(jobs, sessionmaker(make_engine()))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    worker = make_worker()
    if "--until-idle" in sys.argv[1:]:
        worker.run_until_idle()
    else:
        worker.run()


if __name__ == "__main__":
    main()
