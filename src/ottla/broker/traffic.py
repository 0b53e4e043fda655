"""How much a broker was asked for and gave, by who asked: for whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Reads:
    requests: int = 0
    bytes: int = 0
    """Of records."""

    def note(self, size_bytes: int) -> None:
        self.requests += 1
        self.bytes += size_bytes


@dataclass(slots=True)
class Traffic:
    """Since the broker started."""

    by_consumers: Reads
    by_replicas: Reads

    @classmethod
    def none(cls) -> Traffic:
        return cls(Reads(), Reads())
