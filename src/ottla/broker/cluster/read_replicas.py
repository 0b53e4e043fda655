"""Selects the replica that a consumer should read from (KIP-392): an in-sync one in its own rack, if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.machines.controller.image import ClusterImage
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition


_TO_FOLLOWER = branch("a consumer is sent to a follower", __name__)


def preferred_read_replica(
    image: ClusterImage, leader_id: int, partition: Partition, rack: str, offset: int
) -> int | None:
    """Returns the follower in the rack that is furthest ahead, or None for the leader."""
    if partition.leading is None or _rack_of(image, leader_id) == rack:
        return None
    candidates = [
        (end, -broker_id)
        for end, broker_id in partition.leading.in_sync_with(offset)
        if _rack_of(image, broker_id) == rack
    ]
    if not candidates:
        return None
    _TO_FOLLOWER()
    return -max(candidates)[1]


def _rack_of(image: ClusterImage, broker_id: int) -> str | None:
    """Returns the rack of a broker, or None if it is offline or draining."""
    registration = image.registration(broker_id)
    return registration.rack if registration is not None and not registration.is_draining else None
