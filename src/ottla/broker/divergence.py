"""Where a follower's history parts from its leader's, by leader epochs (KIP-101, KIP-595)."""

from __future__ import annotations

from ottla.log.epochs import LeaderEpochs
from ottla.wire.fetch import FetchPartition

NO_COMMON_EPOCH = (-1, -1)
"""The follower has records of an epoch that this leader has not heard of: it does not lead any more."""


def divergence(epochs: LeaderEpochs, log_end_offset: int, wanted: FetchPartition) -> tuple[int, int] | None:
    """(epoch, end offset) of what the two may have in common; None if the follower has nothing that the leader has
    not. A follower that has no batch yet does not say an epoch: there is nothing that could differ."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = epochs.end_of(wanted.last_fetched_epoch, log_end_offset)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None
