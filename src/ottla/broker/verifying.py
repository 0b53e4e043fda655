"""What a partition asks of a transaction's coordinator, before it takes a transaction's first batch (KIP-890)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ottla.machines.transactions.records import TopicPartition
from ottla.model.errors import ErrorCode


class Verifying(NamedTuple):
    """Are these partitions part of the producer's transaction? With transaction version 2 they become part of it, if
    they are not."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    transaction_version: int


class Verifier(Protocol):
    """The way to the coordinators, wherever they are."""

    async def verify(self, asked: Verifying) -> Mapping[TopicPartition, ErrorCode]:
        """Errors by partition. One that is not there is fine. Never raises for what is expected: a coordinator that
        cannot be reached has an error too."""
        ...


class NobodyVerifies:
    """Until there are coordinators."""

    async def verify(self, asked: Verifying) -> Mapping[TopicPartition, ErrorCode]:
        return {}
