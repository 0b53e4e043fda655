"""Errors of a connection to a broker. `ottla.client` exports them with the errors of clients."""

from __future__ import annotations

import errno
import os
import ssl


class ClientError(Exception):
    """The base class of all errors that the client raises on purpose."""


class NoBrokerError(ClientError):
    """No broker could be reached in time."""


class ConnectionLostError(ClientError):
    """The connection ended during a request. The broker may or may not have executed it."""


class RequestTimedOutError(ClientError):
    """A broker did not reply in time. It may or may not have executed the request."""


class AuthenticationFailedError(ClientError):
    """The broker rejected this client's login, or is not the one that it claims to be. Retrying does not help."""


class UnsupportedByBrokerError(ClientError):
    """The broker lacks an API, or has no version of it that this client speaks."""


def connect_failed(address: str, cause: BaseException | None) -> NoBrokerError:
    """Returns the exception for a failed connection attempt."""
    return NoBrokerError(f"no broker answered at {address}: {_why(cause)}. Is `ottla up` running?")


def _why(cause: BaseException | None) -> str:
    if cause is None:
        return "no response"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not valid for this client: {cause.verify_message} (ssl.truststore.location)"
    if isinstance(cause, ssl.SSLError):
        return f"the TLS handshake failed ({cause.reason}); is security.protocol that of the listener?"
    if isinstance(cause, TimeoutError):
        return "timed out"
    if isinstance(cause, ConnectionRefusedError) or getattr(cause, "errno", None) == errno.ECONNREFUSED:
        return "connection refused"
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number).lower()
    return str(cause) or type(cause).__name__
