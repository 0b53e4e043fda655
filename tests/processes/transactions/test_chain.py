"""Exactly once from topic to topic to topic: workers of librdkafka and of Java consume, transform and produce, some
transactions are aborted on purpose, workers and brokers are killed and paused, leaders and coordinators move. The
output equals the input, each record once and in the order of its key; a read_committed consumer that runs all the time
sees exactly these records.

`python -m tests.processes.transactions` does the same for longer, with random faults.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from tests.processes.transactions.chain import STAGES, Chain, why_no_java
from tests.processes.transactions.checker import Outcome, check
from tests.processes.transactions.cluster import ChainCluster
from tests.processes.transactions.schedules import short

SESSION_MS = 3000


def test_the_output_equals_the_input(tmp_path: Path, seed: int) -> None:
    chance = Random(f"{seed} transactions")
    clients = ("confluent-kafka", "java" if why_no_java() is None else "ottla")
    cluster = ChainCluster(tmp_path / "brokers", SESSION_MS, chance)
    try:
        chain = Chain("chain", cluster.bootstrap, tmp_path / "chain", "eager", chance)
        try:
            for stage, _ in enumerate(STAGES):
                for client in clients:
                    chain.add_worker(stage, client)
            short(chain, cluster)
            history = chain.finish()
        finally:
            chain.abandon()
    finally:
        wrong = cluster.close()
    findings = check(history)
    assert findings.ok, f"{findings}\nin {chain.directory}"
    assert wrong == []
    outcomes = Counter(each.outcome for stage in history.transactions.values() for each in stage.values())
    print(f"{len(history.source)} records, {chain.starts} workers, transactions: {dict(outcomes)}")
    assert outcomes[Outcome.ABORTED], outcomes
    assert outcomes[Outcome.COMMITTED], outcomes
