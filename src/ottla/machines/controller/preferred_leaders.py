"""Detection of partitions that are not led by their preferred leader."""

from __future__ import annotations

from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.state import PartitionKey


def imbalanced(image: ClusterImage, percent_max: int = 10) -> set[PartitionKey]:
    """Returns the partitions that need an election of the preferred leader (`leader.imbalance.per.broker.percentage`).

    If other brokers lead more than this percentage of the partitions that a broker should lead, all of those are
    returned.
    """
    led_by_others: dict[int, list[PartitionKey]] = {}
    should_lead: dict[int, int] = {}
    for key, found in image.partitions():
        preferred = found.value.replicas[0]
        should_lead[preferred] = should_lead.get(preferred, 0) + 1
        if found.value.leader != preferred:
            led_by_others.setdefault(preferred, []).append(key)
    return {
        key
        for broker_id, partitions in led_by_others.items()
        if _can_lead(image, broker_id) and len(partitions) * 100 > percent_max * should_lead[broker_id]
        for key in partitions
    }


def _can_lead(image: ClusterImage, broker_id: int) -> bool:
    registration = image.registration(broker_id)
    return registration is not None and not registration.is_draining
