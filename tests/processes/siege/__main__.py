"""Runs sieges of clusters of real processes, or checks the history of an earlier siege again.

python -m tests.processes.siege --minutes 60
python -m tests.processes.siege --judge DIRECTORY
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom

from tests.conformance.coordination.servers import why_no_etcd, why_no_zookeeper
from tests.processes.siege.campaign import judge, lay_siege_aloud
from tests.processes.siege.cluster import MEMORY, POWER, Shape
from tests.processes.siege.node import LOG_LEVEL

SHAPES = (
    Shape(3, "sqlite"),
    Shape(3, "etcd"),
    Shape(3, "zookeeper"),
    Shape(5, "sqlite"),
    Shape(5, "etcd"),
    Shape(5, "zookeeper"),
    Shape(3, "sqlite", MEMORY),
    Shape(3, "etcd", MEMORY),
    Shape(3, "zookeeper", MEMORY),
    Shape(3, "sqlite", POWER),
    Shape(3, "etcd", POWER),
    Shape(3, "zookeeper", POWER),
    Shape(5, "sqlite", POWER),
    Shape(5, "etcd", POWER),
)
"""All combinations with three brokers, and the most common ones with five. In a third, all machines lose the power."""


def main() -> int:
    options = _options()
    if options.judge is not None:
        verdict = judge(options.judge, str(options.judge))
        print(verdict.text)
        return 0 if verdict.findings.ok else 1
    directory = Path(options.directory or tempfile.mkdtemp(prefix="ottla-siege-"))
    shapes = _shapes(options)
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
    parser.add_argument("--directory", help="for histories and logs; it must not be there")
    parser.add_argument("--keep", action="store_true", help="keep the histories of a good run too")
    parser.add_argument("--judge", type=Path, help="only check this history")
    parser.add_argument("--log-level", default="info", help="of the brokers")
    options = parser.parse_args()
    os.environ[LOG_LEVEL] = options.log_level
    return options


def _shapes(options: argparse.Namespace) -> list[Shape]:
    if options.shape:
        fields = (text.split(",") for text in options.shape)
        return [Shape(int(brokers), *rest) for brokers, *rest in fields]
    missing = {"etcd": why_no_etcd(), "zookeeper": why_no_zookeeper()}
    for sentence in filter(None, missing.values()):
        print(f"left out: {sentence}")
    return [shape for shape in SHAPES if not missing.get(shape.store)]


def _one(directory: Path, shape: Shape, seconds: float, seed: int, only: list[str] | None) -> bool:
    """Runs one siege in a process with its own network namespace."""
    process = multiprocessing.get_context("spawn").Process(
        target=lay_siege_aloud, args=(directory, shape, seconds, seed, only)
    )
    began_s = time.monotonic()
    process.start()
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    process.join()
    minutes = (time.monotonic() - began_s) / 60
    verdict = judge(directory, f"{shape}: {minutes:.1f} minutes, seed {seed}")
    print("\n" + verdict.text + "\n", flush=True)
    if process.exitcode != 0:
        print(f"the siege itself ended with {process.exitcode}", flush=True)
    is_good = verdict.findings.ok and process.exitcode == 0
    if not is_good:
        print(f"check it again with: python -m tests.processes.siege --judge {directory}", flush=True)
    return is_good


if __name__ == "__main__":
    sys.exit(main())
