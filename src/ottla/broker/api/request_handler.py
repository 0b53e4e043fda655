"""Passes the requests of a server's connections to a broker: implements the port `ottla.broker.server.port`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.api import api_versions, sasl_authenticate, sasl_handshake
from ottla.broker.api.api import Buffers, ConnectionState, Reply
from ottla.broker.api.dispatch import dispatch, dispatch_run
from ottla.broker.endpoints import ClientAddress
from ottla.broker.security.certificate_principals import CertificatePrincipals
from ottla.broker.security.sasl_session import SaslSession
from ottla.protocol.model.listener_security import ListenerSecurity
from ottla.protocol.model.principals import ANONYMOUS, Principal
from ottla.protocol.wire.headers import parse_request_header
from ottla.protocol.wire.primitives import MalformedRequest

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.handlers")

RunReplies = bytes | asyncio.Future[bytes]
BEFORE_AUTHENTICATION = frozenset({api_versions.API.key, sasl_handshake.API.key, sasl_authenticate.API.key})
"""The APIs that a client may use before it is authenticated."""


class BrokerRequestHandler:
    """Handles the requests of all connections."""

    __slots__ = ("_broker", "_certificates", "_securities")

    def __init__(self, broker: Broker, securities: Mapping[str, ListenerSecurity] | None = None) -> None:
        self._broker = broker
        self._securities = dict(securities or {})
        self._certificates = {
            name: CertificatePrincipals(security.tls.principal_rules)
            for name, security in self._securities.items()
            if security.tls is not None and security.sasl is None
        }

    def connect(self, client: ClientAddress) -> BrokerConnectionHandler:
        state = ConnectionState(str(client), client.host, client.listener)
        return BrokerConnectionHandler(
            self._broker, state, self._securities.get(client.listener), self._certificates.get(client.listener)
        )

    def begin_shutdown(self) -> None:
        self._broker.begin_shutdown()


class BrokerConnectionHandler:
    """Handles the requests of one connection.

    `handle` and `handle_run` are partial functions, not methods: each of them runs for every request, and a method
    would be one more call. Before authentication they are others, so that the check costs nothing afterwards.
    """

    __slots__ = ("_broker", "_certificates", "_rebind", "_security", "_state", "handle", "handle_run")

    _rebind: Callable[[bool], None]

    def __init__(
        self,
        broker: Broker,
        state: ConnectionState,
        security: ListenerSecurity | None = None,
        certificates: CertificatePrincipals | None = None,
    ) -> None:
        self._broker = broker
        self._state = state
        self._security = security
        self._certificates = certificates
        self.handle: Callable[[memoryview], Reply]
        self.handle_run: Callable[[Sequence[memoryview], int, int], tuple[RunReplies | None, int]]
        self._let_in()

    def _let_in(self) -> None:
        self.handle = partial(dispatch, self._broker, self._state)
        self.handle_run = partial(dispatch_run, self._broker, self._state)

    def _shut_out(self) -> None:
        self.handle = self._handle_unauthenticated
        self.handle_run = _no_run

    def begin(self, transport: asyncio.BaseTransport, rebind: Callable[[bool], None]) -> bool:
        self._rebind = rebind
        if self._certificates is not None:
            principal = self._certificates.principal_of(transport.get_extra_info("ssl_object"))
            if isinstance(principal, str):
                log.warning("peer %s is closed: %s", self._state.peer, principal)
                transport.close()
                return False
            self._state.principal = principal
        sasl = None if self._security is None else self._security.sasl
        if sasl is None:
            return True
        self._state.sasl = SaslSession(
            self._state.peer, sasl, self._broker.credentials, self._on_session, transport.close
        )
        self._shut_out()
        return False

    def end(self) -> None:
        if self._state.sasl is not None:
            self._state.sasl.end()

    @property
    def is_of_broker(self) -> bool:
        return self._state.is_of_broker

    def _on_session(self, principal: Principal | None) -> None:
        self._state.principal = principal or ANONYMOUS
        if principal is None:
            self._shut_out()
        else:
            self._let_in()
        self._rebind(principal is not None)

    def _handle_unauthenticated(self, frame: memoryview) -> Reply:
        """Handles the requests that lead to an authentication. Raises MalformedRequest for any other."""
        session = self._state.sasl
        assert session is not None
        if session.is_rejected:
            raise MalformedRequest("it sent a request after its authentication had failed")
        if session.takes_raw_tokens:
            return self._take_token(session, bytes(frame))
        api_key = parse_request_header(frame).api_key
        if api_key not in BEFORE_AUTHENTICATION:
            why = "its session has ended" if session.principal is not None else "it is not authenticated"
            raise MalformedRequest(f"it sent a request with API key {api_key}, but {why}")
        return dispatch(self._broker, self._state, frame)

    async def _take_token(self, session: SaslSession, token: bytes) -> Buffers:
        answer = await session.receive(token)
        if answer.failure is not None:
            raise MalformedRequest(answer.failure)
        return [answer.message]


def _no_run(frames: Sequence[memoryview], at: int, count_max: int) -> tuple[RunReplies | None, int]:
    return None, 0
