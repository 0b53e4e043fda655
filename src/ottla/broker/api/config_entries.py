"""The configuration entries of a topic or broker, each with the source of its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import dropwhile
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.api.config_resources import EVERY_BROKER
from ottla.protocol.model.broker_config import BROKER_CONFIGS
from ottla.protocol.model.config_keys import ConfigKey
from ottla.protocol.model.topic_config import TOPIC_CONFIGS, default_of, scaled

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.topics.topics import Topic


OWN_PREFIX = "ottla."


class Source(IntEnum):
    """The source of a value, with the protocol's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_OF_ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class SourcedValue(NamedTuple):
    """A value of a setting at one source."""

    name: str
    value: str
    source: Source


class ConfigEntry(NamedTuple):
    """A setting with its effective value."""

    key: ConfigKey
    value: str | None
    source: Source
    synonyms: list[SourcedValue]
    """All sources that have a value, in order of precedence, each in the unit of its name."""
    is_read_only: bool


def topic_config_entries(broker: Broker, topic: Topic) -> list[ConfigEntry]:
    """Returns the settings of a topic."""
    return [_topic_entry(broker, topic, key) for key in TOPIC_CONFIGS.values()]


def broker_config_entries(broker: Broker) -> list[ConfigEntry]:
    """Returns the settings of this broker."""
    return [_broker_entry(broker, key) for key in BROKER_CONFIGS.values()]


def dynamic_broker_entries(broker: Broker) -> list[ConfigEntry]:
    """Returns the dynamic settings of all brokers: the cluster-wide defaults, in Kafka's terms."""
    admin = broker.metadata.admin
    source = Source.DYNAMIC_OF_ALL_BROKERS if admin.has_cluster_defaults else Source.DYNAMIC_BROKER
    return [
        ConfigEntry(BROKER_CONFIGS[name], value, source, [SourcedValue(name, value, source)], is_read_only=False)
        for name, value in sorted(admin.dynamic_configs(EVERY_BROKER).items())
        if name in BROKER_CONFIGS
    ]


def _topic_entry(broker: Broker, topic: Topic, key: ConfigKey) -> ConfigEntry:
    """Returns a setting of a topic. Ottla's own settings are marked read-only although some can be altered, because
    tools that copy a topic's settings to another cluster (MirrorMaker) skip read-only ones. Kafka would refuse the
    topic for an unknown name, and another Ottla cluster has archive groups and a durability of its own."""
    is_read_only = not key.dynamic or key.name.startswith(OWN_PREFIX)
    override = topic.overrides.get(key.name)
    below = _values_of_broker(broker, [synonym.name for synonym in key.synonyms])
    if override is not None:
        above = SourcedValue(key.name, override, Source.TOPIC)
        return ConfigEntry(key, override, above.source, [above, *below], is_read_only)
    if not below or below[0].source is Source.DEFAULT:
        value = default_of(key, {}, topic.replication_factor)
        if key.default is None:
            below = [SourcedValue(key.synonyms[0].name, value, Source.DEFAULT)]
        return ConfigEntry(key, value, Source.DEFAULT, below, is_read_only)
    factor = next(synonym.factor for synonym in key.synonyms if synonym.name == below[0].name)
    return ConfigEntry(key, scaled(below[0].value, factor), below[0].source, below, is_read_only)


def _broker_entry(broker: Broker, key: ConfigKey) -> ConfigEntry:
    """Returns a setting of the broker. A value in a finer unit is not listed as a synonym: it does not determine this
    setting's value."""
    names = [synonym.name for synonym in key.synonyms] or [key.name]
    found = list(dropwhile(lambda each: each.name != key.name, _values_of_broker(broker, names)))
    value, source = (found[0].value, found[0].source) if found else (None, Source.DEFAULT)
    return ConfigEntry(key, value, source, found, is_read_only=not key.dynamic)


def _values_of_broker(broker: Broker, names: Sequence[str]) -> list[SourcedValue]:
    """Returns the values of these settings, ordered by source first and by name second, as in Kafka."""
    admin = broker.metadata.admin
    of_all = admin.dynamic_configs(EVERY_BROKER) if admin.has_cluster_defaults else {}
    defaults = {name: BROKER_CONFIGS[name].default for name in names}
    places: list[tuple[Mapping[str, str | None] | Mapping[str, str], Source]] = [
        (admin.dynamic_configs(str(broker.node_id)), Source.DYNAMIC_BROKER),
        (of_all, Source.DYNAMIC_OF_ALL_BROKERS),
        (broker.context.static_config.given, Source.STATIC_BROKER),
        (defaults, Source.DEFAULT),
    ]
    found = [(name, values.get(name), source) for values, source in places for name in names]
    return [SourcedValue(name, value, source) for name, value, source in found if value is not None]
