"""A round: several groups read one topic under faults, then their histories are checked."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random

from tests.processes.groups.checker import Anomaly, Findings, check
from tests.processes.groups.group import CONSUMER, MIXED, Group, Kind, Place
from tests.processes.groups.history import GroupHistory, now_us, read_history
from tests.processes.groups.questions import coordinator_of, create_topic
from tests.processes.groups.worlds import BROKERS, World
from tests.processes.groups.writer import Writer

PARTITIONS = 12
NAMES_TRIED_MAX = 100

Say = Callable[[str], None]


class Gone(Enum):
    """The ways in which a coordinator fails."""

    KILLED = "killed"
    STOPPED = "stopped in order"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Judged:
    kind: Kind
    history: GroupHistory
    findings: Findings
    directory: Path


class Round:
    """A round in which all groups have the same coordinator, so that its death affects all of them."""

    def __init__(self, world: World, directory: Path, kinds: Sequence[Kind], session_ms: int, chance: Random) -> None:
        directory.mkdir(parents=True)
        self._world = world
        self._session_ms = session_ms
        self.chance = chance
        topic = f"records-{directory.name}"
        create_topic(world.bootstrap, topic, PARTITIONS, BROKERS)
        place = Place(world.bootstrap, topic, PARTITIONS, session_ms)
        self._writer = Writer(world.bootstrap, topic, PARTITIONS)
        self._absent: int | None = None
        self._gone = Gone.KILLED
        self.groups: list[Group] = []
        first: int | None = None
        for kind in kinds:
            own = directory / str(kind).replace(" ", "-")
            name, first = self._name(f"{directory.name}-{own.name}", first)
            self.groups.append(Group(kind, name, place, own, Random(f"{chance.random()} {kind}")))

    def _name(self, word: str, coordinator: int | None) -> tuple[str, int]:
        """Returns the name of a group that this broker coordinates."""
        for number in itertools.count(1):
            name = f"{word}-{number}"
            found = coordinator_of(self._world.bootstrap, name)[0]
            if coordinator in (None, found) or number > NAMES_TRIED_MAX:
                return name, found
        raise AssertionError

    # Events

    def each(self, act: Callable[[Group], None]) -> None:
        for group in self.groups:
            act(group)

    def settle(self) -> None:
        """Waits until the partitions of each group are assigned to its running members."""
        for group in self.groups:
            group.wait_until("shared out", group.is_shared_out)

    def progress(self) -> None:
        """Waits until each group has committed something."""
        since_us = now_us()
        for group in self.groups:
            group.wait_until("committed", partial(group.has_committed_since, since_us))

    def coordinator_goes(self, how: Gone = Gone.KILLED) -> None:
        self._gone = how
        self._absent, _ = coordinator_of(self._world.bootstrap, self.chance.choice(self.groups).name)
        for each in self.groups:
            each.coordinator_goes(self._absent)
        if how is Gone.PAUSED:
            os.kill(self._world.pid(self._absent), signal.SIGSTOP)
        else:
            (self._world.kill if how is Gone.KILLED else self._world.stop)(self._absent)

    def coordinator_returns(self) -> None:
        if self._absent is None:
            return
        if self._gone is Gone.PAUSED:
            os.kill(self._world.pid(self._absent), signal.SIGCONT)
        else:
            self._world.start(self._absent)
        for each in self.groups:
            each.coordinator_is_back(self._absent)
        self._absent = None

    def finish(self) -> list[Judged]:
        self.coordinator_returns()
        self.each(Group.resume)
        self._writer.end()
        self.each(Group.drain)
        self.coordinator_goes()  # nobody commits any more: the next coordinator knows only what it has loaded
        self.each(Group.finish)
        self.coordinator_returns()
        return [self._judge(group) for group in self.groups]

    def _judge(self, group: Group) -> Judged:
        history = read_history(group.directory)
        session_us = self._session_ms * 1000
        findings = check(history, session_us, session_us if group.kind.protocol in (CONSUMER, MIXED) else 0)
        if self._writer.failed:
            findings.add(Anomaly.BROKEN, f"{len(self._writer.failed)} writes failed: {self._writer.failed[0]}")
        return Judged(group.kind, history, findings, group.directory)

    def abandon(self) -> None:
        """Ends everything that a round started, also after an error."""
        self.each(Group.end)
        if self._absent is not None and self._gone is Gone.PAUSED:
            os.kill(self._world.pid(self._absent), signal.SIGCONT)
        self._writer.end()


def run_round(round_: Round, schedule: Callable[[Round], None]) -> list[Judged]:
    try:
        schedule(round_)
        return round_.finish()
    finally:
        round_.abandon()


def aloud() -> Say:
    began_s = time.monotonic()

    def say(sentence: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} {sentence}", flush=True)

    return say
