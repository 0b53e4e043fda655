"""The kind of a listener: its name, and how its connections are encrypted and authenticated."""

from __future__ import annotations

import ssl
from typing import NamedTuple, Protocol

from ottla.protocol.model.listeners import SecurityProtocol
from ottla.protocol.model.x509 import Certificate


class TlsContexts(Protocol):
    """Provides the TLS context of new connections."""

    def context(self) -> ssl.SSLContext:
        """Returns the context with the newest certificates."""
        ...

    @property
    def certificate(self) -> Certificate | None:
        """The certificate that new connections get."""
        ...


class ListenerKind(NamedTuple):
    """The name and the security of a listener."""

    name: str = SecurityProtocol.PLAINTEXT.value
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsContexts | None = None
    """Present if the protocol uses TLS."""

    @property
    def is_plain(self) -> bool:
        """Whether connections are neither encrypted nor authenticated."""
        return self.protocol is SecurityProtocol.PLAINTEXT


PLAIN = ListenerKind()
