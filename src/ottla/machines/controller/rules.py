"""What a topic's configuration says of its elections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ottla.coordination.port import Revision
from ottla.machines.controller import keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.state import PartitionState, TopicState
from ottla.model.config_keys import Value, parse_value
from ottla.model.durability import Durability
from ottla.model.errors import Refused
from ottla.model.ids import TopicId
from ottla.model.topic_config import TOPIC_CONFIGS

_DURABILITY = TOPIC_CONFIGS["ottla.durability"]
_MIN_INSYNC_REPLICAS = TOPIC_CONFIGS["min.insync.replicas"]
_UNCLEAN = TOPIC_CONFIGS["unclean.leader.election.enable"]


@dataclass(frozen=True, slots=True)
class TopicRules:
    durability: Durability = Durability.DISK
    min_insync_replicas: int | None = None
    """None is a majority of the replicas."""
    unclean: bool = False
    """Whether a replica that may lack acknowledged records is elected when no other is left."""

    goes_on_empty: bool = False
    """Whether a partition gets a leader again after every copy of its data is known to be lost.

    A `memory` topic does: its owner knows that it goes with its processes, and its log goes on above the offsets that
    were reserved (SAFETY 25). On disks somebody has to say that what is gone is gone: `unclean`.
    """

    def min_insync(self, state: PartitionState) -> int:
        """How many replicas must be in sync. Never more than there are."""
        factor = state.replication_factor
        if self.min_insync_replicas is None:
            return factor // 2 + 1
        return min(self.min_insync_replicas, factor)


def may_advance_watermark(rules: TopicRules, confirmed: PartitionState) -> bool:
    """Whether a leader may move the watermark, by the state that is confirmed in the store (SAFETY 4)."""
    return not confirmed.eligible and len(confirmed.isr) >= rules.min_insync(confirmed)


class RuleBook:
    """The rules of all topics, from their own configurations and the brokers' defaults.

    `given` is what this broker's configuration file sets; the dynamic defaults in the store come before it.
    """

    def __init__(self, given: Mapping[str, str] = MappingProxyType({})) -> None:
        self._given = dict(given)
        self._defaults: Mapping[str, str] = self._given
        self._defaults_version: Revision | None = None
        self._known: dict[TopicId, tuple[TopicState, TopicRules]] = {}

    def of(self, image: ClusterImage, topic: TopicState) -> TopicRules:
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
    """A class that this version does not know counts as the strictest one: no copy survives a restart."""
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
        # Each of the three has the same name, and no factor, as a broker's configuration.
        text = defaults.get(name, key.default)
    if text is None:
        return None
    value = parse_value(key, text)
    return None if isinstance(value, Refused) else value
