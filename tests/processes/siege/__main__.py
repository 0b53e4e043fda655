"""Runs sieges of clusters of real processes, or checks the history of an earlier siege again.

python -m tests.processes.siege --minutes 60
python -m tests.processes.siege --judge DIRECTORY
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from tests.processes.siege.campaign import PLAIN, Only, judge
from tests.processes.siege.cluster import Shape
from tests.processes.siege.node import LOG_LEVEL
from tests.processes.siege.runs import chosen_shapes, run_siege


def main() -> int:
    options = _options()
    if options.judge is not None:
        verdict = judge(options.judge, str(options.judge))
        print(verdict.text)
        return 0 if verdict.findings.ok else 1
    directory = Path(options.directory or tempfile.mkdtemp(prefix="ottla-siege-"))
    shapes = chosen_shapes(options.shape)
    print(f"seed {options.seed} (repeat with --seed {options.seed}); histories in {directory}", flush=True)
    failed = 0
    for number, shape in enumerate(shapes, 1):
        own = directory / f"{number}-{shape.name}"
        failed += not _one(own, shape, options.minutes * 60 / len(shapes), options.seed, options.only)
    if not failed and not options.keep:
        shutil.rmtree(directory)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.siege", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument(
        "--seed", type=int, default=int(os.environ.get("OTTLA_SEED") or SystemRandom().randrange(1 << 32))
    )
    parser.add_argument(
        "--shape", action="append", help="as 3,sqlite or 3,etcd,memory or 3,etcd,power; several in turn"
    )
    parser.add_argument("--only", action="append", help="a kind of fault; several may be given")
    parser.add_argument("--plain", action="store_true", help="without transactions, groups and write-ahead logs")
    parser.add_argument("--directory", help="for histories and logs; it must not be there")
    parser.add_argument("--keep", action="store_true", help="keep the histories of a good run too")
    parser.add_argument("--judge", type=Path, help="only check this history")
    parser.add_argument("--log-level", default="info", help="of the brokers")
    options = parser.parse_args()
    os.environ[LOG_LEVEL] = options.log_level
    if options.plain:
        os.environ[PLAIN] = "1"
    return options


def _one(directory: Path, shape: Shape, seconds: float, seed: int, only: Only) -> bool:
    result = run_siege(directory, shape, seconds, seed, only)
    print("\n" + result.verdict.text + "\n", flush=True)
    if result.exit_code != 0:
        print(f"the siege itself ended with {result.exit_code}", flush=True)
    if not result.ok:
        print(f"check it again with: python -m tests.processes.siege --judge {directory}", flush=True)
    return result.ok


if __name__ == "__main__":
    sys.exit(main())
