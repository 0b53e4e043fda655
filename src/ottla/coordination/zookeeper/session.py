"""Sessions of ZooKeeper, between kazoo's threads and the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, KazooException, OperationTimeoutError
from kazoo.exceptions import SessionExpiredError as KazooSessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.retry import KazooRetry

from ottla.coordination.port import OutcomeUnknownError, UnavailableError

log = logging.getLogger("ottla.coordination.zookeeper")

RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "ignore_expire": True}
NO_ANSWER = (ConnectionLoss, ConnectionClosedError, OperationTimeoutError, KazooSessionExpiredError)


class Session:
    """A session. `on_state` is called on the event loop after each change of the connection."""

    def __init__(self, hosts: str, session_timeout_s: float, on_state: Callable[[], None]) -> None:
        self.was_lost = False
        """The session expired at least once and was replaced by a new one."""
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._state_changed = asyncio.Event()
        self.client = KazooClient(
            hosts, timeout=session_timeout_s, connection_retry=KazooRetry(**RETRY), logger=log, randomize_hosts=True
        )
        self.client.add_listener(lambda state: self._in_loop(self._on_client_state, state))

    async def start(self, timeout_s: float) -> None:
        """Connects. Raises UnavailableError."""
        try:
            await asyncio.to_thread(self.client.start, timeout_s)
        except (KazooTimeoutError, KazooException) as error:
            await self.stop()
            raise UnavailableError(f"ZooKeeper could not be reached: {error}") from error

    async def stop(self) -> None:
        """Ends the session, if ZooKeeper can be reached."""
        with suppress(Exception):  # kazoo's own, while it is connecting: it stops all the same
            await asyncio.to_thread(self.client.stop)
        with suppress(Exception):
            await asyncio.to_thread(self.client.close)

    async def call(self, request: Callable[..., Any], *args: Any, timeout_s: float, **options: Any) -> Any:
        """Calls an asynchronous request of kazoo. Raises ZooKeeper's errors, UnavailableError if there is no
        connection, and OutcomeUnknownError if there is no reply."""
        answered: asyncio.Future[Any] = self._loop.create_future()
        if not self.client.connected:
            raise UnavailableError("there is no connection to ZooKeeper")
        request(*args, **options).rawlink(lambda result: self._in_loop(_settle, answered, result))
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError as error:
            raise OutcomeUnknownError(f"ZooKeeper did not respond within {timeout_s:.1f} s") from error
        except NO_ANSWER as error:
            raise OutcomeUnknownError(f"no response from ZooKeeper: {error!r}") from error

    async def connection(self, timeout_s: float) -> None:
        """Waits for a connection, for example during an election or a restart of a server. Raises UnavailableError."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._is_settled():
                    self._state_changed.clear()
                    await self._state_changed.wait()
                return
        raise UnavailableError(f"ZooKeeper could not be reached within {timeout_s} s")

    def _is_settled(self) -> bool:
        return bool(self.client.connected)

    def _on_client_state(self, state: str) -> None:
        self.was_lost = self.was_lost or state == KazooState.LOST
        self._state_changed.set()
        self._on_state()

    def _in_loop(self, callback: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *args)


def _settle(answered: asyncio.Future[Any], result: Any) -> None:
    if answered.done():
        return
    if result.exception is not None:
        answered.set_exception(result.exception)
    else:
        answered.set_result(result.value)


class LeaseSession(Session):
    """The session of one lease, which only its owner keeps alive.

    kazoo sends pings from a thread of its own, which would keep the lease of a hanging event loop alive. This session
    sends a ping only after a renewal was requested, so that it still notices a dead connection.
    """

    def __init__(self, hosts: str, session_timeout_s: float, on_state: Callable[[], None]) -> None:
        super().__init__(hosts, session_timeout_s, on_state)
        self._connection = LeaseConnection(self.client, self.client._conn_retry.copy(), logger=log)
        self.client._connection = self._connection

    def _is_settled(self) -> bool:
        """Stops waiting if the session was lost: a lost lease does not come back."""
        return self.was_lost or super()._is_settled()

    @property
    def granted_ms(self) -> int:
        """The timeout that the server granted."""
        return self._connection.granted_ms

    def allow_ping(self) -> None:
        """Lets kazoo send one more ping, which keeps the session alive."""
        self._connection.may_ping = True


class LeaseConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """A connection of kazoo that sends pings only on request."""

    granted_ms = 0
    may_ping = False

    def _connect(self, *args: Any, **options: Any) -> tuple[float, float]:
        read_timeout_ms, connect_timeout_ms = super()._connect(*args, **options)
        self.granted_ms = round(read_timeout_ms * 3 / 2)
        return read_timeout_ms, connect_timeout_ms

    def _send_ping(self, *args: Any, **options: Any) -> None:
        if self.may_ping:
            self.may_ping = False
            super()._send_ping(*args, **options)
