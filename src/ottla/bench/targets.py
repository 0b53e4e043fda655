"""The brokers of a measurement: one broker, or three with a replica on each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from ottla.bench.calls import Caller
from ottla.bench.leaders import leader_of, wait_until_in_sync
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.cluster_processes import ClusterProcesses

REPLICAS = 3
MIN_IN_SYNC = 2


class Target(ABC):
    """The brokers that hold the topics of a measurement."""

    prefix: str
    """The prefix of the groups of rows measured there."""

    @abstractmethod
    def create(self, topics: Sequence[str], configs: Mapping[str, str]) -> None:
        """Creates topics, each with one partition."""

    @abstractmethod
    def delete(self, topics: Sequence[str]) -> None:
        """Deletes topics that `create` created."""
        ...

    @abstractmethod
    def leader(self, topic: str) -> BrokerProcess:
        """Returns the broker that accepts writes to the topic."""

    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """Returns the processes whose CPU time counts."""

    def caller(self, topic: str) -> Caller:
        """Opens a connection to the leader of a topic."""
        return Caller(self.leader(topic).port)


class OneBroker(Target):
    """A single broker."""

    prefix = ""

    def __init__(self, start: Callable[[], BrokerProcess]) -> None:
        self._start = start

    @property
    def _broker(self) -> BrokerProcess:
        """The broker, which the first access starts."""
        return self._start()

    def create(self, topics: Sequence[str], configs: Mapping[str, str]) -> None:
        with Caller(self._broker.port) as caller:
            caller.create_topics(topics, 1, configs)

    def delete(self, topics: Sequence[str]) -> None:
        with Caller(self._broker.port) as caller:
            caller.delete_topics(topics)

    def leader(self, topic: str) -> BrokerProcess:
        return self._broker

    def pids(self) -> tuple[int, ...]:
        return (self._broker.pid,)


class ThreeBrokers(Target):
    """Three replicas with min.insync.replicas=2. Leaders stay where they are."""

    prefix = "three brokers, "

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self._leaders: dict[str, int] = {}

    def create(self, topics: Sequence[str], configs: Mapping[str, str]) -> None:
        replicated = {**configs, "min.insync.replicas": str(MIN_IN_SYNC)}
        with Caller(self._cluster.brokers[0].port) as caller:
            caller.create_topics(topics, 1, replicated, replicas=REPLICAS)
        for topic in topics:
            wait_until_in_sync(self._cluster.bootstrap, topic, REPLICAS)
            self._leaders[topic], _ = leader_of(self._cluster.bootstrap, topic)

    def delete(self, topics: Sequence[str]) -> None:
        with Caller(self._cluster.brokers[0].port) as caller:
            caller.delete_topics(topics)
        for topic in topics:
            del self._leaders[topic]

    def leader(self, topic: str) -> BrokerProcess:
        return self._cluster.broker(self._leaders[topic])

    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self._cluster.brokers)
