"""The listeners of a broker, under Kafka's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.failures import CommandError
from ottla.cli.up.listeners import Listener, Listeners, parse_listeners

FILE = Path("broker.properties")
TWO = {
    "listeners": "CLIENT://0.0.0.0:9092, BROKER://[fd00::1]:9093",
    "advertised.listeners": "CLIENT://kafka.example.org:19092,BROKER://broker-1:9093",
    "inter.broker.listener.name": "BROKER",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT",
}


def test_one_listener_is_for_clients_and_brokers() -> None:
    assert parse_listeners({}, FILE) == Listeners()
    assert parse_listeners({"listeners": "PLAINTEXT://:9092"}, FILE) == Listeners(Listener(None, 9092))
    named = {"listeners": "PLAINTEXT://h:1", "inter.broker.listener.name": "PLAINTEXT"}
    assert parse_listeners(named, FILE) == Listeners(Listener("h", 1))
    advertised = {"advertised.listeners": "PLAINTEXT://h:0"}
    assert parse_listeners(advertised, FILE) == Listeners(Listener(None, None, "h", None))


def test_brokers_may_have_one_of_their_own() -> None:
    assert parse_listeners(TWO, FILE) == Listeners(
        Listener("0.0.0.0", 9092, "kafka.example.org", 19092), Listener("fd00::1", 9093, "broker-1", 9093)
    )
    swapped = {**TWO, "inter.broker.listener.name": "CLIENT"}
    assert parse_listeners(swapped, FILE).client.advertised_host == "broker-1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inter.broker.listener.name": ""}, "inter.broker.listener.name= is not a name in listeners"),
        ({"inter.broker.listener.name": "OTHER"}, "OTHER is not a name in listeners"),
        ({"advertised.listeners": "OTHER://h:1"}, "advertised.listeners has OTHER, which listeners does not have"),
        ({"listeners": "CLIENT://h:1,CLIENT://h:2"}, "listeners has CLIENT twice"),
        ({"listeners": "CLIENT://h:1,BROKER://h"}, "listeners=BROKER://h is not PLAINTEXT://HOST:PORT"),
        ({"listeners": "CLIENT://h:1,BROKER://h:2,X://h:3"}, "set the protocol of the listener X"),
        ({"listener.security.protocol.map": "CLIENT:SSL,BROKER:PLAINTEXT"}, "CLIENT uses SSL"),
        ({"listener.security.protocol.map": ""}, "listener.security.protocol.map=CLIENT:PLAINTEXT"),
    ],
)
def test_mistakes(changes: dict[str, str], words: str) -> None:
    with pytest.raises(CommandError, match=r"^broker\.properties: ") as caught:
        parse_listeners({**TWO, **changes}, FILE)
    assert words in str(caught.value)


def test_two_listeners_need_a_name_for_brokers() -> None:
    without = {name: value for name, value in TWO.items() if name != "inter.broker.listener.name"}
    with pytest.raises(CommandError, match="choose which of CLIENT and BROKER is for the other brokers"):
        parse_listeners(without, FILE)
    three = "listeners", "CLIENT://h:1,BROKER://h:2,PLAINTEXT://h:3"
    with pytest.raises(CommandError, match="listeners has 3"):
        parse_listeners({**TWO, three[0]: three[1]}, FILE)
