"""python -m tests.connect.sqlite --transactions 2000 --seed 7"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.connect.sqlite.campaign import run


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Kills writers, the connector and brokers; then restores and compares."
    )
    parser.add_argument("--transactions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--rounds", type=int, default=1, help="with the seeds that follow")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--points", type=int, default=50, help="moments to restore")
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.rounds):
        with tempfile.TemporaryDirectory(prefix="ottla-sqlite-") as directory:
            _, summary = run(
                Path(directory), seed, options.transactions, brokers=options.brokers, points=options.points
            )
        print(summary, flush=True)


if __name__ == "__main__":
    main()
