"""Puts the settings of topics, and the dynamic settings of the broker that they inherit, into effect."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.context import BrokerContext
from ottla.broker.topics.topics import INTERNAL_TOPICS, Topic
from ottla.protocol.model.broker_config import with_overrides
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.topic_config import TopicConfig, parse_topic_config

DURABILITY = "ottla.durability"


class TopicConfigs:
    """Parses and applies the settings of this broker's topics."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def broker_defaults(self) -> Mapping[str, str]:
        """Returns the settings that topics inherit from the broker."""
        return {**self._context.static_config.given, **self._context.dynamic_overrides}

    def parse(self, overrides: Mapping[str, str]) -> TopicConfig | Refused:
        """Parses the overrides of a topic."""
        return parse_topic_config(overrides, self.broker_defaults())

    def parse_new(self, name: str, overrides: Mapping[str, str]) -> TopicConfig | Refused:
        """Parses the overrides of a new topic. Internal topics are always `disk` (safety: topic-identity), whatever the
        broker's default is."""
        if name not in INTERNAL_TOPICS:
            return self.parse(overrides)
        if overrides.get(DURABILITY, "").strip() in {each.value for each in Durability if each is not Durability.DISK}:
            return Refused(
                ErrorCode.invalid_config,
                f"'{name}' is an internal topic, and those are always of the class disk; leave ottla.durability out",
            )
        return self.parse({DURABILITY: Durability.DISK.value, **overrides})

    def parse_stored(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Parses overrides that were accepted earlier. Raises ValueError if this version no longer supports a
        setting."""
        config = self.parse(overrides)
        if isinstance(config, Refused):
            raise ValueError(f"the stored configuration of a topic is invalid: {config.message}")
        return config

    def apply(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Puts new overrides into effect for a topic and its logs."""
        topic.config = self.parse_stored(overrides)
        topic.overrides = dict(overrides)
        for partition in topic.partitions:
            partition.log.config = topic.config
        self._context.events.on_configured(topic)

    def apply_dynamic(self, overrides: Mapping[str, str]) -> None:
        """Puts the broker's dynamic settings into effect, for the broker and all its topics. Raises ValueError if they
        are not valid."""
        context = self._context
        merged = with_overrides(context.static_config, overrides)
        if isinstance(merged, Refused):
            raise ValueError(f"the stored configuration of the broker is invalid: {merged.message}")
        context.dynamic_overrides = dict(overrides)
        context.config = merged
        context.throttles.use_rates(merged)
        for topic in context.topics:
            self.apply(topic, topic.overrides)
