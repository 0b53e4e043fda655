"""The order in which a producer sends its batches, without a broker."""

from __future__ import annotations

from ottla.client.producer.batches import Batch, Identity
from ottla.client.producer.deliveries import RecordsDelivery
from ottla.client.producer.partition_queue import PartitionQueue
from ottla.protocol.records.envelope import Traits
from tests.support.sim_logs import batch_of

TRAITS = Traits()
OLD, NEW = 1, 2


def queue_of(count: int, identity: Identity | None) -> PartitionQueue:
    queue = PartitionQueue("t", 0, identity)
    for _ in range(count):
        queue.append(Batch(bytearray(batch_of()), RecordsDelivery([], []), 100, deadline_s=100.0))
    return queue


def taken(queue: PartitionQueue, leader: int, now_s: float = 0.0) -> list[Batch]:
    batches = []
    while (batch := queue.take(now_s, TRAITS, leader)) is not None:
        batches.append(batch)
    return batches


def known_queue(count: int, identity: Identity | None) -> PartitionQueue:
    """A queue whose first batch was accepted by the broker."""
    queue = queue_of(count + 1, identity)
    first = queue.take(0.0, TRAITS, OLD)
    assert first is not None
    queue.acknowledged(first, 0)
    return queue


def test_a_new_leader_gets_nothing_before_the_old_one_has_answered() -> None:
    for identity in (Identity(7, 0), None):
        queue = known_queue(3, identity)
        first = queue.take(0.0, TRAITS, OLD)
        second = queue.take(0.0, TRAITS, OLD)
        assert first is not None
        assert second is not None
        assert not queue.may_go_to(NEW)
        assert taken(queue, NEW) == []
        queue.retry(first, may_be_written=True, not_before_s=0.0)
        assert taken(queue, NEW) == [], "the second has not landed"
        queue.retry(second, may_be_written=True, not_before_s=0.0)
        assert taken(queue, NEW) == [first], "the oldest, alone"
        queue.acknowledged(first, 5)
        assert taken(queue, NEW) == [second]
        queue.acknowledged(second, 6)
        assert len(taken(queue, NEW)) == 1


def test_what_the_old_leader_answers_in_time_is_no_failure() -> None:
    queue = known_queue(3, Identity(7, 0))
    in_flight = taken(queue, OLD)
    assert len(in_flight) == 3
    for offset, batch in enumerate(in_flight):
        queue.acknowledged(batch, offset)
    queue.append(Batch(bytearray(batch_of()), RecordsDelivery([], []), 100, deadline_s=100.0))
    assert len(taken(queue, NEW)) == 1
