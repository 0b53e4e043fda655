"""The commands for clusters without a cluster: wrong arguments, files, directories, notifications to systemd."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from ottla.broker.app import BrokerSettings
from ottla.cli import main
from ottla.cli.cluster.reassignment_file import plan_as_json, read_plan
from ottla.cli.failures import CommandError
from ottla.cli.up.cluster import Cluster
from ottla.cli.up.config_file import read_config_file
from ottla.cli.up.data_layout import brokers_to_run
from ottla.cli.up.service_notice import notify_service
from ottla.client.consumer.types import TopicPartition

PLAN = {
    "version": 1,
    "partitions": [{"topic": "orders", "partition": 1, "replicas": [3, 1], "log_dirs": ["any", "any"]}],
}


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--brokers", "0"],
        ["broker"],
        ["broker", "--config", "x", "drain", "1"],
        ["broker", "drain"],
        ["broker", "drain", "one"],
        ["cluster", "reassign"],
        ["cluster", "reassign", "--cancel"],
        ["cluster", "reassign", "--execute", "--verify", "--balance"],
        ["cluster", "reassign", "--balance", "--file", "plan.json"],
        ["cluster", "reassign", "--partition", "1", "--replicas", "1,2"],
        ["cluster", "reassign", "-t", "orders", "-p", "1", "-r", "one,two"],
        ["cluster", "reassign", "--list", "--brokers", "1"],
    ],
)
def test_a_wrong_call_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 1
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ottla.coordination=sqlite:here\nlog.dirs=d\n", "does not set node.id: the id of this broker"),
        ("node.id=1\nlog.dirs=d\n", "does not set ottla.coordination: the coordination store of the cluster"),
        ("node.id=1\nottla.coordination=sqlite:here\n", "does not set log.dirs: the directory for the data"),
        ("node.id=1\nlog.dirs=d\nottla.coordination=consul:x\n", "ottla.coordination=consul:x must be one of sqlite:"),
        ("node.id=1\nottla.cordination=sqlite:here\n", "line 2: Unknown broker config name: ottla.cordination"),
    ],
)
def test_a_broker_that_is_not_told_what_it_needs(
    tmp_path: Path, text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(text)
    sentence = fails(["broker", "--config", str(path)], capsys)
    assert sentence.startswith(f"ottla: {path}")
    assert expected in sentence


# -- the brokers of a directory ------------------------------------------------------------------------------


def made(data: Path, *names: str) -> BrokerSettings:
    for name in names:
        (data / name).mkdir(parents=True, exist_ok=True)
        (data / name / "FORMAT").write_text("version=1\n")
    return BrokerSettings(data_dir=str(data))


def test_an_empty_directory_gets_as_many_as_asked_for(tmp_path: Path) -> None:
    for data in (tmp_path, tmp_path / "missing"):
        assert brokers_to_run(made(data), None, 3, None) == 3
        assert brokers_to_run(made(data), 1, 3, None) == 1
        assert brokers_to_run(made(data), 5, 3, None) == 5


def test_the_data_of_one_broker_is_never_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = made(tmp_path, ".")
    assert brokers_to_run(settings, None, 3, None) == 1
    assert "continues standalone" in caplog.text
    assert brokers_to_run(settings, 1, 3, None) == 1
    with pytest.raises(CommandError, match="which a cluster of 3 would not use"):
        brokers_to_run(settings, 3, 3, None)


def test_the_data_of_a_cluster_is_never_left_behind(tmp_path: Path) -> None:
    settings = made(tmp_path, "broker-1", "broker-2", "broker-3", "broker-4")
    assert brokers_to_run(settings, None, 3, None) == 4
    assert brokers_to_run(settings, 6, 3, None) == 6
    for fewer in (1, 3):
        with pytest.raises(CommandError, match=r"has the data of 4 brokers.*`--brokers 4`"):
            brokers_to_run(settings, fewer, 3, None)


def test_a_file_for_one_broker_starts_one(tmp_path: Path) -> None:
    for name in ("node.id", "ottla.coordination"):
        settings = BrokerSettings(data_dir=str(tmp_path), properties={name: "7"})
        assert brokers_to_run(settings, None, 3, Path("one.properties")) == 1
        assert brokers_to_run(settings, 1, 3, Path("one.properties")) == 1
        with pytest.raises(CommandError, match=f"one.properties sets {name}, so it configures a single broker"):
            brokers_to_run(settings, 2, 3, Path("one.properties"))


def test_each_broker_of_a_machine_gets_a_file(tmp_path: Path) -> None:
    data = tmp_path / "a\\b"
    settings = BrokerSettings(
        data_dir=str(data),
        port=9092,
        properties={"log.retention.ms": "1000", "default.replication.factor": "2"},
        advertised_host="example.org",
        advertised_port=19092,
    )
    Cluster(settings, 3, "info")
    found = [read_config_file(data / f"broker-{number}.properties") for number in (1, 2, 3)]
    assert [each.listeners.client.port for each in found] == [9092, 9093, 9094]
    assert [each.listeners.client[4:] for each in found] == [
        ("example.org", 19092),
        ("example.org", 19093),
        ("example.org", 19094),
    ]
    assert [each.data_dir for each in found] == [str(data / f"broker-{number}") for number in (1, 2, 3)]
    assert found[1].properties == {
        "node.id": "2",
        "log.retention.ms": "1000",
        "default.replication.factor": "2",
        "offsets.topic.replication.factor": "3",
        "ottla.coordination": f"sqlite:{data / 'coordination'}",
        "ottla.host.shared": "true",
    }
    with pytest.raises(CommandError, match="not enough ports"):
        Cluster(BrokerSettings(data_dir=str(tmp_path), port=65534), 3, "info")


# -- plans in files ------------------------------------------------------------------------------------------


def test_a_plan_of_kafkas_tool(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    assert read_plan(path) == {TopicPartition("orders", 1): (3, 1)}
    path.write_text(json.dumps(plan_as_json(read_plan(path))))
    assert read_plan(path) == {TopicPartition("orders", 1): (3, 1)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a reassignment plan"),
        ('{"version": 2, "partitions": []}', "is not a reassignment plan"),
        ('{"partitions": []}', "contains no partitions"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "partition 1 of the list: it needs topic"),
        ('{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}', "partition a number"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}',
            "replicas must be a list of broker ids",
        ),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "replicas must be a list of broker ids"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}',
            "log_dirs is not supported",
        ),
    ],
)
def test_a_plan_that_is_none(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(CommandError, match=expected):
        read_plan(path)
    with pytest.raises(CommandError, match="cannot be read"):
        read_plan(tmp_path / "missing.json")


def test_a_plan_with_a_partition_twice(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"partitions": PLAN["partitions"] * 2}))  # type: ignore[operator] # a list
    with pytest.raises(CommandError, match="contains orders-1 twice"):
        read_plan(path)


# -- systemd -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_notice_to_systemd(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@ottla-test-{os.getpid()}" if kind == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if kind == "abstract" else name)
        receiver.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify_service("READY=1", "STATUS=serves")
        assert receiver.recv(100) == b"READY=1\nSTATUS=serves"
    assert not notify_service("STOPPING=1") or kind == "path"
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert not notify_service("READY=1")
