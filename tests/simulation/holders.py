"""Which logs physically hold the committed batches of a partition, whatever the coordination store says.

The stored ISR is written by the code under test. These checks look into the logs themselves: those of living brokers
as they are now, those of dead brokers as they were when they died, as far as the class of the topic keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ottla.broker.partition.partition import Partition
from ottla.machines.controller.state import PartitionKey
from ottla.protocol.model.durability import Durability
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.disk import Keep
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from tests.simulation.committed import Committed, DamagedLogError, UnreadableLogError, read_batches

RECENT_S = 10.0
"""An acknowledgement that is on its way may be of a log that is lost by now."""


class Holders:
    def __init__(self, world: SimWorld, programs: Mapping[str, ClusterProgram]) -> None:
        self._world = world
        self._programs = programs
        self._ends: dict[tuple[str, PartitionKey], int] = {}
        """The acknowledged end of each log of a dead process."""
        self._lost_s: dict[tuple[str, Durability], float] = {}
        """When each host last lost what a class keeps there."""

    def around_bury(self, original: Callable[[SimHost, Keep], None]) -> Callable[[SimHost, Keep], None]:
        def bury(host: SimHost, keep: Keep) -> None:
            self._on_death(host)
            original(host, keep)

        return bury

    def around_cut_power(self, original: Callable[..., None]) -> Callable[..., None]:
        def cut_power(host: SimHost, keep: Keep = "some") -> None:
            if host.name in self._programs:
                self._lost_s[host.name, Durability.CACHE] = self._world.now_s
            original(host, keep)

        return cut_power

    def on_disk_lost(self, name: str) -> None:
        for durability in Durability:
            self._lost_s[name, durability] = self._world.now_s

    def _on_death(self, host: SimHost) -> None:
        if host.name in self._programs:
            self._lost_s[host.name, Durability.MEMORY] = self._world.now_s
            for partition in self._partitions_of(host.name):
                key = PartitionKey(partition.topic.id, partition.index)
                self._ends[host.name, key] = partition.log.acknowledged_end

    def _partitions_of(self, name: str) -> Iterable[Partition]:
        broker = self._programs[name].broker
        return broker.context.partitions() if broker is not None else ()

    def living(self, key: PartitionKey, names: Iterable[str]) -> Iterator[tuple[str, Partition]]:
        """Yields the replicas on these hosts whose process runs and has opened its log."""
        for name in names:
            broker = self._programs[name].broker
            if self._world.hosts[name].is_running and broker is not None:
                topic = broker.topics.by_id(key.topic_id)
                partition = topic.partition(key.partition) if topic is not None else None
                if partition is not None:
                    yield name, partition

    def count(self, key: PartitionKey, names: list[str], begin: int, committed: Committed) -> int:
        """Returns how many of these hosts hold everything from `begin` to the committed end."""
        living = dict(self.living(key, names))
        found = sum(_holds(partition, begin, committed) for partition in living.values())
        return found + sum(self._ends.get((name, key), -1) >= committed.end for name in names if name not in living)

    def has_lost(self, names: Iterable[str], durability: Durability) -> bool:
        """Reports whether one of these hosts lost its copies of this class lately."""
        since_s = self._world.now_s - RECENT_S
        return any(self._lost_s.get((name, durability), -RECENT_S) > since_s for name in names)


def _holds(partition: Partition, begin: int, committed: Committed) -> bool:
    log = partition.log
    if log.acknowledged_end < committed.end:
        return False
    begin = max(begin, log.start_offset)
    try:
        for header, content in read_batches(log, begin, committed.end) if begin < committed.end else ():
            known = committed.batches.get(header.base_offset)
            if header.base_offset >= begin and (known is None or known.content != content):
                return False
    except DamagedLogError:
        return True
    except UnreadableLogError:
        return False
    return True
