"""Runs chains of transactional workers under random faults on three brokers of Ottla or of Apache Kafka.

python -m tests.processes.transactions --minutes 10 --seed 1
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom

from tests.processes.transactions.chain import CLIENTS, PROTOCOLS, STAGES, Chain, why_no_java
from tests.processes.transactions.checker import ChainHistory, check
from tests.processes.transactions.cluster import ChainCluster
from tests.processes.transactions.schedules import Chaos

SESSION_MS = 3000
ROUND_S = 60.0
WORKERS_A_STAGE = 2


def main() -> int:
    options = _options()
    directory = Path(options.directory or tempfile.mkdtemp(prefix="ottla-transactions-"))
    print(f"seed {options.seed} (repeat with --seed {options.seed}); histories in {directory}", flush=True)
    chance = Random(options.seed)
    cluster = ChainCluster(directory / "brokers", SESSION_MS, chance, options.kafka)
    is_good = True
    deadline_s = time.monotonic() + options.minutes * 60
    try:
        for number in itertools.count(1):
            if number > 1 and time.monotonic() >= deadline_s:
                break
            seconds = min(ROUND_S, max(deadline_s - time.monotonic(), 10))
            is_good &= _round(cluster, directory / f"round-{number}", options, chance, seconds)
    finally:
        for sentence in cluster.close():
            print(sentence)
            is_good = False
    if is_good and not options.keep:
        shutil.rmtree(directory)
    return 0 if is_good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.processes.transactions", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument(
        "--seed", type=int, default=int(os.environ.get("OTTLA_SEED") or SystemRandom().randrange(1 << 32))
    )
    parser.add_argument("--only", help="a client or a protocol, or both as in 'java consumer'")
    parser.add_argument("--kafka", type=Path, help="a folder with the jars of Apache Kafka's broker: run against that")
    parser.add_argument("--directory", help="for histories and logs")
    parser.add_argument("--keep", action="store_true", help="keep the histories of a good run too")
    return parser.parse_args()


def _round(cluster: ChainCluster, directory: Path, options: argparse.Namespace, chance: Random, seconds: float) -> bool:
    words = (options.only or "").split()
    protocol = chance.choice([each for each in PROTOCOLS if each in words] or PROTOCOLS)
    clients = [each for each in CLIENTS if each in words] or chance.sample(CLIENTS, WORKERS_A_STAGE)
    if why_no_java() is not None:
        clients = [each for each in clients if each != "java"] or ["confluent-kafka"]
    chain = Chain(directory.name, cluster.bootstrap, directory, protocol, chance)
    try:
        for stage, _ in enumerate(STAGES):
            for number in range(WORKERS_A_STAGE):
                chain.add_worker(stage, clients[number % len(clients)])
        chaos = Chaos(chain, cluster, chance, lambda sentence: print(f"    {sentence}", flush=True))
        chaos.run(seconds)
        history = chain.finish()
        findings = check(history)
        print(f"{directory.name}: {protocol}, {'+'.join(clients)}; {chain.starts} workers; {dict(chaos.done)}")
        print(f"    {figures(history)}; {chain.uncommitted()} records of aborted transactions\n{findings}", flush=True)
        return findings.ok
    finally:
        chain.abandon()


def figures(history: ChainHistory) -> str:
    outcomes = Counter(each.outcome.value for stage in history.transactions.values() for each in stage.values())
    return f"{len(history.source)} records, transactions: {dict(outcomes)}"


if __name__ == "__main__":
    sys.exit(main())
