"""Runs groups of real clients under random faults on three brokers of Ottla or of Apache Kafka.

python -m tests.processes.groups --minutes 10 --seed 1
python -m tests.processes.groups --judge DIRECTORY
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random, SystemRandom

from tests.processes.groups.checker import check
from tests.processes.groups.group import KINDS, MIXED_KINDS, OWN_KINDS, Kind, why_no_java
from tests.processes.groups.history import read_history
from tests.processes.groups.rounds import Judged, Round, aloud, run_round
from tests.processes.groups.schedules import Chaos, short
from tests.processes.groups.summary import render
from tests.processes.groups.worlds import KafkaWorld, OttlaWorld, World

SESSION_MS = 4000
ROUND_S = 60.0
GROUPS_A_ROUND = 2


def main() -> int:
    options = _options()
    if options.judge is not None:
        findings = check(read_history(options.judge), SESSION_MS * 1000)
        print(findings)
        return 0 if findings.ok else 1
    directory = Path(options.directory or tempfile.mkdtemp(prefix="ottla-groups-"))
    print(f"seed {options.seed} (repeat with --seed {options.seed}); histories in {directory}", flush=True)
    world: World
    if options.kafka:
        world = KafkaWorld(directory / "brokers", SESSION_MS, options.kafka)
    else:
        world = OttlaWorld(directory / "brokers", SESSION_MS)
    judged: list[Judged] = []
    wrong: list[str] = []
    try:
        _rounds(world, directory, options, judged)
    finally:
        wrong = world.close()
        print("\n" + render(judged) + "\n", flush=True)
    for sentence in wrong:
        print(sentence)
    is_good = not wrong and all(one.findings.ok for one in judged)
    if is_good and not options.keep:
        shutil.rmtree(directory)
    return 0 if is_good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.groups", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument(
        "--seed", type=int, default=int(os.environ.get("OTTLA_SEED") or SystemRandom().randrange(1 << 32))
    )
    parser.add_argument("--only", help="a library or a protocol, or both as in 'java consumer'")
    parser.add_argument("--short", action="store_true", help="the schedule of the tests, once for each kind of group")
    parser.add_argument("--kafka", type=Path, help="a folder with the jars of Apache Kafka's broker: run against that")
    parser.add_argument("--directory", help="for histories and logs")
    parser.add_argument("--keep", action="store_true", help="keep the histories of a good run too")
    parser.add_argument("--judge", type=Path, help="only check the history of this group")
    return parser.parse_args()


def _rounds(world: World, directory: Path, options: argparse.Namespace, judged: list[Judged]) -> None:
    chance = Random(options.seed)
    say = aloud()
    deadline_s = time.monotonic() + options.minutes * 60
    waiting: list[Kind] = []
    number = 0
    while (options.short and (waiting or not number)) or (not options.short and time.monotonic() < deadline_s):
        if not waiting:
            waiting = _kinds(options.only)
            chance.shuffle(waiting)
        kinds, waiting = waiting[:GROUPS_A_ROUND], waiting[GROUPS_A_ROUND:]
        number += 1
        own = directory / f"round-{number}"
        say(f"round {number}: {', '.join(map(str, kinds))}")
        round_ = Round(world, own, kinds, SESSION_MS, chance)
        schedule = short if options.short else lambda one: Chaos(one, ROUND_S, say).run()
        for one in run_round(round_, schedule):
            judged.append(one)
            if not one.findings.ok:
                say(f"{one.kind} in {one.directory}:\n{one.findings}")


def _kinds(only: str | None) -> list[Kind]:
    words = (only or "").split()
    every = (*KINDS, *OWN_KINDS, *MIXED_KINDS)
    found = [kind for kind in every if all(word in (kind.client, kind.protocol) for word in words)]
    if missing := why_no_java():
        print(f"left out: {missing}")
        found = [kind for kind in found if "java" not in kind.client]
    assert found, f"there is no group of the kind {only}"
    return found


if __name__ == "__main__":
    sys.exit(main())
