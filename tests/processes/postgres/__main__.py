"""Repeatedly destroys a PostgreSQL server under pgbench with its disk and restores it from the log.

python -m tests.processes.postgres --rounds 20 --seed 1
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random, SystemRandom

from tests.processes.postgres.rounds import Rounds
from tests.processes.postgres.world import World


def main() -> int:
    options = _options()
    directory = Path(options.directory or tempfile.mkdtemp(prefix="ottla-postgres-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed} (repeat with --seed {options.seed}), {options.durability}; in {directory}", flush=True)
    with World(directory, options.durability) as world:
        rounds = Rounds(world, Random(options.seed), lambda sentence: print(sentence, flush=True))
        rounds.prepare()
        try:
            for number in range(1, options.rounds + 1):
                if not rounds.run(number):
                    break
        finally:
            rounds.settle()
    outcome = rounds.outcome
    print(
        f"{outcome.rounds} rounds, {outcome.transactions} transactions seen committed, deaths beside the server's: "
        f"{outcome.deaths}; {len(outcome.findings)} findings",
        flush=True,
    )
    if not outcome.findings and not options.keep:
        shutil.rmtree(directory)
    return 1 if outcome.findings else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.postgres", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--seed", type=int, default=int(os.environ.get("OTTLA_SEED") or SystemRandom().randrange(1 << 32))
    )
    parser.add_argument("--durability", default="disk", choices=("disk", "cache", "memory"))
    parser.add_argument("--directory", help="for data and logs")
    parser.add_argument("--keep", action="store_true", help="keep the files of a good run too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
