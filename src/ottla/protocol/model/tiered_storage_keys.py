"""Kafka's topic settings for tiered storage, which Ottla does not have: each accepts only the value that disables it.

They exist because tools that copy the settings of a topic (MirrorMaker) set them too.
"""

from __future__ import annotations

from ottla.protocol.model.config_keys import ConfigKey, ConfigType, OnlyValue, Synonym, Value


def _key(name: str, type_: ConfigType, value: Value, doc: str, *synonyms: Synonym) -> ConfigKey:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return ConfigKey(name, type_, text, doc, OnlyValue(value, "tiered storage is not available"), synonyms)


TIERED_STORAGE = (
    _key(
        "local.retention.bytes",
        ConfigType.LONG,
        -2,
        "Tiered storage: -2 means the value of retention.bytes.",
        Synonym("log.local.retention.bytes"),
    ),
    _key(
        "local.retention.ms",
        ConfigType.LONG,
        -2,
        "Tiered storage: -2 means the value of retention.ms.",
        Synonym("log.local.retention.ms"),
    ),
    _key(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        False,
        "Tiered storage: whether copying to remote storage is disabled.",
    ),
    _key(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        False,
        "Tiered storage: whether remote segments are deleted when tiered storage is disabled.",
    ),
    _key("remote.storage.enable", ConfigType.BOOLEAN, False, "Tiered storage: whether the topic uses tiered storage."),
)
