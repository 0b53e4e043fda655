"""The configuration tables: names, types, defaults, and invalid values."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from ottla.protocol.model.broker_config import BROKER_CONFIGS, BrokerConfig, parse_broker_config, with_overrides
from ottla.protocol.model.config_docs import render
from ottla.protocol.model.config_keys import ConfigKey, ConfigType, parse_value
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.tiered_storage_keys import TIERED_STORAGE
from ottla.protocol.model.topic_config import TOPIC_CONFIGS, TopicConfig, parse_topic_config

ROOT = Path(__file__).parents[4]


def _topic(given: dict[str, str], broker: dict[str, str] | None = None, replicas: int = 1) -> TopicConfig:
    config = parse_topic_config(given, broker or {}, replication_factor=replicas)
    assert not isinstance(config, Refused), config
    return config


def _broker(given: dict[str, str]) -> BrokerConfig:
    config = parse_broker_config(given)
    assert not isinstance(config, Refused), config
    return config


def _refusal(outcome: object) -> str:
    assert isinstance(outcome, Refused)
    assert outcome.error is ErrorCode.invalid_config
    assert outcome.message
    return outcome.message


def test_a_topic_without_overrides_has_kafkas_defaults() -> None:
    config = _topic({})
    assert config.cleanup_policy == {"delete"}
    assert config.retention_ms == 7 * 24 * 3_600_000
    assert config.retention_bytes == -1
    assert config.segment_bytes == 1 << 30
    assert config.max_message_bytes == 1_048_588
    assert config.message_timestamp_type == "CreateTime"
    assert config.message_timestamp_after_max_ms == 3_600_000
    assert config.flush_messages == 2**63 - 1
    assert config.min_cleanable_dirty_ratio == 0.5
    assert config.durability is Durability.DISK
    assert not config.unclean_leader_election_enable


def test_overrides_win_over_the_brokers_values_and_these_over_defaults() -> None:
    broker = {"log.retention.ms": "5000", "log.segment.bytes": "4096", "ottla.durability": "memory"}
    config = _topic({"retention.ms": "1000"}, broker)
    assert (config.retention_ms, config.segment_bytes) == (1000, 4096)
    assert config.durability is Durability.MEMORY


@pytest.mark.parametrize(
    ("broker", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_wins(broker: dict[str, str], retention_ms: int) -> None:
    assert _topic({}, broker).retention_ms == retention_ms


@pytest.mark.parametrize(("replicas", "majority"), [(1, 1), (2, 2), (3, 2), (5, 3)])
def test_a_majority_must_be_in_sync_unless_told_otherwise(replicas: int, majority: int) -> None:
    assert _topic({}, replicas=replicas).min_insync_replicas == majority
    assert _topic({"min.insync.replicas": "1"}, replicas=replicas).min_insync_replicas == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "shred"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,shred"),
        ("compression.type", "rar"),
        ("compression.gzip.level", "0"),
        ("retention.ms", "-2"),
        ("retention.ms", "1_000"),
        ("retention.ms", "1e3"),
        ("retention.ms", "٣"),
        ("retention.ms", str(2**63)),
        ("segment.bytes", str(2**31)),
        ("segment.bytes", "10"),
        ("segment.ms", "0"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "yes"),
        ("message.timestamp.type", "createtime"),
        ("ottla.durability", "paper"),
    ],
)
def test_values_that_are_refused(name: str, value: str) -> None:
    assert name in _refusal(parse_topic_config({name: value}))


@pytest.mark.parametrize(
    ("name", "value", "attribute", "parsed"),
    [
        ("cleanup.policy", " compact , delete ", "cleanup_policy", {"compact", "delete"}),
        ("preallocate", "TRUE", "preallocate", True),
        ("retention.ms", " 1000 ", "retention_ms", 1000),
        ("compression.gzip.level", "-1", "compression_gzip_level", -1),
        ("segment.bytes", "1024", "segment_bytes", 1024),
        ("ottla.durability", "cache", "durability", Durability.CACHE),
    ],
)
def test_values_that_are_taken(name: str, value: str, attribute: str, parsed: object) -> None:
    assert getattr(_topic({name: value}), attribute) == parsed


def test_a_typo_is_refused_with_what_was_meant() -> None:
    assert "Did you mean retention.ms?" in _refusal(parse_topic_config({"retention.msec": "1"}))
    assert "Did you mean ottla.journal.bytes?" in _refusal(parse_broker_config({"ottla.journal.byte": "1"}))
    assert "Did you mean" not in _refusal(parse_topic_config({"zzz": "1"}))


def test_values_that_do_not_go_together() -> None:
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}
    assert "min.compaction.lag.ms" in _refusal(parse_topic_config(lags))
    in_memory = {"ottla.durability": "memory", "cleanup.policy": "compact"}
    assert "memory" in _refusal(parse_topic_config(in_memory))
    assert "journal" in _refusal(parse_broker_config({"ottla.journal.bytes": "1048576"}))


def test_a_broker_without_settings() -> None:
    config = _broker({})
    assert (config.node_id, config.num_partitions, config.message_max_bytes) == (1, 1, 1_048_588)
    assert config.auto_create_topics_enable
    assert config.broker_rack is None
    assert config.socket_request_max_bytes == 104_857_600
    assert config.max_inflight_per_connection == 1000
    assert config.given == {}


def test_a_brokers_settings_for_topics_are_checked_at_its_start() -> None:
    assert "log.retention.ms" in _refusal(parse_broker_config({"log.retention.ms": "x"}))
    config = _broker({"message.max.bytes": "500", "log.segment.bytes": "2048"})
    assert config.message_max_bytes == 500
    assert _topic({}, dict(config.given)).segment_bytes == 2048


def test_dynamic_values_win_over_static_ones() -> None:
    changed = with_overrides(_broker({"num.partitions": "2"}), {"num.partitions": "5"})
    assert isinstance(changed, BrokerConfig)
    assert changed.num_partitions == 5


def test_each_entry_has_a_field_and_a_valid_default() -> None:
    used = [key for key in TOPIC_CONFIGS.values() if key not in TIERED_STORAGE]
    assert {key.attribute for key in used} == {field.name for field in fields(TopicConfig)}
    broker_fields = {field.name for field in fields(BrokerConfig)} - {"given"}
    assert broker_fields <= {key.attribute for key in BROKER_CONFIGS.values()}
    for key in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        assert key.default is None or not isinstance(parse_value(key, key.default), Refused), key.name
        assert key.doc.endswith("."), key.name


def test_a_string_is_taken_as_it_is() -> None:
    assert parse_value(ConfigKey("s", ConfigType.STRING, None, "A string."), " a,b ") == "a,b"


def test_the_configuration_table_is_fresh() -> None:
    written = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert written == render(), "run: python -m ottla.protocol.model.config_docs > docs/reference/configuration.md"
