"""Configuration files in both syntaxes, and mistakes reported with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.failures import CommandError
from ottla.cli.up.config_file import Setting, parse_properties, read_config_file
from ottla.protocol.model.broker_config import BrokerConfig, parse_broker_config


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_properties_as_java_reads_them() -> None:
    text = (
        "# a comment\n"
        "! another\n"
        "\n"
        "plain=1\n"
        "  indented = two words  \n"
        "colon:3\n"
        "blank 4\n"
        "long=a,\\\n"
        "    b\n"
        "escaped\\=key=\\u0041\\tB\\\\\n"
        "empty=\n"
        "last=5"
    )
    assert list(parse_properties(text)) == [
        Setting("plain", "1", 4),
        Setting("indented", "two words", 5),
        Setting("colon", "3", 6),
        Setting("blank", "4", 7),
        Setting("long", "a,b", 8),
        Setting("escaped=key", "A\tB\\", 10),
        Setting("empty", "", 11),
        Setting("last", "5", 12),
    ]


def test_a_file_of_kafkas_names(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "server.properties",
        "listeners=PLAINTEXT://0.0.0.0:9094\nadvertised.listeners=PLAINTEXT://broker.example:9094\n"
        "log.dirs=somewhere\nlog.retention.ms=60000\nnum.partitions=3\n",
    )
    found = read_config_file(path)
    client = found.listeners.client
    assert (client.host, client.port, client.advertised_host) == ("0.0.0.0", 9094, "broker.example")
    assert found.data_dir == "somewhere"
    assert found.properties == {"log.retention.ms": "60000", "num.partitions": "3"}


def test_the_same_in_toml(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "ottla.toml",
        'listeners = "PLAINTEXT://:9094"\nnum.partitions = 3\n"auto.create.topics.enable" = false\n'
        "[log]\nretention.ms = 60_000\n[ottla.journal]\nbytes = 16777216\n",
    )
    found = read_config_file(path)
    assert found.listeners.client[2:4] == (None, 9094)
    assert found.properties == {
        "num.partitions": "3",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "60000",
        "ottla.journal.bytes": "16777216",
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.properties", "\nottla.journal.byte=5\n", "line 2: .*ottla.journal.byte.*ottla.journal.bytes"),
        ("a.toml", "[ottla]\nhost = 'a'\ndurabilty = 'disk'\n", "line 3: .*ottla.durabilty.*ottla.durability"),
        ("a.properties", "num.partitions=many\n", "line 1: .*num.partitions"),
        ("a.toml", "num.partitions = \n", "not valid TOML.*line 1"),
        ("a.properties", "listeners=PLAINTEXT://host\n", "is not NAME://HOST:PORT"),
        ("a.properties", "listeners=PLAINTEXT://host:\u0661\n", "is not NAME://HOST:PORT"),
        ("a.properties", "listeners=IN://:1\n", "listener.security.protocol.map=IN:PROTOCOL"),
        ("a.properties", "listeners=IN://:1\nlistener.security.protocol.map=IN:TLS\n", "IN:PROTOCOL"),
        ("a.properties", "listeners=IN://:1\nlistener.security.protocol.map=IN\n", "not a list of NAME:PROTOCOL"),
        ("a.properties", "listeners=PLAINTEXT://:1,PLAINTEXT://:2\n", "has PLAINTEXT twice"),
        ("a.properties", "listeners=C://:1\ncontroller.listener.names=C\n", "only controller listeners"),
        ("a.properties", "broker.id=2\nnode.id=3\n", "must be equal"),
        ("a.properties", "log.dirs=a,b\n", "several directories"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        read_config_file(written(tmp_path, name, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read: No such file"):
        read_config_file(tmp_path / "missing.properties")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("authorizer.class.name=com.example.Authorizer", "it must be one of org.apache.kafka"),
        (
            "authorizer.clas.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "Did you mean authorizer.class",
        ),
        ("super.user=User:admin", "Did you mean super.users"),
        ("super.users=admin", "it must be a list of principals, such as User:alice;User:bob"),
        ("sasl.enabled.mechanisms=GSSAPI", "must be one of PLAIN"),
        ("sasl.enabled.mechanism=SCRAM-SHA-512", "does not have this part of SASL"),
        ("sasl.jaas.config=x", "listener.name.NAME.MECHANISM.sasl.jaas.config"),
        ("sasl.server.callback.handler.class=com.example.Handler", "does not have this part of SASL"),
        ("ssl.keystore.type=JKS", "must be one of PEM, PKCS12"),
        ("ssl.client.auth=yes", "must be one of none, requested, required"),
        ("ssl.enabled.protocols=TLSv1.1", "must be one of TLSv1.2, TLSv1.3"),
        ("ssl.engine.factory.class=com.example.Engine", "loads no classes of Java"),
        ("listener.name.external.ssl.keystore.type=JKS", "must be one of PEM, PKCS12"),
        ("listener.name.external.ssl.key.store=/keys", "loads no classes of Java"),
        ("listener.name.external.gssapi.sasl.jaas.config=x", "does not have this part of SASL"),
        ("create.topic.policy.class.name=com.example.Policy", "would not be enforced"),
        ("config.providers=file", "does not resolve variables"),
        ("remote.log.storage.system.enable=true", "tiered storage"),
        ("log.local.retention.ms=1000", "tiered storage"),
        ("process.roles=controller", "there are no dedicated controllers"),
    ],
)
def test_a_setting_that_would_leave_the_broker_open_is_refused(tmp_path: Path, setting: str, reason: str) -> None:
    with pytest.raises(CommandError, match=f"line 2: .*{reason}"):
        read_config_file(written(tmp_path, "server.properties", f"num.partitions=1\n{setting}\n"))


def test_values_that_say_what_ottla_does_anyway_are_taken_without_a_word(tmp_path: Path) -> None:
    text = (
        "ssl.client.auth=none\nsecurity.inter.broker.protocol=PLAINTEXT\n"
        "process.roles=broker, controller\nremote.log.storage.system.enable=false\nlog.local.retention.ms=-2\n"
    )
    found = read_config_file(written(tmp_path, "server.properties", text))
    assert found.notices == ()
    assert found.properties == {"log.local.retention.ms": "-2", "ssl.client.auth": "none"}


def test_settings_without_effect_are_named_in_one_line(tmp_path: Path) -> None:
    text = "num.io.threads=8\nbackground.threads=4\nsocket.send.buffer.bytes=1\nsasl.kerberos.service.name=kafka\n"
    found = read_config_file(written(tmp_path, "server.properties", text))
    (line,) = found.notices
    assert line.startswith("these settings of Kafka have no effect in Ottla: background.threads, num.io.threads (")
    assert "socket.send.buffer.bytes" in line
    assert "sasl.kerberos.service.name (Kerberos is not available)" in line
    assert found.properties == {}


def test_an_unknown_name_is_reported_with_what_was_meant(tmp_path: Path) -> None:
    found = read_config_file(written(tmp_path, "server.properties", "log.retentoin.ms=5\nplugin.of.mine=1\n"))
    assert found.notices == (
        "the setting log.retentoin.ms is not known to Ottla or Kafka and has no effect: did you mean log.retention.ms?",
        "the setting plugin.of.mine is not known to Ottla or Kafka and has no effect",
    )


def test_a_broker_starts_with_the_file_of_kafkas_quick_start(tmp_path: Path) -> None:
    text = (
        "process.roles=broker,controller\nbroker.id=4\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ninter.broker.listener.name=PLAINTEXT\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL\n"
        "num.network.threads=3\nnum.io.threads=8\nsocket.send.buffer.bytes=102400\n"
        "socket.receive.buffer.bytes=102400\nsocket.request.max.bytes=104857600\nlog.dirs=somewhere\n"
        "num.partitions=1\nnum.recovery.threads.per.data.dir=2\noffsets.topic.replication.factor=1\n"
        "share.coordinator.state.topic.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "log.retention.hours=168\nlog.segment.bytes=1073741824\nlog.retention.check.interval.ms=300000\n"
    )
    found = read_config_file(written(tmp_path, "server.properties", text))
    assert found.listeners.client[2:] == (None, 9092, "localhost", 9092)
    assert found.listeners.others == ()
    assert found.properties["node.id"] == "4"
    assert "controller.listener.names" in found.notices[0]
    assert isinstance(parse_broker_config(found.properties), BrokerConfig)
