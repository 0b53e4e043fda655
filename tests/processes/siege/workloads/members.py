"""Consumer groups of both protocols in a siege, with members that join, leave, are killed and are paused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.processes.groups.checker import check
from tests.processes.groups.group import CONSUMER, Group, Kind, Place
from tests.processes.groups.history import Span, read_history

FOLDER = "groups"
SESSION_MS = 6000
CLIENTS = "confluent-kafka+ottla"
PROTOCOLS = ("eager", CONSUMER)
SIZE = 2
SIZE_MAX = 3
HUNG_S = 40.0


class Members:
    """One group for each protocol. All read one topic."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, partitions: int, chance: Random) -> None:
        place = Place(bootstrap, topic, partitions, SESSION_MS)
        self._chance = chance
        self._groups = [
            Group(Kind(CLIENTS, protocol), f"siege-{protocol}", place, directory / protocol, Random(chance.random()))
            for protocol in PROTOCOLS
        ]

    def start(self) -> None:
        for group in self._groups:
            group.join(SIZE)

    def replace_hung(self) -> None:
        """Replaces members whose commit does not return. Seen once, with librdkafka and the consumer protocol, after
        all brokers had lost power: the request stayed in the client's own queue. The cause is not known."""
        for group in self._groups:
            if group.kill_hung(HUNG_S):
                group.join(max(0, SIZE - group.size))

    def act(self) -> None:
        """Does something to a member of one group; another one takes the place of one that is gone."""
        self.replace_hung()
        group = self._chance.choice(self._groups)
        group.resume()
        act = self._chance.choice(("kill", "leave", "pause", "join"))
        if act == "join" and group.size >= SIZE_MAX:
            act = "leave"
        if act == "join":
            group.join()
        elif act == "pause":
            group.pause()
        else:
            (group.kill if act == "kill" else group.leave)()
            group.join(max(0, SIZE - group.size))

    def finish(self) -> None:
        """Waits until everything is processed and committed; then records the final state. Nobody writes any more."""
        for group in self._groups:
            group.resume()
        self.replace_hung()
        for group in self._groups:
            group.drain()
        for group in self._groups:
            group.finish()

    def end(self) -> None:
        for group in self._groups:
            group.end()


class Judged(NamedTuple):
    counts: Counter[str]
    anomalies: list[tuple[str, str]]


def judge(directory: Path, disturbed: Sequence[Span]) -> Judged:
    """Checks the histories in a folder of a siege. While brokers fail, a member may not learn in time that its
    partitions have another owner."""
    counts: Counter[str] = Counter()
    found: list[tuple[str, str]] = []
    for own in sorted(each for each in directory.iterdir() if each.is_dir()):
        history = read_history(own)
        history.disturbed = list(disturbed)
        counts.update(f"group commits, {each.outcome}" for each in history.commits)
        counts["group assignments"] += len(history.ownerships)
        unconfirmed_us = SESSION_MS * 1000 if own.name == CONSUMER else 0
        for anomaly, sentences in check(history, SESSION_MS * 1000, unconfirmed_us).sentences.items():
            found += ((f"group: {anomaly}", f"{own.name}: {sentence}") for sentence in sentences)
    return Judged(counts, found)
