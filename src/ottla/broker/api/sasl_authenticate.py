"""SaslAuthenticate (key 36), v0-2.

Behaviour: handles one message of the exchange that SaslHandshake began. SASL_AUTHENTICATION_FAILED closes the
connection after the reply; the message is the same for an unknown user and for a wrong password. A client may
authenticate again on the same connection, as the same user and with the same mechanism.
Versions: v1 session lifetime (connections.max.reauth.ms); v2 flexible.
Not implemented: nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ottla.broker.api.api import Api, Context, reply
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest

API = Api(36, "SaslAuthenticate", (0, 2))


async def handle(ctx: Context, request: SaslAuthenticateRequest) -> object:
    """Passes the client's message to its exchange."""
    session = ctx.connection.sasl
    if session is None:
        why = "SaslAuthenticate request received on a listener without SASL."
        return reply(ctx, error_code=ErrorCode.illegal_sasl_state, error_message=why, auth_bytes=b"")
    answer = await session.receive(bytes(request.auth_bytes))
    error = ErrorCode.none
    if answer.failure is not None:
        error = ErrorCode.illegal_sasl_state if answer.is_illegal else ErrorCode.sasl_authentication_failed
    return reply(
        ctx,
        error_code=error,
        error_message=answer.failure,
        auth_bytes=answer.message,
        session_lifetime=timedelta(milliseconds=answer.session_ms),
    )
