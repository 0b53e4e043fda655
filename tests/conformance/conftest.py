"""Brokers and one client of each kind for all tests of this folder.

Most tests run twice: on one broker, and on three whose leaders move all the time (`Mover`). Where Kafka itself
guarantees less when a leader moves (acks=0, acks=1, retries without idempotence), the mark `leaders_at_rest` stops the
moves.

Set OTTLA_CONFORMANCE_BOOTSTRAP=host:port to run the same tests against another broker. They pass against Apache Kafka,
which shows that they expect Kafka's behaviour and not Ottla's.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.testing.broker_process import BrokerProcess
from ottla.testing.cluster_processes import ClusterProcesses
from tests.conformance.clients import kcat_client
from tests.conformance.clients.aiokafka_client import AiokafkaClient
from tests.conformance.clients.confluent_client import ConfluentClient
from tests.conformance.clients.interface import Ability, Client
from tests.conformance.clients.java_client import JavaClient, why_missing
from tests.conformance.clients.kafka_python_client import KafkaPythonClient
from tests.conformance.clients.kcat_client import KcatClient
from tests.conformance.leaders import EXPECTED, Mover

KINDS: tuple[type[Client], ...] = (ConfluentClient, AiokafkaClient, KafkaPythonClient, KcatClient, JavaClient)
NAMES = tuple(kind.name for kind in KINDS)

ClientOf = Callable[[str], Client]
TopicOf = Callable[[str], str]


def named(*abilities: Ability) -> list[str]:
    """Returns the clients that have these abilities, for `parametrize`."""
    return [kind.name for kind in KINDS if set(abilities) <= kind.abilities]


READY_S = 240.0
"""Timeout for a broker to serve on a busy machine."""
ONE_BROKER = "one broker"
LEADERS_MOVE = "three brokers, leaders moving"


@dataclass(frozen=True, slots=True)
class World:
    """The brokers that the tests run on."""

    bootstrap: str
    replicas: int = 1
    cluster: ClusterProcesses | None = None
    mover: Mover | None = None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "worlds(*names): on which brokers a test runs; on one if it does not say")
    config.addinivalue_line("markers", "leaders_at_rest(why): leaders of a cluster do not move during this test")


def on_brokers(test: pytest.Item) -> bool:
    """Returns whether a test runs on brokers; the tests of the coordination stores have other worlds."""
    return "world" in getattr(test, "fixturenames", ()) and test.path.parent == Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames and metafunc.definition.path.parent == Path(__file__).parent:
        mark = metafunc.definition.get_closest_marker("worlds")
        names = (ONE_BROKER,) if mark is None or "OTTLA_CONFORMANCE_BOOTSTRAP" in os.environ else mark.args
        metafunc.parametrize("world", names, indirect=True, scope="session")


WorldOf = Callable[[str], World]
Clients = dict[tuple[str, str], Client]


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[WorldOf]:
    """Worlds by name, created on first use and kept: most files run on one after the other."""
    made: dict[str, World] = {}
    with ExitStack() as ends:

        def world(name: str) -> World:
            if name not in made:
                directory = tmp_path_factory.mktemp("conformance")
                begun = one_broker(directory) if name == ONE_BROKER else three_brokers(directory, seed)
                made[name] = ends.enter_context(begun)
            return made[name]

        yield world


@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest, worlds: WorldOf) -> World:
    if elsewhere := os.environ.get("OTTLA_CONFORMANCE_BOOTSTRAP"):
        return World(elsewhere)
    return worlds(request.param)


@contextmanager
def one_broker(directory: Path) -> Iterator[World]:
    with BrokerProcess(directory / "data", ready_timeout_s=READY_S) as broker:
        yield World(broker.bootstrap)
        exit_code = broker.stop()
    assert exit_code == 0, f"the broker ended with {exit_code}:\n{broker.log()[-4000:]}"
    assert "Traceback" not in broker.log(), broker.log()[-8000:]


@contextmanager
def three_brokers(directory: Path, seed: int) -> Iterator[World]:
    with ClusterProcesses(directory, ready_timeout_s=READY_S) as cluster:
        mover = Mover(cluster.bootstrap, random.Random(f"{seed} mover"))
        yield World(cluster.bootstrap, replicas=3, cluster=cluster, mover=mover)
        mover.end()
        exit_codes = cluster.stop()
    print(f"{mover.moves} leaders moved; {dict(mover.answers)}")
    assert exit_codes == [0, 0, 0], cluster.log()[-4000:]
    assert "Traceback" not in cluster.log(), cluster.log()[-8000:]
    assert mover.moves > 0 or not mover.has_run, f"no leader moved: {mover.answers}"
    assert set(mover.answers) <= EXPECTED, mover.answers


@pytest.fixture(autouse=True)
def _leaders_move(request: pytest.FixtureRequest) -> Iterator[None]:
    """Moves leaders during a test, not between tests, and not in those marked `leaders_at_rest`."""
    mover: Mover | None = None
    if on_brokers(request.node):
        mover = request.getfixturevalue("world").mover
    if mover is None or request.node.get_closest_marker("leaders_at_rest") is not None:
        yield
        return
    mover.go_on()
    yield
    mover.pause()


@pytest.fixture(scope="session")
def bootstrap(world: World) -> str:
    return world.bootstrap


@pytest.fixture(scope="session")
def clients(worlds: WorldOf) -> Iterator[Clients]:
    """Clients by bootstrap address and name. They are closed before their brokers end."""
    made: Clients = {}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture(scope="session")
def client_of(world: World, clients: Clients) -> ClientOf:
    """Returns a client by name, created on first use; skips the test if it is not installed."""
    missing = {"kcat": kcat_client.MISSING, "java": why_missing()}

    def client(name: str) -> Client:
        if reason := missing.get(name):
            pytest.skip(reason)
        if (world.bootstrap, name) not in clients:
            (kind,) = (kind for kind in KINDS if kind.name == name)
            clients[world.bootstrap, name] = kind(world.bootstrap, world.replicas)
        return clients[world.bootstrap, name]

    return client


@pytest.fixture(scope="session")
def fresh_topic(world: World) -> TopicOf:
    """Returns an unused topic name that contains the given word."""
    numbers = itertools.count()
    run = os.urandom(3).hex()

    def fresh(word: str) -> str:
        name = f"{word}-{run}-{next(numbers)}"
        if world.mover is not None:
            world.mover.add(name)
        return name

    return fresh
