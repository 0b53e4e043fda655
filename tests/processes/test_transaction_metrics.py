"""The metrics of three real brokers for a real client's transactions: complete in total, each counted once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka import Producer

from ottla.client import Admin
from ottla.testing.cluster_processes import ClusterProcesses
from tests.processes.test_metrics import WAIT_S, pages, total, until
from tests.processes.traffic import create_replicated

CONFIG = {"ottla.metrics.port": "0", "transaction.state.log.num.partitions": "6"}
PARTITIONS = 3


def write(producer: Producer) -> None:
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("orders", b"x", partition=partition)
    assert producer.flush(WAIT_S) == 0


def test_transactions_of_a_cluster(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 3, config=CONFIG) as cluster:
        create_replicated(cluster.bootstrap, "orders", PARTITIONS, 3)
        names = ["first", "second", "third"]
        producers = {
            name: Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "log_level": 2})
            for name in names
        }
        for producer in producers.values():
            producer.init_transactions(WAIT_S)
            write(producer)
        assert total(cluster, "ottla_transactions", state="Ongoing") == 3
        assert any(page.value("ottla_oldest_transaction_seconds") > 0 for page in pages(cluster))
        lag = "ottla_partition_last_stable_offset_lag"
        assert total(cluster, lag, topic="orders") == len(names) * PARTITIONS, "of leaders alone"
        assert total(cluster, "ottla_hanging_transactions") == 0

        async def fence() -> None:
            async with Admin(cluster.bootstrap) as admin:
                await admin.fence_producer("third")

        producers["first"].commit_transaction(WAIT_S)
        producers["second"].abort_transaction(WAIT_S)
        asyncio.run(fence())
        until(lambda: total(cluster, lag, topic="orders") == 0, "all of them are over")
        until(
            lambda: total(cluster, "ottla_transactions", state="CompleteCommit") == 1, "and their coordinators know it"
        )
        ended = "ottla_transactions_ended_total"
        assert total(cluster, ended) == 3
        assert total(cluster, ended, outcome="commit", cause="producer") == 1
        assert total(cluster, ended, outcome="abort", cause="producer") == 1
        assert total(cluster, ended, outcome="abort", cause="new_producer") == 1
        assert "Traceback" not in cluster.log()
