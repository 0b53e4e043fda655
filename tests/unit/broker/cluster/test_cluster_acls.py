"""ACLs of a cluster: stored once, and followed by the authorizer of every broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.coordination.port import Put
from ottla.net.apis import ClientApi
from ottla.protocol.model.acl import Operation, ResourceType
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.world import SimWorld
from tests.support.acls import ALICE, AUTHORIZER, acl, creation, filter_values
from tests.support.sim_cluster import ClusterBench

CREATE = ClientApi(30, "CreateAcls", (3, 3))
DELETE = ClientApi(31, "DeleteAcls", (3, 3))
READ = acl(Operation.READ, ResourceType.TOPIC, "orders")
MANY = [acl(Operation.READ, ResourceType.TOPIC, f"t-{number}") for number in range(300)]


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world, properties=AUTHORIZER)


def create(bench: ClusterBench, at: int, *bindings: AclBinding) -> set[ErrorCode]:
    answer: Any = bench.run(bench.ask(at, CREATE, {"creations": [creation(binding) for binding in bindings]}))
    return {result.error_code for result in answer.results}


def delete(bench: ClusterBench, at: int, wanted: AclFilter) -> int:
    answer: Any = bench.run(bench.ask(at, DELETE, {"filters": [filter_values(wanted)]}))
    assert answer.filter_results[0].error_code is ErrorCode.none
    return len(answer.filter_results[0].matching_acls)


def may_read(bench: ClusterBench, number: int, topic: str = "orders") -> bool:
    authorizer = bench.broker(number).authorizer
    assert authorizer is not None
    return authorizer.authorize(ALICE, "10.0.0.1", Operation.READ, ResourceType.TOPIC, topic)


def test_every_broker_follows(bench: ClusterBench) -> None:
    assert create(bench, 2, READ, READ) == {ErrorCode.none}
    assert may_read(bench, 2)  # at once, at the broker that replied
    bench.until(lambda: all(may_read(bench, number) for number in bench.ids))
    assert delete(bench, 3, AclFilter(principal="User:alice")) == 1
    assert not may_read(bench, 3)
    bench.until(lambda: not any(may_read(bench, number) for number in bench.ids))


def test_more_acls_than_fit_into_one_transaction(bench: ClusterBench) -> None:
    assert create(bench, 1, *MANY) == {ErrorCode.none}
    assert create(bench, 2, *MANY) == {ErrorCode.none}
    bench.until(lambda: all(may_read(bench, number, "t-299") for number in bench.ids))
    assert delete(bench, 3, AclFilter()) == 300
    bench.until(lambda: not any(may_read(bench, number, "t-0") for number in bench.ids))


def test_a_broker_that_starts_later_has_the_acls(bench: ClusterBench) -> None:
    bench.kill(3)
    create(bench, 1, READ)
    bench.boot(3)
    assert may_read(bench, 3)


def test_an_acl_that_cannot_be_read_closes_the_broker_to_all_but_super_users(bench: ClusterBench) -> None:
    create(bench, 1, READ)
    bench.until(lambda: all(may_read(bench, number) for number in bench.ids))
    client = bench.programs[1].client
    assert client is not None
    bench.run(client.commit((), (Put("acls/from-the-future", b'{"format": 99}'),)))
    bench.until(lambda: not any(may_read(bench, number) for number in bench.ids))
    bench.kill(2)
    bench.boot(2)
    assert not may_read(bench, 2)
    assert delete(bench, 1, AclFilter()) == 1
