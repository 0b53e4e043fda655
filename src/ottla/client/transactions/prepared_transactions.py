"""Transactions that one process writes and another one ends.

    async with producer.transaction() as transaction:
        await transaction.send_table("bills", table)
        prepared = await transaction.prepare()      # everything is acknowledged; the transaction stays open

    async with PreparedTransactions("127.0.0.1:9092") as open_transactions:
        await open_transactions.end(prepared, commit=True)

Ending a transaction requires only the `PreparedTransaction` value, which can be stored. Ending it twice in the same way
does no harm. The coordinator aborts the transaction after the producer's `transaction_timeout_ms`, or when another
producer starts with the same transactional id.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from ottla.client.brokers import Brokers
from ottla.client.metadata import Metadata
from ottla.client.producer.batches import Identity
from ottla.client.transactions import requests
from ottla.client.transactions.coordinator import TransactionCoordinators
from ottla.net.security import NO_SECURITY, ConnectionSecurity


class PreparedTransaction(NamedTuple):
    """Identifies an open transaction whose records are all acknowledged."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
    """The transaction version that it was begun with; it must be ended with the same one."""


class PreparedTransactions:
    """Ends prepared transactions. Start it with `async with`.

        async with PreparedTransactions("127.0.0.1:9092") as open_transactions:
            await open_transactions.end(prepared, commit=True)

    The module docstring shows how a producer prepares one.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str = "ottla-prepared",
        timeout_ms: int = 60_000,
        connect_timeout_ms: int = 10_000,
        security: ConnectionSecurity = NO_SECURITY,
    ) -> None:
        self._brokers = Brokers(
            bootstrap_servers,
            client_id=client_id,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=min(timeout_ms, 30_000),
            security=security,
        )
        self._metadata = Metadata(self._brokers, allow_auto_create=False, max_age_ms=300_000)
        self._timeout_ms = timeout_ms

    async def __aenter__(self) -> Self:
        try:
            await self._metadata.refresh()
        except BaseException:
            await self._brokers.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._brokers.close()

    async def end(self, prepared: PreparedTransaction, *, commit: bool) -> None:
        """Returns once the coordinator has accepted the end.

        Raises BrokerRefusedError unless the transaction is open or was already ended in the same way.
        """
        coordinators = TransactionCoordinators(
            self._brokers, self._metadata, prepared.transactional_id, self._timeout_ms
        )
        identity = Identity(prepared.producer_id, prepared.epoch)
        await coordinators.ask(requests.end(prepared.transactional_id, identity, prepared.version, commit=commit))
