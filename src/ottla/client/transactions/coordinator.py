"""Sends requests to the coordinators of a transaction, its own and those of groups, and retries them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.client.brokers import Brokers, new_backoff
from ottla.client.errors import BrokerRefusedError, ClientError, NoBrokerError, refused
from ottla.client.groups.coordinator import OFFSETS, TRANSACTION_KEY, Coordinator
from ottla.client.groups.member import MOVING
from ottla.client.metadata import PASSING_FAILURES, Metadata
from ottla.client.transactions.requests import Request
from ottla.client.transactions.verdicts import Verdict, verdict_of
from ottla.net.apis import TRANSACTION_VERSION, call

PURPOSE = "transactions"
PAUSE_MIN_MS = 20
"""The initial pause is short, because most retries wait for the markers of the previous transaction."""


class TransactionCoordinators:
    """The coordinators that take part in a producer's transactions."""

    def __init__(self, brokers: Brokers, metadata: Metadata, transactional_id: str, timeout_ms: int) -> None:
        self.version = 1
        """The transaction version of the cluster, according to the coordinator that was asked last."""
        self.unsure = False
        """Whether the last request was repeated because a reply was lost."""
        self._brokers = brokers
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._own = Coordinator(brokers, metadata, transactional_id, TRANSACTION_KEY)
        self._groups: dict[str, Coordinator] = {}

    async def ask(self, request: Request) -> Any:
        """Asks the transaction's own coordinator. Raises BrokerRefusedError for errors that no retry can fix."""
        return await self._until_answered(self._own, PURPOSE, lambda: request)

    async def ask_group(self, group_id: str, request: Callable[[], Request]) -> Any:
        """Asks a group's coordinator. Calls `request` for each attempt, as the member may have a newer generation."""
        coordinator = self._groups.get(group_id)
        if coordinator is None:
            coordinator = self._groups[group_id] = Coordinator(self._brokers, self._metadata, group_id)
        return await self._until_answered(coordinator, OFFSETS, request)

    async def _until_answered(self, coordinator: Coordinator, purpose: str, make: Callable[[], Request]) -> Any:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_ms / 1000
        backoff = new_backoff(min_ms=PAUSE_MIN_MS)
        self.unsure = False
        while True:
            try:
                return await self._ask_once(coordinator, purpose, make())
            except PASSING_FAILURES as cause:
                failure: ClientError = cause
                self.unsure = self.unsure or not isinstance(cause, NoBrokerError)
                coordinator.forget()
            except BrokerRefusedError as cause:
                if verdict_of(cause.error) is not Verdict.AGAIN:
                    raise
                failure = cause
                if cause.error in MOVING:
                    coordinator.forget()
            pause_s = backoff.next_s()
            if loop.time() + pause_s >= deadline_s:
                raise failure
            await asyncio.sleep(pause_s)

    async def _ask_once(self, coordinator: Coordinator, purpose: str, request: Request) -> Any:
        connection = await coordinator.connection(purpose)
        if coordinator is self._own:
            self.version = 2 if connection.features.get(TRANSACTION_VERSION, 0) >= 2 else 1
        reply = await call(connection, request.api, request.body, what=request.what)
        error = request.error_of(reply)
        if error:
            raise refused(error, f"{coordinator.group_text}, {request.what}")
        return reply
