"""Schedules of faults for groups: a short fixed one with each fault once, and long random ones."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.processes.groups.group import Group
from tests.processes.groups.rounds import Gone, Round, Say
from tests.processes.groups.worlds import BROKER_SESSION_MS

MEMBERS_MAX = 8
ALL_MEMBERS_MAX = 14
"""Limit for all groups of a round: each member is a process on this machine."""
SETTLE_SHARE = 0.6
"""How often the next fault waits until the group has settled."""


def short(round_: Round, members: int = 4) -> None:
    """Members join, one is killed, one paused beyond its session, one leaves; the coordinator is killed."""
    round_.each(lambda group: group.join(1))
    round_.settle()
    round_.each(lambda group: group.join(members - 1))
    round_.settle()
    round_.progress()
    round_.each(Group.kill)
    round_.each(Group.pause)
    round_.settle()
    round_.each(Group.commit_for_the_paused)
    round_.each(Group.resume)
    round_.settle()
    round_.coordinator_goes()
    round_.progress()
    round_.each(Group.leave)
    round_.coordinator_returns()
    round_.settle()
    round_.progress()


class Chaos:
    """Random faults for a given time. A fault of one group does not wait for the others."""

    def __init__(self, round_: Round, seconds: float, say: Say) -> None:
        self._round = round_
        self._chance = round_.chance
        self._seconds = seconds
        self._say = say
        self._actions: tuple[tuple[str, int, Callable[[Group], bool]], ...] = (
            ("join", 5, self._join),
            ("leave", 2, self._leave),
            ("kill", 2, self._kill),
            ("pause", 3, self._pause),
            ("resume", 2, self._resume),
            ("coordinator", 1, self._coordinator),
        )

    def run(self) -> None:
        for group in self._round.groups:
            group.join(self._chance.randint(1, MEMBERS_MAX // 2 + 1))
        self._round.settle()
        deadline_s = time.monotonic() + self._seconds
        while time.monotonic() < deadline_s:
            group = self._chance.choice(self._round.groups)
            names = [name for name, _, _ in self._actions]
            weights = [weight for _, weight, _ in self._actions]
            (name,) = self._chance.choices(names, weights)
            (act,) = (act for each, _, act in self._actions if each == name)
            if not act(group):
                continue
            self._say(f"{group.kind}: {name}, {len(group.awake)} of {group.size} awake")
            if self._chance.random() < SETTLE_SHARE:
                self._round.settle()
                group.commit_for_the_paused()
            else:
                time.sleep(self._chance.uniform(0, 2))
        self._round.coordinator_returns()
        for group in self._round.groups:
            group.resume()
        self._round.settle()
        self._round.progress()

    def _join(self, group: Group) -> bool:
        others = sum(each.size for each in self._round.groups)
        room = min(MEMBERS_MAX - group.size, ALL_MEMBERS_MAX - others)
        if room < 1:
            return False
        group.join(self._chance.randint(1, min(room, 4)))
        return True

    def _leave(self, group: Group) -> bool:
        if len(group.awake) < 2:
            return False
        group.leave()
        return True

    def _kill(self, group: Group) -> bool:
        """Kills a member, also the last one if another can replace it."""
        if group.awake:
            group.kill()
        if not group.awake:
            group.join(1)
        return True

    def _pause(self, group: Group) -> bool:
        if len(group.awake) < 2:
            return False
        group.pause()
        return True

    def _resume(self, group: Group) -> bool:
        if len(group.awake) == group.size:
            return False
        group.resume()
        return True

    def _coordinator(self, _: Group) -> bool:
        """Stops a coordinator and restarts it after a while. The next time it may be another broker."""
        self._round.coordinator_returns()
        how = self._chance.choice((Gone.KILLED, Gone.KILLED, Gone.STOPPED, Gone.PAUSED))
        self._round.coordinator_goes(how)
        self._say(f"the coordinator is {how.value}")
        if how is Gone.STOPPED or self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(0, 2 * BROKER_SESSION_MS / 1000))
            self._round.coordinator_returns()
        return True
