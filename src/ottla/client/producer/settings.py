"""The settings of a producer, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ottla.client.producer.partitioner import Partitioner, murmur2_partitioner
from ottla.protocol.records.codecs import Compression
from ottla.protocol.records.envelope import Traits

Acks = Literal["all", 0, 1, -1]
IN_FLIGHT_MAX = 5
"""Batches of a producer that a broker remembers for each partition in order to recognise duplicates."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings that a `Producer` is created with."""

    acks: Acks = "all"
    idempotence: bool = True
    compression: str = "none"
    compression_level: int | None = None
    linger_ms: float = 0
    batch_bytes: int = 128 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    max_in_flight: int = IN_FLIGHT_MAX
    max_request_bytes: int = 1024 * 1024
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    partitioner: Partitioner = murmur2_partitioner
    transactional_id: str | None = None
    """Identifies the producer across restarts. The last producer that started with it fences the others."""
    transaction_timeout_ms: int = 60_000
    """The coordinator aborts a transaction that takes longer, and fences its producer."""

    def __post_init__(self) -> None:
        if self.acks not in ("all", 0, 1, -1):
            raise ValueError(f'acks must be "all", 1 or 0, not {self.acks!r}')
        if self.idempotence and self.acks_number != -1:
            raise ValueError(f'idempotence needs acks="all"; pass idempotence=False with acks={self.acks!r}')
        if self.idempotence and not 1 <= self.max_in_flight <= IN_FLIGHT_MAX:
            raise ValueError(f"idempotence needs max_in_flight between 1 and {IN_FLIGHT_MAX}")
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        if self.compression not in Compression.__members__:
            raise ValueError(
                f"compression must be one of {', '.join(Compression.__members__)}, not {self.compression!r}"
            )
        if self.batch_bytes < 1 or self.buffer_bytes < self.batch_bytes:
            raise ValueError("batch_bytes must be at least 1, and buffer_bytes at least batch_bytes")
        if self.transactional_id == "":
            raise ValueError("transactional_id is empty; use None for a producer without transactions")
        if self.transactional_id is not None and not self.idempotence:
            raise ValueError("transactions need idempotence")
        if self.transaction_timeout_ms < 1:
            raise ValueError("transaction_timeout_ms must be at least 1")
        if self.delivery_timeout_ms < self.linger_ms:
            raise ValueError("delivery_timeout_ms must be at least linger_ms")

    @property
    def acks_number(self) -> int:
        """The number that the protocol uses."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def traits(self) -> Traits:
        """The properties of every batch."""
        return Traits(
            compression=Compression[self.compression],
            level=self.compression_level,
            transactional=self.transactional_id is not None,
        )
