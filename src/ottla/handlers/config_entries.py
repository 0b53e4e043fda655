"""A topic's or a broker's configuration entries, each with where its value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from ottla.handlers.config_resources import EVERY_BROKER
from ottla.model.broker_config import BROKER_CONFIGS
from ottla.model.config_keys import ConfigKey
from ottla.model.topic_config import TOPIC_CONFIGS, default_of, scaled

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.topics import Topic


class Source(IntEnum):
    """The numbers are the protocol's."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_OF_ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class SourcedValue(NamedTuple):
    name: str
    value: str | None
    source: Source


class ConfigEntry(NamedTuple):
    key: ConfigKey
    value: str | None
    source: Source
    synonyms: list[SourcedValue]
    """Every place that has a value for it, the one that counts first."""


def topic_config_entries(broker: Broker, topic: Topic) -> list[ConfigEntry]:
    return [_entry(key, list(_topic_values(broker, topic, key))) for key in TOPIC_CONFIGS.values()]


def broker_config_entries(broker: Broker) -> list[ConfigEntry]:
    return [_entry(key, list(_broker_values(broker, key))) for key in BROKER_CONFIGS.values()]


def dynamic_broker_entries(broker: Broker) -> list[ConfigEntry]:
    """What was set for all brokers while they run: the cluster-wide defaults, in Kafka's terms."""
    source = Source.DYNAMIC_BROKER if broker.cluster is None else Source.DYNAMIC_OF_ALL_BROKERS
    return [
        _entry(BROKER_CONFIGS[name], [SourcedValue(name, value, source)])
        for name, value in sorted(broker.admin.dynamic_configs(EVERY_BROKER).items())
        if name in BROKER_CONFIGS
    ]


def _entry(key: ConfigKey, values: list[SourcedValue]) -> ConfigEntry:
    return ConfigEntry(key, values[0].value, values[0].source, values)


def _topic_values(broker: Broker, topic: Topic, key: ConfigKey) -> Iterator[SourcedValue]:
    override = topic.overrides.get(key.name)
    if override is not None:
        yield SourcedValue(key.name, override, Source.TOPIC)
    for synonym in key.synonyms:
        for name, value, source in _set_on_broker(broker, synonym.name):
            yield SourcedValue(name, None if value is None else scaled(value, synonym.factor), source)
    replication_factor = topic.replication_factor
    name = key.synonyms[0].name if key.synonyms else key.name
    yield SourcedValue(name, default_of(key, {}, replication_factor), Source.DEFAULT)


def _broker_values(broker: Broker, key: ConfigKey) -> Iterator[SourcedValue]:
    yield from _set_on_broker(broker, key.name)
    yield SourcedValue(key.name, key.default, Source.DEFAULT)


def _set_on_broker(broker: Broker, name: str) -> Iterator[SourcedValue]:
    dynamic = broker.admin.dynamic_configs(str(broker.node_id)).get(name)
    if dynamic is not None:
        yield SourcedValue(name, dynamic, Source.DYNAMIC_BROKER)
    of_all = broker.admin.dynamic_configs(EVERY_BROKER).get(name) if broker.cluster is not None else None
    if of_all is not None:
        yield SourcedValue(name, of_all, Source.DYNAMIC_OF_ALL_BROKERS)
    given = broker.static_config.given.get(name)
    if given is not None:
        yield SourcedValue(name, given, Source.STATIC_BROKER)
