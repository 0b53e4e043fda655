"""Finds the partition that a request names, and checks the sender's leader epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.partition.partition import Partition


def find_partition(broker: Broker, topic_name: str, index: int) -> Partition | ErrorCode:
    """Returns the partition, if this broker leads it."""
    partition = find_replica(broker, topic_name, index)
    if not isinstance(partition, ErrorCode) and not partition.is_led_here:
        return ErrorCode.not_leader_or_follower
    return partition


def find_replica(broker: Broker, topic_name: str, index: int) -> Partition | ErrorCode:
    """Returns the partition, if this broker has a replica of it."""
    topic = broker.topics.get(topic_name)
    if topic is None or not topic.has(index):
        return ErrorCode.unknown_topic_or_partition
    return topic.partition(index) or ErrorCode.not_leader_or_follower


def check_leader_epoch(partition: Partition, current_leader_epoch: int) -> ErrorCode:
    """Checks the leader epoch of a request. A client with old metadata is fenced; one with newer metadata than this
    broker should retry. -1 means no check."""
    if current_leader_epoch < 0 or current_leader_epoch == partition.leader_epoch:
        return ErrorCode.none
    if current_leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch
