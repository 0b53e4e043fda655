"""The client's side of SASL authentication on a new connection."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from ottla.net.errors import AuthenticationFailedError
from ottla.net.security import SaslLogin
from ottla.protocol.sasl.scram import HASHES, NONCE_BYTES, ScramClient, ScramError
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.schema import decode, encode, request_type, response_type

if TYPE_CHECKING:
    from ottla.net.connection import Connection

HANDSHAKE, HANDSHAKE_VERSION = 17, 1
AUTHENTICATE, AUTHENTICATE_VERSION = 36, 2
"""Versions that every broker since Kafka 2.5 has, so that no ApiVersions request is needed before."""


async def authenticate(connection: Connection, login: SaslLogin) -> None:
    """Authenticates. Raises AuthenticationFailedError if the broker rejects the login."""
    what = "authenticating"
    request = request_type(HANDSHAKE, HANDSHAKE_VERSION)(mechanism=login.mechanism)
    answer = await _call(connection, HANDSHAKE, HANDSHAKE_VERSION, request, what)
    if answer.error_code:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailedError(
            f"the broker at {connection.address} does not offer the mechanism {login.mechanism}, but {offered}"
        )
    if login.mechanism not in HASHES:
        await _exchange(connection, f"\0{login.username}\0{login.password}".encode())
        return
    scram = ScramClient(login.mechanism, login.username, login.password, secrets.token_bytes(NONCE_BYTES))
    try:
        challenge = await _exchange(connection, scram.first())
        scram.verify(await _exchange(connection, scram.final(challenge)))
    except ScramError as failure:
        raise AuthenticationFailedError(f"authentication at {connection.address} failed: {failure}") from failure


async def _exchange(connection: Connection, message: bytes) -> bytes:
    request = request_type(AUTHENTICATE, AUTHENTICATE_VERSION)(auth_bytes=message)
    answer = await _call(connection, AUTHENTICATE, AUTHENTICATE_VERSION, request, "authenticating")
    if answer.error_code:
        raise AuthenticationFailedError(
            f"the broker at {connection.address} rejected the login: {answer.error_message or answer.error_code}"
        )
    return bytes(answer.auth_bytes)


async def _call(connection: Connection, key: int, version: int, request: Any, what: str) -> Any:
    reply = await connection.request(key, version, [encode(request)], what=what)
    try:
        return decode(response_type(key, version), reply)[0]
    except MalformedRequest as cause:
        raise AuthenticationFailedError(f"cannot decode the reply of {connection.address}: {cause}") from cause
