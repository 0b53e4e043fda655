"""Replica placement: which brokers get the replicas of a new partition.

The replicas of one partition are on different machines; then on different racks, as far as there are enough; then on
the brokers that have the fewest replicas, first of this topic and then of all topics. Within a partition, the broker
that leads least comes first, because the first replica is the preferred leader. Ties are broken by a hash of the seed,
the partition and the broker, so that partitions do not share their replicas pair by pair and the load of a dead broker
spreads over all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.state import PartitionState, Registration
from ottla.protocol.model.errors import ErrorCode, Refused

Replicas = tuple[int, ...]


def place(
    image: ClusterImage,
    partitions: range,
    replication_factor: int,
    seed: int,
    *,
    allow_shared_machine: bool = False,
    beside: Iterable[PartitionState] = (),
) -> list[Replicas] | Refused:
    """Chooses the replicas of each partition. `beside` are the partitions that the topic already has."""
    brokers = [registration for registration in image.registrations() if not registration.is_draining]
    refused = _check_factor(image, brokers, replication_factor, allow_shared_machine)
    if refused is not None:
        return refused
    load = _Load(image)
    for state in beside:
        load.add_old(state.target)
    placed = []
    for index in partitions:
        replicas = _place_one(brokers, replication_factor, load, seed, index)
        load.add_new(replicas)
        placed.append(replicas)
    _balance_leaders(placed, load.first_of_topic)
    return placed


def add_replicas(
    image: ClusterImage,
    partitions: Mapping[int, Replicas],
    replication_factor: int,
    seed: int,
    *,
    allow_shared_machine: bool = False,
) -> dict[int, Replicas]:
    """Extends the replicas of each partition of a topic until there are `replication_factor` of them.

    A partition gets fewer if there are not enough brokers or machines. The order of the replicas may change, so that
    the added brokers lead their share.
    """
    active = [registration for registration in image.registrations() if not registration.is_draining]
    load = _Load(image)
    for replicas in partitions.values():
        load.add_old(replicas)
    extended = []
    for index, replicas in partitions.items():
        count = max(replication_factor - len(replicas), 0)
        brokers = [broker for broker in active if broker.broker_id not in replicas]
        present = [found for broker_id in replicas if (found := image.registration(broker_id)) is not None]
        added = _choose(brokers, count, load, seed, index, present, allow_shared_machine)
        load.of_topic.update(added)
        load.new.update(added)
        extended.append((*replicas, *added))
    _balance_leaders(extended, load.first_of_topic)
    return dict(zip(partitions, extended, strict=True))


@dataclass(slots=True)
class _Load:
    """The load of each broker: for this topic, and in total, which is the image's count plus the new replicas."""

    image: ClusterImage
    of_topic: Counter[int] = field(default_factory=Counter)
    new: Counter[int] = field(default_factory=Counter)
    first_of_topic: Counter[int] = field(default_factory=Counter)
    first_of_new: Counter[int] = field(default_factory=Counter)

    def add_old(self, replicas: Replicas) -> None:
        self.of_topic.update(replicas)
        self.first_of_topic[replicas[0]] += 1

    def add_new(self, replicas: Replicas) -> None:
        self.add_old(replicas)
        self.new.update(replicas)
        self.first_of_new[replicas[0]] += 1

    def replicas(self, broker_id: int) -> tuple[int, int]:
        return self.of_topic[broker_id], self.image.replica_count(broker_id) + self.new[broker_id]

    def leaders(self, broker_id: int) -> tuple[int, int]:
        return self.first_of_topic[broker_id], self.image.leader_count(broker_id) + self.first_of_new[broker_id]


def _place_one(
    brokers: Sequence[Registration], replication_factor: int, load: _Load, seed: int, index: int
) -> Replicas:
    chance = {broker.broker_id: _mixed(seed, index, broker.broker_id) for broker in brokers}
    chosen = _choose(brokers, replication_factor, load, seed, index)
    leader = min(chosen, key=lambda broker_id: (*load.leaders(broker_id), chance[broker_id]))
    followers = sorted((broker_id for broker_id in chosen if broker_id != leader), key=chance.__getitem__)
    return leader, *followers


def _choose(
    brokers: Sequence[Registration],
    count: int,
    load: _Load,
    seed: int,
    index: int,
    present: Iterable[Registration] = (),
    allow_shared_machine: bool = True,
) -> list[int]:
    """Chooses brokers for `count` more replicas of a partition, beside those present. Returns fewer if no
    others fit."""
    free = sorted(brokers, key=lambda broker: (*load.replicas(broker.broker_id), _mixed(seed, index, broker.broker_id)))
    machines = Counter(broker.machine for broker in present)
    racks: Counter[str | None] = Counter(broker.rack for broker in present)
    chosen: list[int] = []
    while free and len(chosen) < count:
        # `min` returns the first of equals: the broker with the lowest load.
        best = min(free, key=lambda broker: (machines[broker.machine], racks[broker.rack]))
        if machines[best.machine] and not allow_shared_machine:
            break
        free.remove(best)
        machines[best.machine] += 1
        racks[best.rack] += 1
        chosen.append(best.broker_id)
    return chosen


def _balance_leaders(placed: list[Replicas], first_of_topic: Counter[int]) -> None:
    """Evens out leaders over all partitions, since a choice that suits each partition may be uneven in total.
    Terminates because each swap brings two counts closer together."""
    is_even = False
    while not is_even:
        is_even = True
        for position, replicas in enumerate(placed):
            leader = replicas[0]
            other = min(replicas, key=first_of_topic.__getitem__)
            if first_of_topic[leader] - first_of_topic[other] > 1:
                followers = [leader if broker_id == other else broker_id for broker_id in replicas[1:]]
                placed[position] = (other, *followers)
                first_of_topic[leader] -= 1
                first_of_topic[other] += 1
                is_even = False


def _mixed(seed: int, index: int, broker_id: int) -> int:
    """Returns a pseudo-random number (the finalizer of splitmix64)."""
    mask = (1 << 64) - 1
    mixed = (seed * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03 + broker_id * 0x8CB92BA72F3D8DD7) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)


def _check_factor(
    image: ClusterImage, brokers: Sequence[Registration], replication_factor: int, allow_shared_machine: bool
) -> Refused | None:
    if replication_factor < 1:
        return Refused(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    registered = sum(1 for _ in image.registrations())
    machines = len({broker.machine for broker in brokers})
    if replication_factor > registered:
        reason = (
            f"The target replication factor of {replication_factor} cannot be reached because only {registered}"
            " broker(s) are registered."
        )
    elif replication_factor > len(brokers):
        reason = f"Only {len(brokers)} of {registered} broker(s) accept new replicas; the others are draining."
    elif replication_factor > machines and not allow_shared_machine:
        reason = (
            f"The brokers are on {machines} machine(s), and no machine gets two replicas of a partition. Start brokers"
            " on other machines, or ask for fewer replicas."
        )
    else:
        return None
    return Refused(
        ErrorCode.invalid_replication_factor,
        f"Unable to replicate the partition {replication_factor} time(s): {reason}",
    )


def check_manual(
    image: ClusterImage,
    replicas: Sequence[int],
    replication_factor: int | None = None,
    *,
    had: Iterable[int] = (),
    allow_inactive: bool = False,
    allow_shared_machine: bool = False,
) -> Refused | None:
    """Checks the manual assignment of one partition.

    `had` are the replicas that the partition already has: they may stay, alive or not. `allow_inactive` accepts brokers
    that are down or draining, as Kafka does for new partitions; those replicas start out of sync.
    """
    if not replicas:
        return _invalid("includes an empty replica list.")
    for broker_id in sorted(set(replicas).difference(had)):
        registration = image.registration(broker_id)
        if registration is None and (not allow_inactive or image.incarnation(broker_id) is None):
            return _invalid(f"includes broker {broker_id}, but no such broker is registered.")
        if registration is not None and registration.is_draining and not allow_inactive:
            return _invalid(f"includes broker {broker_id}, but this broker is draining and accepts no new replicas.")
    double = next((broker_id for broker_id in replicas if replicas.count(broker_id) > 1), None)
    if double is not None:
        return _invalid(f"includes the broker {double} more than once.")
    if replication_factor is not None and len(replicas) != replication_factor:
        return _invalid(
            f"includes a partition with {len(replicas)} replica(s), but this is not consistent with previous"
            f" partitions, which have {replication_factor} replica(s)."
        )
    return None if allow_shared_machine else _check_machines(image, replicas)


def _check_machines(image: ClusterImage, replicas: Iterable[int]) -> Refused | None:
    by_machine: dict[str, int] = {}
    for broker_id in replicas:
        registration = image.registration(broker_id)
        if registration is None:
            continue
        other = by_machine.setdefault(registration.machine, broker_id)
        if other != broker_id:
            return _invalid(
                f"includes the brokers {other} and {broker_id}, which are both on the machine '{registration.machine}'."
            )
    return None


def _invalid(reason: str) -> Refused:
    return Refused(ErrorCode.invalid_replica_assignment, f"The manual partition assignment {reason}")
