"""The SASL authentication of one connection, and its repetition when a session ends (KIP-368).

Clients are told only that their credentials are invalid; the log has the reason. An exchange that fails closes the
connection after the reply.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import NamedTuple

from ottla.broker.security.credentials import ScramCredentials
from ottla.machines.sasl.outcomes import Authenticated, Challenge, Outcome, Rejected
from ottla.machines.sasl.plain import check_plain
from ottla.machines.sasl.scram import ScramServer
from ottla.protocol.model.listener_security import SaslSettings
from ottla.protocol.model.principals import Principal
from ottla.protocol.model.security_keys import PLAIN
from ottla.protocol.sasl.scram import NONCE_BYTES

log = logging.getLogger("ottla.authentication")

USER = "User"
CLOSE_AFTER_S = 0.1
"""How long a connection stays open after a failed authentication, so that the client reads the reply."""


class Reply(NamedTuple):
    """The answer to one message of a client."""

    message: bytes = b""
    failure: str | None = None
    """For the client, if the authentication failed."""
    is_illegal: bool = False
    """Whether the message came out of order."""
    session_ms: int = 0
    """How long the authentication is valid, if this ended it; 0 means without limit."""


class SaslSession:
    """Authenticates one connection. Calls `on_change` with the principal, or with None when the session has ended, and
    `close` shortly after the reply to a failed authentication."""

    def __init__(
        self,
        peer: str,
        settings: SaslSettings,
        credentials: ScramCredentials,
        on_change: Callable[[Principal | None], None],
        close: Callable[[], None],
    ) -> None:
        self._peer = peer
        self._settings = settings
        self._credentials = credentials
        self._on_change = on_change
        self._close = close
        self._mechanism: str | None = None
        self._scram: ScramServer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.principal: Principal | None = None
        """The principal of the first authentication. Later ones may not change it."""
        self.first_mechanism: str | None = None
        self.takes_raw_tokens = False
        """Whether the client sends tokens without request headers, as after SaslHandshake v0."""

        self.is_rejected = False
        """Whether an authentication failed. The connection is closed shortly afterwards."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the listener offers."""
        return self._settings.mechanisms

    def choose(self, mechanism: str) -> bool:
        """Begins an exchange. Returns False if the listener does not offer the mechanism."""
        self._mechanism = self._scram = None
        if mechanism not in self._settings.mechanisms or self.first_mechanism not in (None, mechanism):
            return False
        self._mechanism = mechanism
        return True

    async def receive(self, message: bytes) -> Reply:
        """Handles one message of the client."""
        mechanism = self._mechanism
        if mechanism is None:
            return Reply(failure="SaslAuthenticate request received without a valid SaslHandshake.", is_illegal=True)
        try:
            outcome = await self._step(mechanism, message)
        except OSError as error:
            log.error("peer %s cannot be authenticated: %s", self._peer, error)
            outcome = Rejected("the credentials cannot be read")
        if isinstance(outcome, Challenge):
            return Reply(outcome.message)
        self._mechanism = self._scram = None
        if isinstance(outcome, Authenticated):
            principal = Principal(USER, outcome.user)
            if self.principal in (None, principal):
                return self._succeed(mechanism, principal, outcome.message)
            outcome = Rejected(f"it authenticated as {self.principal} before, and as {principal} now")
        log.warning("peer %s failed to authenticate with %s: %s", self._peer, mechanism, outcome.why)
        self.is_rejected = True
        self.end()
        self._timer = asyncio.get_running_loop().call_later(CLOSE_AFTER_S, self._close)
        return Reply(failure=_failure(mechanism))

    def end(self) -> None:
        """Cancels the timer of the session."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _step(self, mechanism: str, message: bytes) -> Outcome:
        if mechanism == PLAIN:
            return check_plain(message, self._settings.plain_users)
        scram = self._scram
        if scram is None:
            scram = self._scram = ScramServer(mechanism, secrets.token_bytes(NONCE_BYTES))
            user = scram.receive_first(message)
            if isinstance(user, Rejected):
                return user
            secret = await self._credentials.secret()
            return scram.challenge(await self._credentials.find(user, mechanism), secret)
        return scram.receive_final(message)

    def _succeed(self, mechanism: str, principal: Principal, message: bytes) -> Reply:
        self.principal, self.first_mechanism = principal, mechanism
        self.takes_raw_tokens = False
        self.end()
        session_ms = self._settings.session_ms.get(mechanism, 0)
        if session_ms:
            self._timer = asyncio.get_running_loop().call_later(session_ms / 1000, self._on_change, None)
        self._on_change(principal)
        return Reply(message, session_ms=session_ms)


def _failure(mechanism: str) -> str:
    """Returns Kafka's sentence."""
    if mechanism == PLAIN:
        return "Authentication failed: Invalid username or password"
    return f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
