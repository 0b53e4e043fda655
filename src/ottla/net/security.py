"""How a client or a broker secures its connections: encryption, and the login that it authenticates with."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from ottla.net.tls import ReloadingContext, client_context
from ottla.protocol.model.listeners import SecurityProtocol
from ottla.protocol.model.tls_settings import TlsSettings


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """A SASL mechanism with a user name and a password."""

    mechanism: str
    username: str
    password: str = field(repr=False)


class ConnectionSecurity:
    """The security of the connections that a client opens.

    security = ConnectionSecurity(SecurityProtocol.SASL_SSL, tls_settings, SaslLogin("SCRAM-SHA-512", "alice", "..."))
    """

    def __init__(
        self,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        tls: TlsSettings | None = None,
        login: SaslLogin | None = None,
    ) -> None:
        """Loads the certificates if the protocol uses TLS. Raises BadTlsError."""
        self.protocol = protocol
        self.login = login if protocol.uses_sasl else None
        self._checks_host = tls.checks_host if tls is not None else True
        self._tls: ReloadingContext | None = None
        if protocol.uses_tls:
            assert tls is not None, "a protocol with TLS has settings of TLS"
            self._tls = ReloadingContext(tls, client_context, "connections to brokers")

    def tls_context(self) -> ssl.SSLContext | None:
        """Returns the TLS context of a new connection, or None if it is not encrypted."""
        return None if self._tls is None else self._tls.context()


NO_SECURITY = ConnectionSecurity()
