"""Elections without in-sync replicas: eligible replicas may lead, and any other only if an operator says so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from ottla.broker.cluster.roles import OFFSETS_OF_AN_EPOCH
from ottla.broker.partition.layout import Layout
from ottla.client.admin.admin import Admin
from ottla.net.apis import ClientApi
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

FIRST = [b"1", b"2", b"3"]
SECOND = [b"4", b"5"]
ELECT = ClientApi(43, "ElectLeaders", (2, 2))
UNCLEAN = 1
IN_VAIN_S = 20


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world, brokers=4)


class Fallen:
    """All three replicas of a topic are down, one after the other: the first without the last records."""

    def __init__(self, bench: ClusterBench, *, unclean: str = "false") -> None:
        self.bench = bench
        bench.run(bench.create("orders", min_insync_replicas="2", unclean_leader_election_enable=unclean))
        bench.until_in_sync("orders")
        self.leader = bench.leader("orders")
        replicas = bench.partition(self.leader, "orders").placement.replicas
        self.behind, self.eligible = (number for number in replicas if number != self.leader)
        (self.stranger,) = set(bench.ids) - set(replicas)
        bench.run(bench.write("orders", FIRST))
        bench.kill(self.behind)
        bench.until_in_sync("orders", count=2)
        bench.run(bench.write("orders", SECOND))
        bench.kill(self.eligible)
        bench.until_in_sync("orders", count=1)
        bench.until(lambda: self.layout().eligible == (self.eligible,))
        bench.kill(self.leader)
        bench.until(lambda: self.layout().leader == -1)

    def layout(self) -> Layout:
        topic = self.bench.broker(self.stranger).topics.get("orders")
        assert topic is not None
        return topic.layouts[0]

    def check_all_have(self, values: list[bytes]) -> None:
        bench = self.bench
        bench.until_in_sync("orders")
        assert bench.run(bench.read("orders", len(values))) == values
        replicas = (self.leader, self.behind, self.eligible)
        bench.until(lambda: {bench.partition(number, "orders").high_watermark for number in replicas} == {len(values)})
        assert {bench.partition(number, "orders").log.end_offset for number in replicas} == {len(values)}


def test_an_eligible_replica_leads_and_has_everything(bench: ClusterBench) -> None:
    fallen = Fallen(bench)
    bench.boot(fallen.behind)
    bench.world.run_for(IN_VAIN_S)
    assert fallen.layout().leader == -1, "it lacks what was acknowledged"
    bench.boot(fallen.eligible)
    bench.until(lambda: fallen.layout().leader == fallen.eligible)
    bench.run(bench.write("orders", [b"6"]))
    bench.boot(fallen.leader)
    fallen.check_all_have([*FIRST, *SECOND, b"6"])


def test_who_was_in_sync_leads_before_who_is_eligible(bench: ClusterBench) -> None:
    fallen = Fallen(bench)
    bench.boot(fallen.leader)
    bench.until(lambda: fallen.layout().leader == fallen.leader)
    bench.boot(fallen.eligible)
    bench.boot(fallen.behind)
    fallen.check_all_have([*FIRST, *SECOND])


def test_nothing_new_is_seen_while_too_few_are_in_sync(bench: ClusterBench) -> None:
    fallen = Fallen(bench)
    bench.boot(fallen.leader)
    bench.until(lambda: bench.leader("orders") == fallen.leader)
    leading = bench.partition(fallen.leader, "orders").leading
    assert leading is not None
    assert not leading.has_enough_in_sync
    bench.boot(fallen.eligible)
    bench.until_in_sync("orders", count=2)
    bench.run(bench.write("orders", [b"6"]))
    bench.boot(fallen.behind)
    fallen.check_all_have([*FIRST, *SECOND, b"6"])


def test_where_a_topic_allows_it_any_replica_leads_and_the_others_follow_it(bench: ClusterBench) -> None:
    fallen = Fallen(bench, unclean="true")
    bench.boot(fallen.behind)
    bench.until(lambda: fallen.layout().leader == fallen.behind)
    bench.boot(fallen.eligible)
    bench.until_in_sync("orders", count=2)
    bench.run(bench.write("orders", [b"other"]))
    bench.boot(fallen.leader)
    fallen.check_all_have([*FIRST, b"other"])


@pytest.mark.parametrize("way", ["by request", "by configuration"])
def test_somebody_says_that_what_is_lost_is_lost(bench: ClusterBench, way: str) -> None:
    fallen = Fallen(bench)
    bench.boot(fallen.behind)
    bench.world.run_for(IN_VAIN_S)
    assert fallen.layout().leader == -1
    if way == "by request":
        body = {
            "election_type": UNCLEAN,
            "topic_partitions": [{"topic": "orders", "partitions": [0]}],
            "timeout": timedelta(seconds=10),
        }
        controller = bench.broker(fallen.stranger).metadata.controller_id
        answer = bench.run(bench.ask(controller, ELECT, body))
        assert answer.replica_election_results[0].partition_result[0].error_code is ErrorCode.none
    else:
        bench.run(allow_unclean(bench))
    bench.until(lambda: fallen.layout().leader == fallen.behind)
    bench.boot(fallen.eligible)
    bench.boot(fallen.leader)
    fallen.check_all_have(FIRST)


async def allow_unclean(bench: ClusterBench) -> None:
    async with Admin(bench.bootstrap) as admin:
        await admin.alter_configs("orders", set_values={"unclean.leader.election.enable": "true"})


def test_memory_begins_anew_though_a_replica_that_fell_behind_has_something(bench: ClusterBench) -> None:
    """The last records were acknowledged by two lost replicas; the third must not reuse their offsets."""
    bench.run(bench.create("orders", ottla_durability="memory", min_insync_replicas="2"))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", FIRST))
    leader = bench.leader("orders")
    behind, other = (number for number in bench.partition(leader, "orders").placement.replicas if number != leader)
    alone = [bench.name(number) for number in bench.ids if number != behind]
    fault = bench.world.network.cut([bench.name(behind)], alone)
    bench.run(bench.write("orders", SECOND))
    assert len(bench.isr("orders")) == 2
    assert bench.partition(behind, "orders").log.end_offset == len(FIRST)
    bench.kill(leader)
    bench.kill(other)
    fault.heal()
    bench.boot(leader)
    bench.kill(leader)
    bench.world.run_for(5)  # until its lease has expired, too
    bench.boot(other)
    bench.until(lambda: bench.leader("orders") == behind)
    bench.boot(leader)
    bench.until_in_sync("orders")
    epoch = bench.partition(bench.leader("orders"), "orders").leader_epoch
    assert bench.partition(bench.leader("orders"), "orders").log.start_offset >= OFFSETS_OF_AN_EPOCH
    bench.run(bench.write("orders", [b"6"]))
    assert bench.run(bench.read("orders", 1)) == [b"6"]
    assert bench.partition(bench.leader("orders"), "orders").log.end_offset <= epoch * OFFSETS_OF_AN_EPOCH + 1


def test_an_empty_memory_log_that_lost_nothing_stays_where_it_is(bench: ClusterBench) -> None:
    bench.run(bench.create("orders", ottla_durability="memory"))
    bench.until_in_sync("orders")
    before = bench.leader("orders")
    bench.kill(before)
    bench.until(lambda: bench.leader("orders") not in (before, -1))
    bench.run(bench.write("orders", FIRST))
    assert bench.partition(bench.leader("orders"), "orders").log.start_offset == 0
    assert bench.run(bench.read("orders", 3)) == FIRST
