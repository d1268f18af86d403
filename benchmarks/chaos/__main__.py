"""`python -m benchmarks.chaos --minutes N --seed S`.

It starts a PostgreSQL and an app of many processes, disturbs them until N minutes are over, lets them come to rest, and
prints one JSON object as its last line: `jobs` that there were, `kills` of processes, `faults` by kind, `lost` and
`doubled` jobs, effects and slots, other truths that were `broken`, and `recovery_s`, the seconds from the last fault
until nothing was left to run. It ends with 1 if anything was lost, doubled or broken, or if something was left; what
that was goes to stderr. The seed draws the faults, not what they meet: a second run is alike, not the same.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from types import FrameType

from benchmarks.chaos.run import WORKERS, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="until when faults are injected, the start included")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; drawn and told unless given")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes that run jobs; half as many enqueue")
    arguments = parser.parse_args()
    seed: int = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    for number in _ENDING:
        signal.signal(number, _end)
    say(f"seed {seed}")
    report = run(60 * arguments.minutes, seed, say, workers=arguments.workers)
    for line in report.verdict.details:
        say(line)
    found = {name: getattr(report.verdict, name) for name in ("lost", "doubled", "broken")}
    figures = {"jobs": report.figures.pop("jobs"), "minutes": arguments.minutes}
    print(json.dumps(figures | found | {"drained": report.is_drained} | report.figures), flush=True)
    return 0 if report.is_clean else 1


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_ENDING = (signal.SIGTERM, signal.SIGINT)


def _end(number: int, frame: FrameType | None) -> None:
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)  # what is under way now is the cleaning up
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
