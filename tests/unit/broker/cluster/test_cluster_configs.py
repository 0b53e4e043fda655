"""Configurations set while brokers run, for all of them or for one (IncrementalAlterConfigs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.net.apis import ClientApi
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench

ALTER = ClientApi(44, "IncrementalAlterConfigs", (1, 1))
DESCRIBE = ClientApi(32, "DescribeConfigs", (4, 4))
BROKER = 4
SET, DELETE = 0, 1
OF_ONE, OF_ALL, STATIC, DEFAULT = 2, 3, 4, 5


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world)


def alter(bench: ClusterBench, at: int, name: str, operation: int, **configs: str | None) -> ErrorCode:
    entries = [
        {"name": key.replace("_", "."), "config_operation": operation, "value": value} for key, value in configs.items()
    ]
    body = {
        "resources": [{"resource_type": BROKER, "resource_name": name, "configs": entries}],
        "validate_only": False,
    }
    answer: Any = bench.run(bench.ask(at, ALTER, body))
    code: ErrorCode = answer.responses[0].error_code
    return code


def described(bench: ClusterBench, number: int, config: str) -> tuple[str, int]:
    body = {
        "resources": [{"resource_type": BROKER, "resource_name": str(number), "configuration_keys": [config]}],
        "include_synonyms": True,
        "include_documentation": False,
    }
    answer: Any = bench.run(bench.ask(number, DESCRIBE, body))
    (found,) = answer.results[0].configs
    return found.value, found.config_source


def test_a_setting_for_all_brokers_counts_at_every_one(bench: ClusterBench) -> None:
    assert alter(bench, 2, "", SET, num_partitions="5") is ErrorCode.none
    bench.until(lambda: all(bench.broker(number).config.num_partitions == 5 for number in bench.ids))
    assert [described(bench, number, "num.partitions") for number in bench.ids] == [("5", OF_ALL)] * 3
    assert alter(bench, 3, "", DELETE, num_partitions=None) is ErrorCode.none
    bench.until(lambda: all(bench.broker(number).config.num_partitions == 1 for number in bench.ids))
    assert described(bench, 1, "num.partitions") == ("1", DEFAULT)


def test_a_setting_for_one_broker_counts_there_and_before_that_of_all(bench: ClusterBench) -> None:
    assert alter(bench, 1, "", SET, num_partitions="5") is ErrorCode.none
    assert alter(bench, 2, "2", SET, num_partitions="7") is ErrorCode.none
    bench.until(lambda: [bench.broker(number).config.num_partitions for number in bench.ids] == [5, 7, 5])
    assert described(bench, 2, "num.partitions") == ("7", OF_ONE)
    assert described(bench, 1, "num.partitions") == ("5", OF_ALL)
    assert alter(bench, 2, "2", DELETE, num_partitions=None) is ErrorCode.none
    bench.until(lambda: bench.broker(2).config.num_partitions == 5)


def test_a_broker_answers_for_itself_alone(bench: ClusterBench) -> None:
    assert alter(bench, 1, "2", SET, num_partitions="7") is ErrorCode.invalid_request


@pytest.mark.parametrize("name", ["min_insync_replicas", "unclean_leader_election_enable"])
def test_what_brokers_decide_together_is_the_same_for_all(bench: ClusterBench, name: str) -> None:
    value = "1" if name.startswith("min") else "true"
    assert alter(bench, 1, "1", SET, **{name: value}) is ErrorCode.invalid_config
    assert alter(bench, 1, "", SET, **{name: value}) is ErrorCode.none


def test_defaults_of_topics_reach_their_logs_and_outlive_a_restart(bench: ClusterBench) -> None:
    bench.run(bench.create("orders"))
    bench.until_in_sync("orders")
    bench.run(bench.write("orders", [b"1"]))
    assert alter(bench, 1, "", SET, log_retention_ms="77000") is ErrorCode.none
    bench.until(
        lambda: all(bench.partition(number, "orders").log.config.retention_ms == 77_000 for number in bench.ids)
    )
    bench.kill(2)
    bench.boot(2)
    bench.until_in_sync("orders")
    assert bench.broker(2).context.dynamic_overrides == {"log.retention.ms": "77000"}
    assert bench.partition(2, "orders").log.config.retention_ms == 77_000


def test_a_lower_min_isr_for_all_lets_writes_go_on(bench: ClusterBench) -> None:
    bench.run(bench.create("orders"))
    bench.until_in_sync("orders")
    leader = bench.leader("orders")
    for number in bench.ids:
        if number != leader:
            bench.kill(number)
    bench.until_in_sync("orders", count=1)
    assert alter(bench, leader, "", SET, min_insync_replicas="1") is ErrorCode.none
    bench.run(bench.write("orders", [b"1"]))
    assert bench.run(bench.read("orders", 1)) == [b"1"]
