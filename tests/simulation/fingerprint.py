"""Prints a digest of the history of each seed: two runs of one seed, in any processes, must print the same.

`python -m tests.simulation.fingerprint --seeds 5 --from 0 > before.txt`
`python -m tests.simulation.fingerprint --seeds 5 --from 0 --expect before.txt`

A digest covers the whole trace (every turn of every process, every piece that arrives anywhere with its content and its
time), the number of events, the branches reached, the faults that were injected, and the outcome. A change that makes
the simulation faster and nothing else leaves all of them as they were. With `--expect`, the exit code is 1 if a line
differs.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from hashlib import blake2b
from pathlib import Path

from ottla import reach
from ottla.sim.world import SimWorld
from tests.simulation.campaign.outcomes import Kind, Run, failure_of
from tests.simulation.log_world import LogWorld


def fingerprint(kind: Kind, seed: int) -> str:
    """Runs a seed and returns the digest of its history, in hexadecimal."""
    reach.reset()
    run = kind.new_run(seed)
    if isinstance(run.world, SimWorld):
        run.world.trace.start()
    outcome = "passed"
    try:
        run.execute()
        run.check()
    except Exception as error:
        failed = failure_of(error)
        outcome = f"{failed.checker}: {failed.text}"
    parts = [
        outcome,
        *_of_world(run),
        f"{run.world.now_s!r} s, {run.acknowledged} acknowledged, {run.leader_changes} leader changes",
        repr(sorted(run.fault_counts.items())),
        repr(sorted(reach.counts().items())),
    ]
    return blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()


def _of_world(run: Run) -> list[str]:
    world = run.world
    if isinstance(world, SimWorld):
        return [world.trace.digest, f"{world.event_count} events"]
    assert isinstance(world, LogWorld)
    content = blake2b(digest_size=16)
    for model in world.models:
        for batch in model.batches:
            content.update(batch)
    return [content.hexdigest(), *(f"{each.acknowledged_end} {each.durable_start}" for each in world.models)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.fingerprint", description="digests of histories")
    parser.add_argument("--kind", choices=[kind.value for kind in Kind], action="append", help="all by default")
    parser.add_argument("--seeds", type=int, default=3, help="how many, of each kind")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--expect", type=Path, help="output of an earlier run; lines that differ are printed")
    options = parser.parse_args()
    logging.disable()
    gc.freeze()
    expected = set(options.expect.read_text().splitlines()) if options.expect is not None else None
    differing = 0
    for kind in [Kind(name) for name in options.kind] if options.kind else list(Kind):
        for seed in range(options.first, options.first + options.seeds):
            line = f"{kind.value} {seed} {fingerprint(kind, seed)}"
            is_expected = expected is None or line in expected
            differing += not is_expected
            print(line if is_expected else f"{line} DIFFERS", flush=True)
            gc.collect()
    return min(differing, 1)


if __name__ == "__main__":
    sys.exit(main())
