"""Prints the first seed that detects each broken variant, and the checker that reports it.

`python -m tests.simulation.broken` tries the seeds from 0 on; with a part of a name, only those variants.
"""

from __future__ import annotations

import sys
from time import perf_counter

from tests.simulation.broken import disks, groups, long_logs, replication, transactions, writers
from tests.simulation.broken.variants import SEEDS_MAX, catch

VARIANTS = (
    *(*replication.VARIANTS, *disks.VARIANTS, *long_logs.VARIANTS),
    *(*groups.VARIANTS, *transactions.VARIANTS, *writers.VARIANTS),
)


def main(part: str) -> int:
    missed = 0
    width = max(len(variant.name) for variant in VARIANTS)
    print(f"{'variant':<{width}}  {'seed':>4}  {'real':>7}  checker")
    for variant in VARIANTS:
        if part not in variant.name:
            continue
        begin_s = perf_counter()
        caught = catch(variant, range(SEEDS_MAX))
        missed += caught is None
        seed, checker = ("none", "-") if caught is None else (caught.seed, caught.failed.checker)
        print(f"{variant.name:<{width}}  {seed:>4}  {perf_counter() - begin_s:>5.1f} s  {checker}", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
