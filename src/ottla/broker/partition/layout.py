"""The placement of a partition on brokers, as clients see it."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """The metadata of one partition. Every broker gives the same answer."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
