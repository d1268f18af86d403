"""The shop's worker: start as many as you like.

python -m examples.shop.worker                  runs until SIGTERM or Ctrl-C, then drains
python -m examples.shop.worker --until-idle     runs until nothing is due
"""

from __future__ import annotations

import logging
import sys

from sqlalchemy.orm import sessionmaker

from examples.shop.db import make_engine
from examples.shop.handlers import jobs
from sqla_jobs import Worker


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    worker = Worker(jobs, sessionmaker(make_engine()))
    if "--until-idle" in sys.argv[1:]:
        worker.run_until_idle()
    else:
        worker.run()


if __name__ == "__main__":
    main()
