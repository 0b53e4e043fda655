"""Passes the requests of a server's connections to a broker: implements the port `ottla.broker.server.port`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.api.api import ConnectionState, Reply
from ottla.broker.api.dispatch import dispatch, dispatch_run
from ottla.broker.endpoints import ClientAddress
from ottla.broker.security.certificate_principals import CertificatePrincipals
from ottla.protocol.model.listener_security import ListenerSecurity

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.handlers")

RunReplies = bytes | asyncio.Future[bytes]


class BrokerRequestHandler:
    """Handles the requests of all connections."""

    __slots__ = ("_broker", "_certificates")

    def __init__(self, broker: Broker, securities: Mapping[str, ListenerSecurity] | None = None) -> None:
        self._broker = broker
        self._certificates = {
            name: CertificatePrincipals(security.tls.principal_rules)
            for name, security in (securities or {}).items()
            if security.tls is not None
        }

    def connect(self, client: ClientAddress) -> BrokerConnectionHandler:
        state = ConnectionState(str(client), client.host, client.listener)
        return BrokerConnectionHandler(self._broker, state, self._certificates.get(client.listener))

    def begin_shutdown(self) -> None:
        self._broker.begin_shutdown()


class BrokerConnectionHandler:
    """Handles the requests of one connection.

    `handle` and `handle_run` are partial functions, not methods: each of them runs for every request, and a method
    would be one more call.
    """

    __slots__ = ("_certificates", "_state", "handle", "handle_run")

    def __init__(
        self, broker: Broker, state: ConnectionState, certificates: CertificatePrincipals | None = None
    ) -> None:
        self._state = state
        self._certificates = certificates
        self.handle: Callable[[memoryview], Reply] = partial(dispatch, broker, state)
        self.handle_run: Callable[[Sequence[memoryview], int, int], tuple[RunReplies | None, int]] = partial(
            dispatch_run, broker, state
        )

    def begin(self, transport: asyncio.BaseTransport, rebind: Callable[[bool], None]) -> bool:
        if self._certificates is not None:
            principal = self._certificates.principal_of(transport.get_extra_info("ssl_object"))
            if isinstance(principal, str):
                log.warning("peer %s is closed: %s", self._state.peer, principal)
                transport.close()
                return False
            self._state.principal = principal
        return True

    def end(self) -> None: ...

    @property
    def is_of_broker(self) -> bool:
        return self._state.is_of_broker
