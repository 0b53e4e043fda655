"""The plan of one seed of the load simulation: the cluster, its disks, and the load of each producer."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

KIB, MIB = 1 << 10, 1 << 20

BROKERS = ("broker-1", "broker-2", "broker-3")
PROBE = "probe"
LIMITS = {
    "ottla.unacknowledged.max.bytes": str(MIB),
    "queued.max.request.bytes": str(256 * KIB),
    "ottla.unwritten.max.bytes": str(2 * MIB),
    "ottla.tail.cache.bytes": str(256 * KIB),
}
DEPTH_BYTES_MIN = 640 * KIB
DEPTH_BYTES_MAX = 8 * MIB
"""Bytes that all producers together keep in flight under overload: ten times the backlog's limit on a slow disk, and
more than every limit above on a fast one."""
CALM_BYTES = 192 * KIB
"""Bytes that all producers together keep in flight while the peak is measured."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    durability: str
    partitions: int
    batch_bytes: int
    acks: tuple[int, ...]
    """The acks setting of each producer."""
    disk_bytes_ms: float
    sync_ms: float
    network_bytes_s: float
    """Bandwidth of each link."""
    slow_follower: float
    """Factor by which the disk of one broker is slower than the others'."""
    hiccup_s: float
    """How long one broker is paused during the overload; shorter than replica.lag.time.max.ms."""
    limits: dict[str, str]

    @property
    def producers(self) -> tuple[str, ...]:
        return tuple(f"producer-{number}" for number in range(1, len(self.acks) + 1))

    @property
    def flush_s(self) -> float:
        """How long the slowest disk takes to write and sync the segments of all partitions. Until that is done, no
        space of its journal is released."""
        return 2 * self.partitions * self.sync_ms * self.slow_follower / 1000

    @property
    def waits_for_all(self) -> bool:
        return set(self.acks) == {-1}

    def __str__(self) -> str:
        return (
            f"{self.durability}, {self.partitions} partitions, batches of {self.batch_bytes} bytes, acks {self.acks}, "
            f"links {self.network_bytes_s} bytes/s, disks {self.disk_bytes_ms} bytes/ms, {self.sync_ms} ms a write, "
            f"one {self.slow_follower} x slower, hiccup {self.hiccup_s} s, {self.limits}"
        )

    @classmethod
    def drawn(cls, seed: int) -> LoadPlan:
        rng = Random(f"{seed}/load")
        acks = [rng.choice((-1, -1, -1, -1, 1)) for _ in range(rng.choice((1, 1, 2, 4)))]
        limits = dict(LIMITS)
        if rng.random() < 0.3:  # the memory for requests is exhausted first
            limits["queued.max.request.bytes"] = str(32 * KIB)
        batch_bytes = rng.choice((300, 2 * KIB, 16 * KIB, 48 * KIB))
        speed = rng.choice((1.0, 4.0)) if batch_bytes > 300 else 0.3  # in MB/s: small batches cost the most
        return cls(
            durability=rng.choice(("disk", "disk", "cache", "memory")),
            partitions=rng.choice((1, 1, 3, 12)),
            batch_bytes=batch_bytes,
            acks=tuple(acks),
            disk_bytes_ms=1000.0 * speed,
            network_bytes_s=2e6 * speed,
            sync_ms=rng.choice((0.2, 2.0, 20.0) if speed >= 1 else (0.2, 2.0)),
            slow_follower=rng.choice((1.0, 1.0, 2.0, 4.0) if speed >= 1 else (1.0, 2.0)),
            hiccup_s=rng.choice((0.0, 0.0, 0.0, 0.7)),
            limits=limits,
        )
