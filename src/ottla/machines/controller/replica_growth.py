"""Adds replicas to internal topics that were created while brokers were missing.

Such a topic records how many replicas it should have (`replicas_wanted`). The controller adds them by reassignment when
brokers join, and then removes the mark: a topic that once had all its replicas is left to its operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.coordination.port import Put
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.assignment import Replicas, add_replicas
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.partition_requests import TopicPartitionName
from ottla.machines.controller.state import TopicState
from ottla.machines.controller.writes import Write
from ottla.protocol.model.ids import TopicId


def missing_replicas(
    image: ClusterImage, topic: TopicState, factor: int, *, allow_shared_machine: bool = False
) -> dict[TopicPartitionName, Replicas]:
    """Returns the targets of reassignments that add replicas now. Empty while one is in progress, or if no broker can
    take more."""
    states = {index: found.value for index, found in image.partitions_of(topic.id).items()}
    if any(state.is_reassigning for state in states.values()):
        return {}
    replicas = {index: state.replicas for index, state in states.items()}
    seed = topic.id.int & 0xFFFFFFFF
    targets = add_replicas(image, replicas, factor, seed, allow_shared_machine=allow_shared_machine)
    if all(len(targets[index]) == len(replicas[index]) for index in replicas):
        return {}
    return {
        TopicPartitionName(topic.name, index): target for index, target in targets.items() if target != replicas[index]
    }


def finish_growth(image: ClusterImage, topic_id: TopicId, factor: int, configs: Mapping[str, str]) -> Write | None:
    """Removes the mark of a topic whose partitions all have `factor` replicas, and sets the configs that depend on it.

    Returns None if there is no mark, or if a partition still lacks replicas.
    """
    topic = image.topic(topic_id)
    if topic is None or not topic.replicas_wanted:
        return None
    states = [found.value for found in image.partitions_of(topic_id).values()]
    if any(state.is_reassigning or len(state.replicas) < factor for state in states):
        return None
    key = keys.topic(topic_id)
    grown = replace(topic, replicas_wanted=0, configs={**topic.configs, **configs})
    return Write((image.unchanged(key),), (Put(key, encoding.encode_topic(grown)),), f"'{topic.name}' has its replicas")
