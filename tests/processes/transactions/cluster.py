"""Three brokers, of Ottla or of Apache Kafka, that are killed, paused, and get other partitions to lead."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

from ottla.bench.calls import Caller
from ottla.bench.leaders import any_broker, ask_leaders, elect_preferred, reassign
from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.machines.groups.placement import OFFSETS_TOPIC
from tests.processes.groups.worlds import BROKER_SESSION_MS, BROKERS, KafkaWorld, OttlaWorld, World

__all__ = ["BROKER_SESSION_MS", "ChainCluster"]

SETTINGS = {
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.replication.factor": str(BROKERS),
    # Small segments, so that coordinators' state is compacted during the run and loaded by their successors.
    "offsets.topic.segment.bytes": "16384",
    "transaction.state.log.segment.bytes": "16384",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
}


class ChainCluster:
    def __init__(self, directory: Path, session_ms: int, chance: Random, kafka: Path | None = None) -> None:
        """`kafka`: a folder with the jars of Apache Kafka's broker."""
        self._world: World
        if kafka is None:
            self._world = OttlaWorld(directory, session_ms, SETTINGS)
        else:
            self._world = KafkaWorld(directory, session_ms, kafka)
        self._chance = chance
        self._dead: int | None = None
        self._paused: int | None = None
        self.bootstrap = self._world.bootstrap

    def kill_one(self) -> int:
        """Kills a broker. One at a time, since two of three replicas are needed."""
        self.all_return()
        self._dead = self._chance.randint(1, BROKERS)
        self._world.kill(self._dead)
        return self._dead

    def pause_one(self) -> int:
        self.all_return()
        self._paused = self._chance.randint(1, BROKERS)
        os.kill(self._world.pid(self._paused), signal.SIGSTOP)
        return self._paused

    def all_return(self) -> None:
        if self._paused is not None:
            os.kill(self._world.pid(self._paused), signal.SIGCONT)
            self._paused = None
        if self._dead is not None:
            self._world.start(self._dead)
            self._dead = None

    @property
    def _awake(self) -> str:
        """Returns the running brokers. A paused one accepts connections but answers only when it resumes."""
        away = (self._paused, self._dead)
        addresses = enumerate(self.bootstrap.split(","), 1)
        return ",".join(address for number, address in addresses if number not in away)

    def move_leaders(self, topics: list[str]) -> int:
        """Moves the leaders of about half of the partitions of these topics and of the coordinators. Returns how many
        moves were requested."""
        try:
            with any_broker(self._awake) as caller:
                leaders = ask_leaders(caller, [*topics, OFFSETS_TOPIC, STATE_TOPIC])
            orders = {}
            for place, led in leaders.partitions.items():
                others = [each for each in led.in_sync if each != led.leader]
                if others and self._chance.random() < 0.5:
                    first = self._chance.choice(others)
                    orders[place] = (first, *(each for each in led.replicas if each != first))
            address = leaders.addresses.get(leaders.controller)
            if not orders or address is None or leaders.controller == self._paused:
                return 0
            host, port = address
            with Caller(port, host) as caller:
                reassign(caller, orders)
                elect_preferred(caller, list(orders))
            return len(orders)
        except OSError:  # the broker is down at the moment
            return 0

    def close(self) -> list[str]:
        """Ends all brokers; returns the problems with how they ended."""
        try:
            self.all_return()
        finally:
            wrong = self._world.close()
        return wrong
