"""Where a consumer reads: from the leader or the preferred follower, and when it returns to the leader."""

from __future__ import annotations

import pytest

from ottla.client.brokers import Brokers
from ottla.client.consumer.read_replicas import HOLD_OFF_S, ReadReplicas
from ottla.client.consumer.types import TopicPartition
from ottla.client.metadata import ClusterView, Metadata, PartitionView, TopicView
from ottla.net.connection import Address

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
LEADER, FOLLOWER, STRANGER = 1, 2, 9
LEASE_S = 300.0


class Bench:
    def __init__(self) -> None:
        brokers = Brokers("127.0.0.1:1", client_id="t", connect_timeout_ms=1, request_timeout_ms=1)
        self.metadata = Metadata(brokers, allow_auto_create=False)
        self.now_s = 1000.0
        self.show(LEADER, FOLLOWER)
        self.replicas = ReadReplicas(self.metadata, "rack", LEASE_S, lambda: self.now_s)

    def show(self, *nodes: int) -> None:
        partitions = {index: PartitionView(index, LEADER, 0, (1, 2), (1, 2)) for index in (0, 1)}
        addresses = {node: Address("127.0.0.1", node) for node in nodes}
        self.metadata.view = ClusterView("c", 1, addresses, {"t": TopicView("t", None, partitions, (0, 1))})


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_leader_until_it_names_another(bench: Bench) -> None:
    assert bench.replicas.broker_for(AT) == LEADER
    bench.replicas.use(AT, FOLLOWER)
    assert bench.replicas.broker_for(AT) == FOLLOWER
    assert bench.replicas.is_follower(AT, FOLLOWER)
    assert bench.replicas.broker_for(OTHER) == LEADER


def test_the_leader_is_asked_again_after_a_while(bench: Bench) -> None:
    bench.replicas.use(AT, FOLLOWER)
    bench.now_s += LEASE_S - 1
    assert not bench.replicas.expire()
    bench.now_s += 1
    assert bench.replicas.expire()
    assert bench.replicas.broker_for(AT) == LEADER
    assert bench.replicas.rack_for([AT]) == "rack"


@pytest.mark.parametrize("way", ["it refused", "it did not answer"])
def test_back_to_the_leader_which_serves_for_a_while(bench: Bench, way: str) -> None:
    bench.replicas.use(AT, FOLLOWER)
    if way == "it refused":
        bench.replicas.leave(AT)
    else:
        bench.replicas.leave_broker(FOLLOWER)
    assert bench.replicas.broker_for(AT) == LEADER
    assert bench.replicas.rack_for([OTHER, AT]) == "", "else the leader would name the same one again"
    assert bench.replicas.rack_for([OTHER]) == "rack"
    bench.now_s += HOLD_OFF_S
    assert bench.replicas.rack_for([OTHER, AT]) == "rack"


def test_a_broker_that_is_gone_from_the_metadata(bench: Bench) -> None:
    bench.replicas.use(AT, FOLLOWER)
    bench.show(LEADER)
    assert bench.replicas.expire()
    assert bench.replicas.broker_for(AT) == LEADER


def test_a_broker_that_the_metadata_do_not_have_is_not_used(bench: Bench) -> None:
    bench.replicas.use(AT, STRANGER)
    assert bench.replicas.broker_for(AT) == LEADER
    assert bench.replicas.rack_for([AT]) == ""


def test_others_stay_when_one_broker_does_not_answer(bench: Bench) -> None:
    bench.replicas.use(AT, FOLLOWER)
    bench.replicas.leave_broker(STRANGER)
    assert bench.replicas.broker_for(AT) == FOLLOWER
