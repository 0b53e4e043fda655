"""A thread that moves leaders all the time."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from ottla.bench.calls import Caller
from ottla.bench.leaders import PartitionLeader, any_broker, ask_leaders, elect_preferred, reassign
from ottla.protocol.model.errors import ErrorCode

NEWEST_TOPICS = 12
OLDER_TOPICS = 3
PAUSE_S = (0.1, 0.3)
EXPECTED = frozenset(
    {
        ErrorCode.none,
        ErrorCode.election_not_needed,
        ErrorCode.preferred_leader_not_available,  # not in sync at the moment
        ErrorCode.unknown_topic_or_partition,  # just deleted
        ErrorCode.request_timed_out,  # concurrent change: retry
        ErrorCode.not_controller,
        ErrorCode.reassignment_in_progress,
    }
)


def wait_until_known(bootstrap: str, topic: str) -> None:
    """Waits until every broker knows the topic: the one that creates it replies first, the others follow."""
    deadline = time.monotonic() + 60
    for address in bootstrap.split(","):
        while True:
            with any_broker(address) as caller:
                if (topic, 0) in ask_leaders(caller, [topic]).partitions:
                    break
            assert time.monotonic() < deadline, f"{address} does not know {topic}"
            time.sleep(0.05)


class Mover:
    """Gives the newest topics, and some of the others, another leader several times a second through the admin API: it
    reorders the replicas (AlterPartitionReassignments), then elects the first (ElectLeaders)."""

    def __init__(self, bootstrap: str, chance: random.Random) -> None:
        self._bootstrap = bootstrap
        self._chance = chance
        self._topics: list[str] = []
        self._runs = threading.Event()
        self._between = threading.Lock()
        """Held during a turn."""
        self._ended = threading.Event()
        self.has_run = False
        """False if every test so far was marked `leaders_at_rest`."""
        self.answers: Counter[ErrorCode] = Counter()
        self.unreachable = 0
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()

    @property
    def moves(self) -> int:
        return self.answers[ErrorCode.none]

    def add(self, topic: str) -> None:
        self._topics.append(topic)

    def go_on(self) -> None:
        self.has_run = True
        self._runs.set()

    def pause(self) -> None:
        """Returns when no move is in progress."""
        self._runs.clear()
        with self._between:
            pass

    def end(self) -> None:
        self._ended.set()
        self._runs.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._runs.wait()
            with self._between:
                if self._runs.is_set() and not self._ended.is_set():
                    try:
                        self._turn()
                    except OSError:
                        self.unreachable += 1  # the broker is down at the moment
            self._ended.wait(self._chance.uniform(*PAUSE_S))

    def _turn(self) -> None:
        newest = self._topics[-NEWEST_TOPICS:]
        older = self._topics[:-NEWEST_TOPICS]
        names = newest + self._chance.sample(older, min(OLDER_TOPICS, len(older)))
        if not names:
            return
        with any_broker(self._bootstrap) as caller:
            leaders = ask_leaders(caller, names)
        orders = {place: self._other_order(led) for place, led in leaders.partitions.items() if len(led.in_sync) > 1}
        address = leaders.addresses.get(leaders.controller)
        if not orders or address is None:
            return
        host, port = address
        with Caller(port, host) as caller:
            reassign(caller, orders)
            for error in elect_preferred(caller, list(orders)):
                self.answers[error] += 1

    def _other_order(self, led: PartitionLeader) -> tuple[int, ...]:
        """Returns the replicas with another in-sync one first."""
        first = self._chance.choice([each for each in led.in_sync if each != led.leader])
        return (first, *(each for each in led.replicas if each != first))
