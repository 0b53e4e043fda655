"""What a partition asks of a transaction's coordinator, before it takes a transaction's first batch (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


PAUSES_MS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 40.0)
"""A producer's next transaction often comes before the markers of its last one are all there. It is cheaper to wait for
that here than to have the client come again (Kafka: add.partitions.to.txn.retry.backoff.ms). The first are short,
because each transaction of a busy producer waits for one. And a marker that comes while the coordinator is asked takes
the guard away: then it is asked again, with another one."""


def is_early(asked: Verifying, errors: Iterable[ErrorCode]) -> bool:
    """The transaction before is being completed. Only clients of version 2 come that early."""
    return asked.transaction_version >= 2 and ErrorCode.concurrent_transactions in errors


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
