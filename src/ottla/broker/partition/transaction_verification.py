"""Verification of a transaction with its coordinator, before a partition accepts the transaction's first batch
(KIP-890)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from ottla.machines.transactions.records import TopicPartition
from ottla.protocol.model.errors import ErrorCode


class VerificationRequest(NamedTuple):
    """A question to the coordinator: are these partitions part of the producer's transaction? With transaction version
    2 the coordinator adds those that are missing."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    transaction_version: int


PAUSES_MS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 40.0)
"""Delays between retries. A producer often begins its next transaction before all markers of the last one are written,
and waiting for them here is cheaper than making the client retry (Kafka: add.partitions.to.txn.retry.backoff.ms). The
first delays are short because every transaction of a busy producer waits for one. A marker that arrives during the call
to the coordinator invalidates the guard; the partition then asks again with a new guard."""


def is_early(asked: VerificationRequest, errors: Iterable[ErrorCode]) -> bool:
    """Whether the previous transaction is still being completed. Only clients of version 2 begin the next one that
    early."""
    return asked.transaction_version >= 2 and ErrorCode.concurrent_transactions in errors


class Verifier(Protocol):
    """Asks the coordinators, on whichever brokers they are."""

    async def verify(self, asked: VerificationRequest) -> Mapping[TopicPartition, ErrorCode]:
        """Returns errors by partition; a partition that is missing from the result is verified. Never raises for an
        expected failure: a coordinator that cannot be reached is reported as an error code."""
        ...


class NoVerification:
    """Approves every transaction, as long as there are no coordinators."""

    async def verify(self, asked: VerificationRequest) -> Mapping[TopicPartition, ErrorCode]:
        """Returns no errors, for any request."""
        return {}
