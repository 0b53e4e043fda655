"""The basis of all admin calls: connections, metadata, and requests to the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.client.brokers import Brokers, new_backoff
from ottla.client.errors import ClientError, ConnectionLostError, NoBrokerError, refused
from ottla.client.metadata import Metadata, TopicView
from ottla.net.apis import ClientApi, call
from ottla.net.connection import Connection
from ottla.net.security import NO_SECURITY, ConnectionSecurity
from ottla.protocol.model.errors import ErrorCode

CONTROLLER_TRIES = 8
TRIES = 4
T = TypeVar("T")


class AdminCalls:
    """Sends requests to any broker or to the controller, and retries where that is safe."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str = "ottla-admin",
        connect_timeout_ms: int = 10_000,
        request_timeout_ms: int = 30_000,
        security: ConnectionSecurity = NO_SECURITY,
    ) -> None:
        self._timeout_ms = request_timeout_ms
        self._brokers = Brokers(
            bootstrap_servers,
            client_id=client_id,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            security=security,
        )
        self._metadata = Metadata(self._brokers, allow_auto_create=False)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connects. Raises NoBrokerError if no broker answers."""
        try:
            await self._metadata.refresh()
        except BaseException:
            await self._brokers.close()
            raise

    async def close(self) -> None:
        """Closes all connections."""
        await self._brokers.close()

    @property
    def _timeout(self) -> timedelta:
        return timedelta(milliseconds=self._timeout_ms)

    async def _topic(self, name: str) -> TopicView:
        self._metadata.mark_stale()
        try:
            return await self._metadata.topic(name, timeout_ms=self._timeout_ms, unknown_for_ms=0)
        finally:
            self._metadata.forget([name])

    async def _until_known(self, name: str) -> None:
        """Waits until a new topic is known: some brokers learn of it a moment later, but a user expects it to exist."""
        self._metadata.mark_stale()
        await self._metadata.topic(name, timeout_ms=self._timeout_ms, unknown_for_ms=self._timeout_ms)
        self._metadata.forget([name])

    async def _connection_for(self, broker_id: int | None) -> Connection:
        if broker_id is None:
            return await self._brokers.any_connection()
        return await self._brokers.connection(broker_id)

    async def _ask(self, api: ClientApi, body: Mapping[str, Any], what: str) -> Any:
        """Asks any broker. If the connection is lost, asks again, possibly another broker."""
        return await self._again(lambda: self._ask_once(api, body, what))

    async def _ask_once(self, api: ClientApi, body: Mapping[str, Any], what: str) -> Any:
        return await call(await self._brokers.any_connection(), api, body, what=what)

    async def _again(self, question: Callable[[], Awaitable[T]]) -> T:
        """Runs a call that may safely run twice, and retries it when a connection is lost."""
        backoff = new_backoff()
        for _ in range(TRIES - 1):
            try:
                return await question()
            except ConnectionLostError:
                await asyncio.sleep(backoff.next_s())
        return await question()

    async def _call_controller(self, api: ClientApi, body: Mapping[str, Any], what: str) -> Any:
        """Calls the controller, or any broker if the controller is unknown or unreachable; brokers forward it."""
        backoff = new_backoff()
        for _ in range(CONTROLLER_TRIES):
            await self._metadata.refresh()
            controller_id = self._metadata.view.controller_id
            try:
                connection = await self._connection_for(controller_id if controller_id >= 0 else None)
            except NoBrokerError:
                connection = await self._brokers.any_connection()
            reply = await call(connection, api, body, what=what, timeout_ms=self._timeout_ms + 1000)
            if not _not_controller(reply):
                return reply
            await asyncio.sleep(backoff.next_s())
        raise ClientError(f"{what}: the cluster has no controller at the moment")


def check(result: Any, what: str) -> None:
    """Raises a BrokerRefusedError if the result has an error code."""
    if result.error_code:
        raise refused(result.error_code, what, getattr(result, "error_message", None))


def _not_controller(reply: Any) -> bool:
    results: list[Any] = [reply]
    for name in ("topics", "responses", "results"):
        results += getattr(reply, name, ())
    return any(getattr(result, "error_code", None) == ErrorCode.not_controller for result in results)
