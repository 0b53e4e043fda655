"""The listeners of a broker, under Kafka's names."""

from __future__ import annotations

import pytest

from ottla.protocol.model.errors import Refused
from ottla.protocol.model.listeners import ListenerAddress, ListenerTable, SecurityProtocol, parse_listeners

TWO = {
    "listeners": "CLIENT://0.0.0.0:9092, BROKER://[fd00::1]:9093",
    "advertised.listeners": "CLIENT://kafka.example.org:19092,BROKER://broker-1:9093",
    "inter.broker.listener.name": "BROKER",
    "listener.security.protocol.map": "CLIENT:SASL_SSL,BROKER:PLAINTEXT",
}
PLAINTEXT = SecurityProtocol.PLAINTEXT


def parsed(values: dict[str, str]) -> ListenerTable:
    found = parse_listeners(values)
    assert isinstance(found, ListenerTable), found
    return found


def test_one_listener_is_for_clients_and_brokers() -> None:
    assert parsed({}) == ListenerTable()
    assert parsed({"listeners": "PLAINTEXT://:9092"}).client == ListenerAddress(port=9092)
    named = {"listeners": "SSL://h:1", "inter.broker.listener.name": "ssl"}
    assert parsed(named) == ListenerTable(ListenerAddress("SSL", SecurityProtocol.SSL, "h", 1), (), "SSL")
    advertised = parsed({"advertised.listeners": "PLAINTEXT://h:0"})
    assert advertised.client == ListenerAddress("PLAINTEXT", PLAINTEXT, None, None, "h", None)


def test_brokers_may_have_one_of_their_own() -> None:
    client = ListenerAddress("CLIENT", SecurityProtocol.SASL_SSL, "0.0.0.0", 9092, "kafka.example.org", 19092)
    broker = ListenerAddress("BROKER", PLAINTEXT, "fd00::1", 9093, "broker-1", 9093)
    assert parsed(TWO) == ListenerTable(client, (broker,), "BROKER")
    assert parsed({**TWO, "inter.broker.listener.name": "CLIENT"}) == ListenerTable(broker, (client,), "CLIENT")
    by_default = {"listeners": "PLAINTEXT://h:1,SASL_SSL://h:2,SSL://h:3"}
    assert parsed(by_default).inter_broker == "PLAINTEXT"
    by_protocol = parsed({**by_default, "security.inter.broker.protocol": "SSL"})
    assert by_protocol.inter_broker == "SSL"
    assert [each.name for each in by_protocol.all()] == ["PLAINTEXT", "SASL_SSL", "SSL"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inter.broker.listener.name": ""}, "inter.broker.listener.name= is not a name in listeners"),
        ({"inter.broker.listener.name": "OTHER"}, "OTHER is not a name in listeners"),
        ({"security.inter.broker.protocol": "SSL"}, "or security.inter.broker.protocol, not both"),
        ({"advertised.listeners": "OTHER://h:1"}, "advertised.listeners has OTHER, which listeners does not have"),
        ({"listeners": "CLIENT://h:1,client://h:2"}, "listeners has CLIENT twice"),
        ({"listeners": "CLIENT://h:1,BROKER://h"}, "listeners=BROKER://h is not NAME://HOST:PORT"),
        ({"listeners": "CLIENT://h:1,BROKER://h:2,X://h:3"}, "set the protocol of the listener X"),
        ({"listener.security.protocol.map": "CLIENT:TLS,BROKER:PLAINTEXT"}, "the protocol of the listener CLIENT"),
        ({"listener.security.protocol.map": ""}, "listener.security.protocol.map=CLIENT:PROTOCOL"),
        ({"listener.security.protocol.map": "CLIENT"}, "is not a list of NAME:PROTOCOL"),
    ],
)
def test_mistakes(changes: dict[str, str], words: str) -> None:
    refused = parse_listeners({**TWO, **changes})
    assert isinstance(refused, Refused)
    assert words in (refused.message or "")


def test_several_listeners_need_a_name_for_brokers() -> None:
    without = {name: value for name, value in TWO.items() if name != "inter.broker.listener.name"}
    refused = parse_listeners(without)
    assert isinstance(refused, Refused)
    assert "choose which of CLIENT and BROKER is for the other brokers" in (refused.message or "")
