"""Finds the point where a follower's history diverges from its leader's, by leader epochs (KIP-101, KIP-595)."""

from __future__ import annotations

from ottla.broker.storage.epochs import LeaderEpochs
from ottla.protocol.wire.fetch import FetchPartition

NO_COMMON_EPOCH = (-1, -1)
"""The follower has records of an epoch that this leader does not know, so this broker is no longer the leader."""


def divergence(epochs: LeaderEpochs, log_end_offset: int, wanted: FetchPartition) -> tuple[int, int] | None:
    """Returns the epoch and end offset of the history that the two may share, or None if the leader has everything that
    the follower has. A follower without batches sends no epoch: an empty log cannot diverge."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = epochs.end_of(wanted.last_fetched_epoch, log_end_offset)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None
