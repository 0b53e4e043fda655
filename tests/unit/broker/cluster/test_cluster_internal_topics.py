"""Clients cannot write to `__consumer_offsets`, however it is configured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.errors import ClientError
from ottla.client.producer.producer import Producer
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

PROPERTIES = {"offsets.topic.num.partitions": "1"}


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world, properties=PROPERTIES)


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_producer_is_refused(bench: ClusterBench, policy: str) -> None:
    """Batches of a topic that is not compacted take a shorter path to the log."""

    async def produce() -> None:
        found = await bench.broker(1).groups.coordinator_of("g")
        assert hasattr(found, "port"), found
        async with Admin(bench.bootstrap) as admin:
            await admin.alter_configs(OFFSETS_TOPIC, set_values={"cleanup.policy": policy})
        async with Producer(bench.bootstrap, linger_ms=0) as producer:
            with pytest.raises(ClientError, match="internal topic"):
                await producer.send(OFFSETS_TOPIC, b"forged", key=b"k", partition=0)

    bench.run(produce())
    assert bench.partition(bench.leader(OFFSETS_TOPIC), OFFSETS_TOPIC).log.end_offset == 0
