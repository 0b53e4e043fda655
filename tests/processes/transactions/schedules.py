"""Schedules of faults for a chain: a short fixed one with each fault once, and long random ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.processes.transactions.chain import Chain
from tests.processes.transactions.cluster import BROKER_SESSION_MS, ChainCluster

BEYOND_SESSION_S = BROKER_SESSION_MS / 1000 + 1.5
PROGRESS = 30

Say = Callable[[str], None]


def short(chain: Chain, cluster: ChainCluster) -> None:
    """Workers are killed, brokers are killed and paused beyond their sessions, leaders and coordinators move."""
    chain.wait_for_output(1)
    chain.kill_worker()
    cluster.move_leaders(chain.topics)
    chain.wait_for_output(PROGRESS)
    cluster.kill_one()
    chain.kill_worker()
    time.sleep(1)
    cluster.all_return()
    chain.pause_worker()
    cluster.pause_one()
    time.sleep(BEYOND_SESSION_S)
    cluster.all_return()
    chain.resume_workers()
    cluster.move_leaders(chain.topics)


class Chaos:
    """Random faults for a given time."""

    def __init__(self, chain: Chain, cluster: ChainCluster, chance: Random, say: Say) -> None:
        self._chain = chain
        self._cluster = cluster
        self._chance = chance
        self._say = say
        self.done: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        actions = {
            self._kill_worker: 6,
            self._pause_worker: 2,
            self._resume_workers: 2,
            self._move_leaders: 5,
            self._kill_broker: 2,
            self._pause_broker: 2,
            self._rest: 1,
        }
        self._chain.wait_for_output(1)
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            (act,) = self._chance.choices(list(actions), list(actions.values()))
            act()
            self.done[act.__name__.strip("_").replace("_", " ")] += 1
            self._chain.tend()
            time.sleep(self._chance.uniform(0, 1.5))
        self._cluster.all_return()
        self._chain.resume_workers()
        self._chain.wait_for_output(PROGRESS)

    def _kill_worker(self) -> None:
        self._chain.kill_worker()

    def _pause_worker(self) -> None:
        self._chain.pause_worker()

    def _resume_workers(self) -> None:
        self._chain.resume_workers()

    def _move_leaders(self) -> None:
        for _ in range(self._chance.randint(1, 6)):
            self._cluster.move_leaders(self._chain.topics)
            time.sleep(self._chance.uniform(0, 0.4))

    def _kill_broker(self) -> None:
        self._say(f"broker {self._cluster.kill_one()} is killed")
        self._back_after(self._chance.uniform(0, BEYOND_SESSION_S))

    def _pause_broker(self) -> None:
        self._say(f"broker {self._cluster.pause_one()} is paused")
        self._back_after(self._chance.uniform(0, 2 * BEYOND_SESSION_S))

    def _back_after(self, seconds: float) -> None:
        """Restarts a broker at once, or when the next one fails."""
        if self._chance.random() < 0.7:
            time.sleep(seconds)
            self._cluster.all_return()

    def _rest(self) -> None:
        self._cluster.all_return()
        self._chain.resume_workers()
        self._chain.wait_for_output(PROGRESS)
