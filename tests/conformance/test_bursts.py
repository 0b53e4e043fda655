"""A burst larger than every limit of a broker, all of it in flight (librdkafka's test 0041).

It once deadlocked a cluster: requests that waited for followers filled the memory that the followers' fetches needed.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.conftest import LEADERS_MOVE, World

COUNT, SIZE_BYTES = 600, 500_000
TIMEOUT_S = 180.0

pytestmark = [
    pytest.mark.worlds(LEADERS_MOVE),
    pytest.mark.leaders_at_rest("a producer without idempotence doubles records when a leader moves"),
]


@pytest.mark.parametrize("durability", ["disk", "cache"])
def test_a_burst_of_a_producer_without_idempotence(world: World, durability: str) -> None:
    name = f"burst-{durability}-{os.urandom(3).hex()}"
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    config = {} if world.cluster is None else {"ottla.durability": durability}
    admin.create_topics([NewTopic(name, 1, world.replicas, config=config)])[name].result(60)
    outcomes: Counter[str] = Counter()

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        outcomes["delivered" if error is None else error.name()] += 1

    producer = Producer(
        {
            "bootstrap.servers": world.bootstrap,
            "acks": "all",
            "enable.idempotence": False,
            "max.in.flight.requests.per.connection": 1_000_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    value = bytes(SIZE_BYTES)
    for _ in range(COUNT):
        producer.produce(name, value, on_delivery=on_delivery)
    assert producer.flush(TIMEOUT_S) == 0, f"not within {TIMEOUT_S} s: {outcomes}"
    assert outcomes == {"delivered": COUNT}
    # A rejected request would have been sent again.
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": "nobody"})
    assert consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=30) == (0, COUNT)
    consumer.close()
    (partition,) = admin.list_topics(name, timeout=30).topics[name].partitions.values()
    assert len(partition.isrs) == world.replicas, "a replica left the ISR under load that was accepted"
