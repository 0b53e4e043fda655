"""InitProducerId (key 22), v0-6.

Behaviour: a new producer id with epoch 0 for an idempotent producer. A producer that sends the id and epoch it had
(its sequences ran out, or it met an error) gets a new id too: without a transactional id there is no state to keep.
Versions: v2 flexible; v3 producer id and epoch in the request; v6 two-phase commit.
Not implemented: transactional ids, answered with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.handlers.api import Api, Context, reply
from ottla.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v6 import InitProducerIdRequest

API = Api(22, "InitProducerId", (0, 6))

_NONE = -1


async def handle(ctx: Context, request: InitProducerIdRequest) -> object:
    producer_id = _check(ctx, request) or await ctx.broker.allocate_producer_id()
    if isinstance(producer_id, Refused):
        return reply(ctx, error_code=producer_id.error, producer_id=_NONE, producer_epoch=_NONE)
    return reply(ctx, error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0)


def _check(ctx: Context, request: InitProducerIdRequest) -> Refused | None:
    if request.transactional_id is not None:
        is_empty = request.transactional_id == ""
        return Refused(ErrorCode.invalid_request if is_empty else ErrorCode.unsupported_version)
    if ctx.version >= 3 and (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return Refused(ErrorCode.invalid_request)
    return None
