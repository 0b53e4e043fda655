"""Passes the requests of a server's connections to a broker: implements the port `ottla.broker.server.port`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.api.api import ConnectionState, Reply, RunReplies
from ottla.broker.api.dispatch import dispatch, dispatch_run

if TYPE_CHECKING:
    from ottla.broker.broker import Broker


class BrokerRequestHandler:
    """Handles the requests of all connections."""

    __slots__ = ("_broker",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def connect(self, peer: str) -> BrokerConnectionHandler:
        return BrokerConnectionHandler(self._broker, ConnectionState(peer))

    def begin_shutdown(self) -> None:
        self._broker.begin_shutdown()


class BrokerConnectionHandler:
    """Handles the requests of one connection.

    The functions are attributes, not methods: each of them runs for every request, and a method would be one more
    call.
    """

    __slots__ = ("_state", "begin_read", "end_read", "handle", "handle_run")

    def __init__(self, broker: Broker, state: ConnectionState) -> None:
        self._state = state
        self.begin_read: Callable[[], None] = broker.context.wakeups.begin_read
        self.end_read: Callable[[], None] = broker.context.wakeups.end_read
        self.handle: Callable[[memoryview], Reply] = partial(dispatch, broker, state)
        self.handle_run: Callable[[Sequence[memoryview], int, int], tuple[RunReplies | None, int]] = partial(
            dispatch_run, broker, state
        )

    @property
    def is_of_broker(self) -> bool:
        return self._state.is_of_broker
