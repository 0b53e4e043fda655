"""The ports of the metrics endpoints of `ottla up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.app import BrokerSettings
from ottla.cli.failures import CommandError
from ottla.cli.up.cluster import Cluster
from ottla.cli.up.config_file import read_config_file
from ottla.protocol.model.broker_config import BrokerConfig, parse_broker_config


def ports(directory: Path, properties: dict[str, str]) -> list[str | None]:
    Cluster(BrokerSettings(data_dir=str(directory), properties=properties), 3, "info")
    files = [read_config_file(directory / f"broker-{number}.properties") for number in (1, 2, 3)]
    return [each.properties.get("ottla.metrics.port") for each in files]


def test_ports_follow_one_another(tmp_path: Path) -> None:
    assert ports(tmp_path / "given", {"ottla.metrics.port": "9308"}) == ["9308", "9309", "9310"]
    assert ports(tmp_path / "free", {"ottla.metrics.port": "0"}) == ["0", "0", "0"]
    assert ports(tmp_path / "none", {}) == [None, None, None]
    with pytest.raises(CommandError, match="for 3 brokers; choose a lower"):
        ports(tmp_path / "too high", {"ottla.metrics.port": "65534"})


def test_without_a_port_there_is_no_page_and_with_one_it_is_for_this_machine() -> None:
    config = parse_broker_config({})
    assert isinstance(config, BrokerConfig)
    assert (config.metrics_host, config.metrics_port) == ("127.0.0.1", None)
    config = parse_broker_config({"ottla.metrics.port": "9308", "ottla.metrics.host": "::"})
    assert isinstance(config, BrokerConfig)
    assert (config.metrics_host, config.metrics_port) == ("::", 9308)
    assert not isinstance(parse_broker_config({"ottla.metrics.port": "65536"}), BrokerConfig)
