"""Which replica a consumer should read from (KIP-392): one in its own rack, if there is one in sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.machines.controller.image import ClusterImage

if TYPE_CHECKING:
    from ottla.broker.partition import Partition


def preferred_read_replica(
    image: ClusterImage, leader_id: int, partition: Partition, rack: str, offset: int
) -> int | None:
    """None: the leader. Of several followers, the one that is furthest."""
    if partition.leading is None or _rack_of(image, leader_id) == rack:
        return None
    candidates = [
        (end, -broker_id)
        for end, broker_id in partition.leading.in_sync_with(offset)
        if _rack_of(image, broker_id) == rack
    ]
    return -max(candidates)[1] if candidates else None


def _rack_of(image: ClusterImage, broker_id: int) -> str | None:
    """None for a broker that is away, or about to go."""
    registration = image.registration(broker_id)
    return registration.rack if registration is not None and not registration.is_draining else None
