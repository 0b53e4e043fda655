"""Settings that Ottla does not have: the table, and their handling by an embedded broker."""

from __future__ import annotations

from ottla.protocol.model.broker_config import BROKER_CONFIGS, BrokerConfig, parse_broker_config
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.foreign_settings import refusal, without_effect
from ottla.protocol.model.kafka_settings import UNSAFE, WITHOUT_EFFECT


def test_no_setting_of_ottla_is_in_the_table() -> None:
    listed = [name for group in (*UNSAFE, *WITHOUT_EFFECT) for name in group.names]
    assert len(set(listed)) == len(listed)
    assert [name for name in listed if name in BROKER_CONFIGS] == []
    prefixes = tuple(prefix for group in WITHOUT_EFFECT for prefix in group.prefixes)
    assert [name for name in BROKER_CONFIGS if name.startswith(prefixes)] == []


def test_every_listed_name_is_treated_as_its_group_says() -> None:
    for group in WITHOUT_EFFECT:
        for name in group.names:
            assert refusal(name, "x", BROKER_CONFIGS) is None
            assert without_effect(name) is group
    for unsafe in UNSAFE:
        for name in unsafe.names:
            refused = refusal(name, "x", BROKER_CONFIGS)
            assert refused is not None
            assert unsafe.reason in (refused.message or "")
        for name, value in unsafe.harmless:
            assert refusal(name, value, BROKER_CONFIGS) is None


def test_a_broker_leaves_out_what_it_does_not_have() -> None:
    config = parse_broker_config({"num.io.threads": "8", "plugin.of.mine": "1", "num.partitions": "2"})
    assert isinstance(config, BrokerConfig)
    assert config.given == {"num.partitions": "2"}


def test_the_listeners_of_the_process_are_none_of_the_brokers_settings() -> None:
    """A program gives host and port; an ignored listener could have been an encrypted one."""
    assert isinstance(parse_broker_config({"listeners": "SSL://:9092"}), Refused)
