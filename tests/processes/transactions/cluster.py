"""Three brokers that are killed, paused, and given other partitions to lead."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

from ottla.bench.calls import Caller
from ottla.bench.leaders import any_broker, ask_leaders, elect_preferred, reassign
from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.testing.cluster_processes import ClusterProcesses

BROKERS = 3
BROKER_SESSION_MS = 3000
COORDINATOR_PARTITIONS = 6
STOP_S = 60.0
SETTINGS = {
    "broker.session.timeout.ms": str(BROKER_SESSION_MS),
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "200",
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "transaction.state.log.num.partitions": str(COORDINATOR_PARTITIONS),
    "transaction.state.log.replication.factor": str(BROKERS),
    # What coordinators know is compacted all the while, and loaded by those who take over.
    "offsets.topic.segment.bytes": "16384",
    "transaction.state.log.segment.bytes": "16384",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
}


class ChainCluster:
    def __init__(self, directory: Path, session_ms: int, chance: Random) -> None:
        config = SETTINGS | {
            "group.consumer.session.timeout.ms": str(session_ms),
            "group.consumer.heartbeat.interval.ms": str(session_ms // 6),
        }
        self._chance = chance
        self._cluster = ClusterProcesses(directory, BROKERS, config=config)
        self._dead: int | None = None
        self._paused: int | None = None
        try:
            self._cluster.start()
        except BaseException:
            self._cluster.kill()
            raise
        self.bootstrap = self._cluster.bootstrap

    def kill_one(self) -> int:
        """One at a time: of three copies two are needed."""
        self.all_return()
        self._dead = self._chance.randint(1, BROKERS)
        self._cluster.broker(self._dead).kill()
        return self._dead

    def pause_one(self) -> int:
        self.all_return()
        self._paused = self._chance.randint(1, BROKERS)
        os.kill(self._cluster.broker(self._paused).pid, signal.SIGSTOP)
        return self._paused

    def all_return(self) -> None:
        if self._paused is not None:
            os.kill(self._cluster.broker(self._paused).pid, signal.SIGCONT)
            self._paused = None
        if self._dead is not None:
            self._cluster.broker(self._dead).start()
            self._dead = None

    @property
    def _awake(self) -> str:
        """One that is paused takes a connection, and answers when it goes on."""
        awake = set(range(1, BROKERS + 1)) - {self._paused, self._dead}
        brokers = (self._cluster.broker(number) for number in sorted(awake))
        return ",".join(broker.bootstrap for broker in brokers)

    def move_leaders(self, topics: list[str]) -> int:
        """Of about half of the partitions of these topics, and of the coordinators. How many were asked for."""
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
        except OSError:  # one that is down at the moment
            return 0

    def close(self) -> list[str]:
        """Ends all; returns what is wrong with how they ended."""
        try:
            self.all_return()
            codes = self._cluster.stop(STOP_S)
        finally:
            self._cluster.kill()
        wrong = [f"brokers ended with {codes}"] if any(codes) else []
        log = self._cluster.log()
        if "Traceback" in log:
            at = log.index("Traceback")
            wrong.append(f"a broker logged {log[max(at - 500, 0) : at + 3000]}")
        return wrong
