"""The differences between two images, and the partitions that a set of changes concerns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from ottla.machines.controller import keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.state import PartitionKey, Versioned

K = TypeVar("K", bound=Hashable)


def partitions_concerned(image: ClusterImage, touched: ImageChanges) -> set[PartitionKey]:
    """Returns all visible partitions for which the controller may now decide differently.

    The decision about a partition depends on the partition, its topic, the standing of the brokers that hold its
    replicas, and the defaults of topic configurations.
    """
    if keys.DEFAULT in touched.configs:
        return {key for key, _ in image.partitions()}
    concerned = {key for key in touched.partitions if image.partition(key) is not None}
    for broker_id in touched.brokers:
        concerned.update(image.hosted_by(broker_id))
    for topic_id in touched.topics:
        concerned.update(PartitionKey(topic_id, index) for index in image.partitions_of(topic_id))
    return concerned


def differences(old: ClusterImage, new: ClusterImage) -> ImageChanges:
    """Returns the differences between the image before a resync and the freshly loaded one."""
    touched = ImageChanges(controller=old.controller != new.controller)
    for of_old, of_new in zip(old.broker_tables(), new.broker_tables(), strict=True):
        touched.brokers |= _changed(of_old, of_new)
    touched.topics = _changed(old.topic_table(), new.topic_table())
    touched.configs = _changed(old.configs_table(), new.configs_table())
    touched.acls = _changed(old.acls_table(), new.acls_table())
    touched.partitions = _changed(dict(old.partitions()), dict(new.partitions()))
    touched.unreadable = [problem for problem in new.unreadable() if problem not in old.unreadable()]
    return touched


def _changed(old: Mapping[K, Versioned[Any]], new: Mapping[K, Versioned[Any]]) -> set[K]:
    """Returns the keys whose entries differ. Versions are never reused, so entries of the same version are equal."""
    gone = old.keys() - new.keys()
    return gone | {
        key for key, found in new.items() if (before := old.get(key)) is None or before.version != found.version
    }
