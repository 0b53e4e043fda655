"""SaslHandshake (key 17), v0-1.

Behaviour: chooses the mechanism of the authentication that follows. UNSUPPORTED_SASL_MECHANISM, with the mechanisms
of the listener, if it does not have it; ILLEGAL_SASL_STATE on a listener without SASL.
Versions: after v0, the client sends tokens without request headers; after v1, with SaslAuthenticate.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.api import Api, Context, reply
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest

API = Api(17, "SaslHandshake", (0, 1))


async def handle(ctx: Context, request: SaslHandshakeRequest) -> object:
    """Begins an authentication with the mechanism that the client names."""
    session = ctx.connection.sasl
    if session is None:
        return reply(ctx, error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    if not session.choose(request.mechanism):
        return reply(ctx, error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=session.mechanisms)
    session.takes_raw_tokens = ctx.version == 0
    return reply(ctx, error_code=ErrorCode.none, mechanisms=session.mechanisms)
