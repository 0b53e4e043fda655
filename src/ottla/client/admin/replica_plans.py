"""Plans which replicas to move: off a broker, or to balance all brokers. Pure.

A plan moves as little as possible. Replicas of a partition are on different machines, then on different racks, as far
as there are enough; no move makes that worse. The first replica of a partition is its preferred leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError

Replicas = tuple[int, ...]
Assignment = Mapping[TopicPartition, Replicas]
Plan = dict[TopicPartition, Replicas]
"""The new replicas of each partition that changes."""
NAMED_MAX = 3
ROUNDS_MAX = 10
"""A move for balance may allow a better spread. Two rounds are nearly always enough."""


@dataclass(frozen=True, slots=True)
class BrokerPlacement:
    """A broker as a plan sees it."""

    broker_id: int
    machine: str
    rack: str | None = None


class NoPlanError(ClientError):
    """The request is impossible with the available brokers. The message says why and what would help."""


def plan_drain(assignment: Assignment, seats: Sequence[BrokerPlacement], broker_id: int) -> Plan:
    """Moves every replica off a broker, which may be alive or not. Raises NoPlanError.

        plan = plan_drain(assignment, await seats(admin), broker_id=3)
        await admin.alter_partition_reassignments(plan)

    The plan maps each partition that changes to its new replicas.
    """
    others = [seat for seat in seats if seat.broker_id != broker_id]
    table = _DraftAssignment(assignment, others)
    table.move_off({broker_id}, f"broker {broker_id} cannot be drained")
    return table.plan()


def plan_leaders_away(assignment: Assignment, in_sync: Mapping[TopicPartition, Iterable[int]], broker_id: int) -> Plan:
    """Moves preferred leadership away from this broker to in-sync replicas. The replicas stay the same.

    A partition without such a replica stays unchanged.
    """
    leads = Counter(replicas[0] for replicas in assignment.values())
    plan: Plan = {}
    for at, replicas in sorted(assignment.items()):
        ready = [other for other in replicas if other != broker_id and other in set(in_sync.get(at, ()))]
        if replicas[0] == broker_id and ready:
            first = min(ready, key=lambda other: (leads[other], replicas.index(other)))
            leads[first] += 1
            plan[at] = (first, *(other for other in replicas if other not in (first, broker_id)), broker_id)
    return plan


def plan_balance(assignment: Assignment, seats: Sequence[BrokerPlacement], only: Iterable[int] | None = None) -> Plan:
    """Balances replicas and preferred leaders, per topic and in total; `only` restricts the plan to these brokers.

    Replicas on unavailable brokers stay where they are, unless `only` excludes those brokers. Raises NoPlanError.
    """
    chosen = list(seats)
    if only is not None:
        wanted = set(only)
        if missing := sorted(wanted - {seat.broker_id for seat in seats}):
            raise NoPlanError(f"broker {missing[0]} is not in the cluster, or is offline")
        chosen = [seat for seat in seats if seat.broker_id in wanted]
    table = _DraftAssignment(assignment, chosen)
    if only is not None:
        here = {broker_id for replicas in assignment.values() for broker_id in replicas}
        table.move_off(here - set(only), f"the brokers {', '.join(map(str, sorted(set(only))))} are too few")
    for _ in range(ROUNDS_MAX):
        before = table.plan()
        table.spread_out()
        table.even_out()
        table.even_out_leaders()
        if table.plan() == before:
            break
    return table.plan()


class _DraftAssignment:
    """The assignment while it is being changed, and the load of each broker."""

    def __init__(self, assignment: Assignment, seats: Sequence[BrokerPlacement]) -> None:
        self._old = dict(assignment)
        self._now = dict(assignment)
        self._seats = {seat.broker_id: seat for seat in seats}
        self._total: Counter[int] = Counter()
        self._of_topic: dict[str, Counter[int]] = {}
        self._first: Counter[int] = Counter()
        self._first_of_topic: dict[str, Counter[int]] = {}
        self._places: dict[str, list[TopicPartition]] = {}
        for at, replicas in assignment.items():
            self._count(at, replicas, 1)
            self._places.setdefault(at.topic, []).append(at)

    def plan(self) -> Plan:
        return {at: replicas for at, replicas in sorted(self._now.items()) if replicas != self._old[at]}

    def _count(self, at: TopicPartition, replicas: Replicas, by: int) -> None:
        for broker_id in replicas:
            self._total[broker_id] += by
            self._of_topic.setdefault(at.topic, Counter())[broker_id] += by
        self._first[replicas[0]] += by
        self._first_of_topic.setdefault(at.topic, Counter())[replicas[0]] += by

    def _set(self, at: TopicPartition, replicas: Replicas) -> None:
        self._count(at, self._now[at], -1)
        self._now[at] = replicas
        self._count(at, replicas, 1)

    def _crowding(self, replicas: Iterable[int]) -> tuple[int, int]:
        """Counts the replicas that share a machine, and those that share a rack, with another one.

        Nothing is known about an unavailable broker, so it counts as a separate machine.
        """
        seats = [
            self._seats.get(broker_id) or BrokerPlacement(broker_id, f"away-{broker_id}") for broker_id in replicas
        ]
        machines, racks = len({seat.machine for seat in seats}), len({seat.rack for seat in seats})
        return len(seats) - machines, len(seats) - racks

    # -- moves --------------------------------------------------------------------------------------------------------

    def move_off(self, leaving: set[int], refusal: str) -> None:
        short: list[TopicPartition] = []
        for at in sorted(self._now):
            for broker_id in [each for each in self._now[at] if each in leaving]:
                best = self._best_instead(at, broker_id)
                if best is None:
                    short.append(at)
                    break
                self._replace(at, broker_id, best)
        if short:
            raise NoPlanError(self._too_few(short, refusal))

    def _too_few(self, short: list[TopicPartition], refusal: str) -> str:
        names = ", ".join(f"{at.topic}-{at.partition}" for at in short[:NAMED_MAX])
        more = f" and {len(short) - NAMED_MAX} more" if len(short) > NAMED_MAX else ""
        factor = max(len(self._old[at]) for at in short)
        return (
            f"{refusal}: {names}{more} with {factor} replicas need as many brokers, but only "
            f"{len(self._seats)} would be available. Start another broker first, or give these topics fewer "
            "replicas with `ottla cluster reassign`"
        )

    def _best_instead(self, at: TopicPartition, leaving: int) -> int | None:
        rest = [broker_id for broker_id in self._now[at] if broker_id != leaving]
        free = [broker_id for broker_id in sorted(self._seats) if broker_id not in rest and broker_id != leaving]
        of_topic = self._of_topic[at.topic]
        return min(
            free,
            key=lambda other: (self._crowding([*rest, other]), of_topic[other], self._total[other]),
            default=None,
        )

    def _replace(self, at: TopicPartition, leaving: int, coming: int) -> None:
        """Replaces one broker. If it was the preferred leader, the replica that leads least becomes first."""
        replicas = [coming if broker_id == leaving else broker_id for broker_id in self._now[at]]
        if self._now[at][0] == leaving:
            first_of_topic = self._first_of_topic[at.topic]
            first = min(replicas, key=lambda other: (first_of_topic[other], self._first[other], other == coming))
            replicas.remove(first)
            replicas.insert(0, first)
        self._set(at, tuple(replicas))

    def spread_out(self) -> None:
        """Separates replicas that share a machine or a rack, where another one is available."""
        for at in sorted(self._now):
            while (better := self._less_crowded(at)) is not None:
                self._replace(at, *better)

    def _less_crowded(self, at: TopicPartition) -> tuple[int, int] | None:
        replicas = self._now[at]
        choices = [
            (self._crowding([*(each for each in replicas if each != leaving), coming]), leaving, coming)
            for leaving in replicas
            if leaving in self._seats and (coming := self._best_instead(at, leaving)) is not None
        ]
        best = min(choices, default=None)
        return best[1:] if best is not None and best[0] < self._crowding(replicas) else None

    # -- balance ------------------------------------------------------------------------------------------------------

    def even_out(self) -> None:
        """Balances each topic, then the total. Each move brings two counts closer together, so this terminates."""
        for topic in sorted(self._of_topic):
            while self._even_once(self._of_topic[topic], topic):
                pass
        while self._even_once(self._total, None):
            pass

    def _even_once(self, counts: Counter[int], topic: str | None) -> bool:
        by_count = sorted(self._seats, key=lambda broker_id: (counts[broker_id], broker_id))
        for most in reversed(by_count):
            for least in by_count:
                if counts[most] - counts[least] < 2:
                    break
                if self._move_one(most, least, topic):
                    return True
        return False

    def _move_one(self, most: int, least: int, topic: str | None) -> bool:
        best: tuple[tuple[int, int], int, TopicPartition] | None = None
        for at in self._now if topic is None else self._places[topic]:
            replicas = self._now[at]
            if most not in replicas or least in replicas:
                continue
            of_topic = self._of_topic[at.topic]
            gain = of_topic[most] - of_topic[least]
            crowding = self._crowding([*(each for each in replicas if each != most), least])
            if gain < 1 or crowding > self._crowding(replicas):
                continue
            best = min(best, (crowding, -gain, at)) if best is not None else (crowding, -gain, at)
        if best is not None:
            self._replace(best[2], most, least)
        return best is not None

    def even_out_leaders(self) -> None:
        """Changes the preferred leader where that balances the topic, or the total at no cost to the topic."""
        is_even = False
        while not is_even:
            is_even = True
            for at in sorted(self._now):
                other = self._better_leader(at)
                if other is not None:
                    leader, *followers = self._now[at]
                    self._set(at, (other, *(leader if each == other else each for each in followers)))
                    is_even = False

    def _better_leader(self, at: TopicPartition) -> int | None:
        leader, *followers = self._now[at]
        of_topic = self._first_of_topic[at.topic]
        for other in sorted(followers, key=lambda each: (of_topic[each], self._first[each])):
            gain = of_topic[leader] - of_topic[other]
            if other in self._seats and (gain > 1 or (gain == 1 and self._first[leader] - self._first[other] > 1)):
                return other
        return None
