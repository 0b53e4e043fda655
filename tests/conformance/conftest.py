"""One broker process and one client of each kind for all tests of this folder.

Set OTTLA_CONFORMANCE_BOOTSTRAP=host:port to run the same tests against another broker: they pass against Apache
Kafka, which is how we know that they ask for Kafka's behaviour and not for ours.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from ottla.testing.broker_process import BrokerProcess
from tests.conformance.clients import kcat_client
from tests.conformance.clients.aiokafka_client import AiokafkaClient
from tests.conformance.clients.confluent_client import ConfluentClient
from tests.conformance.clients.interface import Ability, Client
from tests.conformance.clients.java_client import JavaClient, why_missing
from tests.conformance.clients.kafka_python_client import KafkaPythonClient
from tests.conformance.clients.kcat_client import KcatClient

KINDS: tuple[type[Client], ...] = (ConfluentClient, AiokafkaClient, KafkaPythonClient, KcatClient, JavaClient)
NAMES = tuple(kind.name for kind in KINDS)

ClientOf = Callable[[str], Client]
TopicOf = Callable[[str], str]


def named(*abilities: Ability) -> list[str]:
    """The clients that have these abilities, for `parametrize`."""
    return [kind.name for kind in KINDS if set(abilities) <= kind.abilities]


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if elsewhere := os.environ.get("OTTLA_CONFORMANCE_BOOTSTRAP"):
        yield elsewhere
        return
    with BrokerProcess(tmp_path_factory.mktemp("conformance") / "data") as broker:
        yield broker.bootstrap
        exit_code = broker.stop()
    assert exit_code == 0, f"the broker ended with {exit_code}:\n{broker.log()[-4000:]}"
    assert "Traceback" not in broker.log(), broker.log()[-8000:]


@pytest.fixture(scope="session")
def client_of(bootstrap: str) -> Iterator[ClientOf]:
    """A client by name, made on first use; skips the test if this machine does not have it."""
    made: dict[str, Client] = {}
    missing = {"kcat": kcat_client.MISSING, "java": why_missing()}

    def client(name: str) -> Client:
        if reason := missing.get(name):
            pytest.skip(reason)
        if name not in made:
            (kind,) = (kind for kind in KINDS if kind.name == name)
            made[name] = kind(bootstrap)
        return made[name]

    yield client
    for one in made.values():
        one.close()


@pytest.fixture(scope="session")
def fresh_topic() -> TopicOf:
    """A topic name that nobody used, from a word that says what it is for."""
    numbers = itertools.count()
    run = os.urandom(3).hex()
    return lambda word: f"{word}-{run}-{next(numbers)}"
