"""The metadata that a client caches, and a client that found no broker at first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

import pytest

from ottla.client.brokers import Brokers
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.fetcher import FetchSettings
from ottla.client.consumer.subscription import Subscription
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import NoBrokerError
from ottla.client.metadata import NO_LEADER, ClusterView, Metadata, PartitionView, TopicView, newest
from ottla.client.producer.producer import Producer
from ottla.net.connection import Address
from tests.support.client_scripted_broker import TOPIC, ScriptedBroker

ID = UUID(int=1)
NODES = {number: Address("127.0.0.1", 9000 + number) for number in (1, 2, 3)}


def view(epochs: Mapping[int, tuple[int, int]], topic_id: UUID | None = ID) -> ClusterView:
    """`epochs` has (leader, leader epoch) of each partition."""
    partitions = {
        index: PartitionView(index, leader, epoch, (1, 2, 3), (1, 2, 3)) for index, (leader, epoch) in epochs.items()
    }
    led = tuple(index for index, (leader, _) in epochs.items() if leader != NO_LEADER)
    return ClusterView("c", 1, NODES, {"t": TopicView("t", topic_id, partitions, led or tuple(partitions))})


def leaders(found: ClusterView) -> dict[int, tuple[int, int]]:
    return {index: (each.leader, each.leader_epoch) for index, each in found.topics["t"].partitions.items()}


def test_a_broker_that_lags_behind_does_not_bring_back_an_old_leader() -> None:
    found = newest(view({0: (2, 5), 1: (1, 3)}), view({0: (1, 4), 1: (3, 4)}))
    assert leaders(found) == {0: (2, 5), 1: (3, 4)}


def test_the_same_epoch_is_taken_as_it_is_told() -> None:
    found = newest(view({0: (2, 5)}), view({0: (NO_LEADER, 5)}))
    assert leaders(found) == {0: (NO_LEADER, 5)}


def test_a_topic_that_was_created_again_begins_anew() -> None:
    found = newest(view({0: (2, 5)}), view({0: (1, 0)}, UUID(int=2)))
    assert leaders(found) == {0: (1, 0)}


@pytest.mark.parametrize("topic_id", [None, ID])
def test_brokers_that_tell_no_epoch_or_id_are_believed(topic_id: UUID | None) -> None:
    found = newest(view({0: (2, 5)}, topic_id), view({0: (1, -1)}, topic_id))
    assert leaders(found) == {0: (1, -1)}


def test_who_can_be_written_to_follows_from_what_is_kept() -> None:
    found = newest(view({0: (2, 5), 1: (1, 1)}), view({0: (NO_LEADER, 4), 1: (1, 1)}))
    assert found.topics["t"].writable == (0, 1)


async def test_partitions_are_discovered_in_one_order() -> None:
    brokers = Brokers("127.0.0.1:1", client_id="t", connect_timeout_ms=1, request_timeout_ms=1)
    metadata = Metadata(brokers, allow_auto_create=False)
    names = [f"topic-{number}" for number in range(20)]
    topics = {name: TopicView(name, None, {0: PartitionView(0, 1, 0, (1,), (1,))}, (0,)) for name in sorted(names)}
    metadata.view = ClusterView("c", 1, NODES, topics)
    subscription = Subscription(metadata, FetchSettings(1, 1, 1000, 1000, 1000, 0, 0, 1000))
    subscription.subscribe(reversed(names))
    assert list(subscription.readers) == [TopicPartition(name, 0) for name in sorted(names)]
    await brokers.close()


@pytest.mark.parametrize("kind", [Producer, Consumer])
async def test_a_client_that_found_nobody_can_be_started_again(kind: type[Producer | Consumer]) -> None:
    broker = ScriptedBroker()
    async with broker:
        pass  # its port is free now, and it listens there again below
    client = kind(broker.bootstrap, connect_timeout_ms=500)
    with pytest.raises(NoBrokerError):
        await client.start()
    async with broker:
        async with asyncio.timeout(30):
            await client.start()
            if isinstance(client, Producer):
                await client.send(TOPIC, b"1")
                assert broker.records == [b"1"]
            else:
                assert await client.partitions(TOPIC) == [TopicPartition(TOPIC, 0)]
        await client.close()
