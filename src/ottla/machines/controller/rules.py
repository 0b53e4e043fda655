"""The election rules that follow from a topic's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ottla.coordination.port import Revision
from ottla.machines.controller import keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.state import PartitionState, TopicState
from ottla.protocol.model.config_keys import Value, parse_value
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_config import TOPIC_CONFIGS

_DURABILITY = TOPIC_CONFIGS["ottla.durability"]
_MIN_INSYNC_REPLICAS = TOPIC_CONFIGS["min.insync.replicas"]
_UNCLEAN = TOPIC_CONFIGS["unclean.leader.election.enable"]


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The settings of one topic that elections depend on."""

    durability: Durability = Durability.DISK
    min_insync_replicas: int | None = None
    """None means a majority of the replicas."""
    unclean: bool = False
    """Allows electing a replica that may lack acknowledged records when no other is left."""

    goes_on_empty: bool = False
    """Lets a partition get a leader again after every copy of its data is known to be lost.

    A `memory` topic does: its owner knows that the data dies with the processes, and the log continues above the
    reserved offsets (safety: memory-loss). For data on disks somebody has to accept the loss explicitly: `unclean`.
    """

    def min_insync(self, state: PartitionState) -> int:
        """Returns how many replicas must be in sync, capped at the replication factor."""
        factor = state.replication_factor
        if self.min_insync_replicas is None:
            return factor // 2 + 1
        return min(self.min_insync_replicas, factor)


def may_advance_watermark(rules: TopicRules, confirmed: PartitionState) -> bool:
    """Returns whether a leader may advance the high watermark, given the state that is confirmed in the store (safety:
    eligible-replicas)."""
    return not confirmed.eligible and len(confirmed.isr) >= rules.min_insync(confirmed)


class RuleBook:
    """The rules of all topics, from their own configurations and the brokers' defaults.

    `given` is what this broker's configuration file sets; the dynamic defaults in the store take precedence over it.
    """

    def __init__(self, given: Mapping[str, str] = MappingProxyType({})) -> None:
        self._given = dict(given)
        self._defaults: Mapping[str, str] = self._given
        self._defaults_version: Revision | None = None
        self._known: dict[TopicId, tuple[TopicState, TopicRules]] = {}

    def of(self, image: ClusterImage, topic: TopicState) -> TopicRules:
        """Returns the rules of a topic; cached until the topic or the defaults change."""
        version = image.version_of(keys.configs(keys.DEFAULT))
        if version != self._defaults_version:
            self._defaults = {**self._given, **image.configs(keys.DEFAULT)}
            self._defaults_version = version
            self._known.clear()
        known = self._known.get(topic.id)
        if known is not None and known[0] is topic:
            return known[1]
        rules = rules_of(topic.configs, self._defaults)
        self._known[topic.id] = (topic, rules)
        return rules


def rules_of(configs: Mapping[str, str], defaults: Mapping[str, str] = MappingProxyType({})) -> TopicRules:
    """Derives the rules. An unknown durability class counts as the strictest one: no copy survives a restart."""
    durability = _configured(_DURABILITY.name, configs, defaults)
    min_insync = _configured(_MIN_INSYNC_REPLICAS.name, configs, defaults)
    return TopicRules(
        Durability(durability) if isinstance(durability, str) else Durability.MEMORY,
        min_insync if isinstance(min_insync, int) else None,
        unclean=_configured(_UNCLEAN.name, configs, defaults) is True,
        goes_on_empty=durability == Durability.MEMORY,
    )


def _configured(name: str, configs: Mapping[str, str], defaults: Mapping[str, str]) -> Value | None:
    key = TOPIC_CONFIGS[name]
    text = configs.get(name)
    if text is None:
        # All three have the same name, and no unit conversion, as broker configurations.
        text = defaults.get(name, key.default)
    if text is None:
        return None
    value = parse_value(key, text)
    return None if isinstance(value, Refused) else value
