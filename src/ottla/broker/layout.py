"""How one partition is spread over brokers, as clients see it."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """What a client is told about a partition, whichever broker it asks."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
