"""The placement of a partition on brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Layout(NamedTuple):
    """The placement as clients see it in the metadata. Every broker gives the same answer."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()


@dataclass(slots=True)
class Placement:
    """The placement as the cluster state gives it to one replica."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    state_version: int = 0
    """Version of the cluster state that the current role was taken from."""
