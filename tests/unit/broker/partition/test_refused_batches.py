"""A batch of a producer is rejected while the next ones are in flight."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from ottla.broker.partition.refused_batches import PRODUCERS_MAX, REMEMBERED_MS, RefusedBatches
from ottla.net.apis import ClientApi
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import read_header
from ottla.sim.world import SimWorld
from tests.support.sim_broker import BrokerBench
from tests.support.sim_cluster import ClusterBench
from tests.support.sim_logs import batch_of

OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
REFUSED = Refused(ErrorCode.not_enough_replicas)
PRODUCE = ClientApi(0, "Produce", (9, 9))


def batch(producer_id: int, epoch: int, sequence: int) -> memoryview:
    return memoryview(
        batch_of([b"x"], timestamps_ms=[1], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )


async def test_what_follows_a_refused_first_batch_is_not_taken_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = BrokerBench()
    await bench.create("orders")
    log = bench.partition("orders").log
    with monkeypatch.context() as full:
        full.setattr(type(log), "refusal", lambda *_: Refused(ErrorCode.kafka_storage_error))
        assert await bench.produce("orders", producer=(7, 0, 0)) is ErrorCode.kafka_storage_error
    assert await bench.produce("orders", producer=(7, 0, 1)) is ErrorCode.kafka_storage_error
    assert await bench.produce("orders", producer=(8, 0, 5)) == 0, "of others nothing is known"
    assert await bench.produce("orders", producer=(7, 0, 0)) == 1
    assert await bench.produce("orders", producer=(7, 0, 1)) == 2


@pytest.fixture
def cluster() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        yield ClusterBench(world)


def test_the_same_when_too_few_replicas_were_in_sync(cluster: ClusterBench) -> None:
    """Found by the siege: librdkafka considers all batches before an acknowledged one as acknowledged, and resends
    out-of-order batches in a new epoch, together with ones that are already written."""
    cluster.run(cluster.create("orders", min_insync_replicas="3"))
    cluster.until_in_sync("orders")
    leader = cluster.leader("orders")
    follower = next(number for number in cluster.ids if number != leader)
    cluster.kill(follower)
    cluster.until_in_sync("orders", count=2)

    async def produce(sequence: int) -> ErrorCode:
        data = [{"index": 0, "records": bytes(batch(7, 0, sequence))}]
        body = {"acks": -1, "timeout": timedelta(seconds=5), "topic_data": [{"name": "orders", "partition_data": data}]}
        reply = await cluster.ask(leader, PRODUCE, body)
        return ErrorCode(reply.responses[0].partition_responses[0].error_code)

    assert cluster.run(produce(0)) is ErrorCode.not_enough_replicas
    cluster.boot(follower)
    cluster.until_in_sync("orders")
    assert cluster.run(produce(1)) is ErrorCode.not_enough_replicas
    assert cluster.run(produce(0)) is ErrorCode.none
    assert cluster.run(produce(1)) is ErrorCode.none
    cluster.kill(follower)
    cluster.until_in_sync("orders", count=2)
    assert cluster.run(produce(2)) is ErrorCode.not_enough_replicas
    cluster.boot(follower)
    cluster.until_in_sync("orders")
    assert cluster.run(produce(3)) is ErrorCode.not_enough_replicas, "out of order would begin a new epoch"
    assert cluster.run(produce(5)) is ErrorCode.not_enough_replicas
    assert cluster.run(produce(2)) is ErrorCode.none
    assert cluster.run(produce(5)) is OUT_OF_ORDER


def before(refused: RefusedBatches, producer_id: int, epoch: int, sequence: int, **more: int | None) -> Refused | None:
    header = read_header(batch(producer_id, epoch, sequence))
    return refused.before(header, more.get("missing"), more.get("now_ms") or 0)


def test_a_later_epoch_begins_anew() -> None:
    refused = RefusedBatches()
    refused.note(batch(7, 0, 3), REFUSED, 0)
    refused.note(batch(7, 0, 4), REFUSED, 0)
    assert before(refused, 7, 0, 4) is REFUSED
    assert before(refused, 7, 1, 1) is None
    assert not refused


def test_what_is_remembered_is_bounded() -> None:
    refused = RefusedBatches()
    for producer_id in range(PRODUCERS_MAX + 1):
        refused.note(batch(producer_id, 0, 0), REFUSED, 0)
    assert before(refused, 0, 0, 1) is None
    assert before(refused, 1, 0, 1) is REFUSED


def test_a_refusal_of_long_ago_does_not_count() -> None:
    """The producer may have given up the batch, or have switched to another leader and back."""
    refused = RefusedBatches()
    refused.note(batch(7, 0, 3), REFUSED, 1000)
    refused.note(batch(7, 0, 4), REFUSED, 2000)
    assert before(refused, 7, 0, 4, now_ms=1000 + REMEMBERED_MS - 1) is REFUSED
    refused.note(batch(7, 0, 4), REFUSED, 1000 + REMEMBERED_MS)
    assert before(refused, 7, 0, 5, now_ms=1000 + REMEMBERED_MS) is REFUSED, "of the later one"
    assert before(refused, 7, 0, 5, now_ms=1000 + 2 * REMEMBERED_MS) is None
    assert not refused


def test_garbage_and_producers_without_an_id_are_nothing_to_remember() -> None:
    refused = RefusedBatches()
    refused.note(None, REFUSED, 0)
    refused.note(memoryview(b"short"), REFUSED, 0)
    refused.note(memoryview(bytes(61)), REFUSED, 0)
    refused.note(batch(-1, -1, -1), REFUSED, 0)
    assert not refused


def test_what_another_broker_has_made_good_is_out_of_date() -> None:
    refused = RefusedBatches()
    refused.note(batch(7, 0, 3), REFUSED, 0)
    assert before(refused, 7, 0, 11, missing=9) is None
    assert not refused
