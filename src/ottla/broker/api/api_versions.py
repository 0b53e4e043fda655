"""ApiVersions (key 18), v0-4.

Behaviour: lists the APIs and versions of this broker, as the registry has them. A request in an unsupported version is
answered in v0 with UNSUPPORTED_VERSION and the supported range, so that the client can fall back. Produce is listed
from v0 on, for older clients. The feature transaction.version is 2, so that clients raise their epoch with each
transaction (KIP-890).
Versions: v1 throttle time; v3 flexible body (the header never is), the client's software name and version.
Not implemented: other features; they cannot be changed either (UpdateFeatures).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ottla.broker.api.api import Api, Context, part, reply
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import API_VERSIONS_KEY
from ottla.protocol.wire.primitives import Writer

if TYPE_CHECKING:
    from kio.schema.api_versions.v4 import ApiVersionsRequest

API = Api(API_VERSIONS_KEY, "ApiVersions", (0, 4))

PRODUCE_KEY = 0
"""Listed from v0 on, as in Kafka 4: an older librdkafka that does not see v0 sends its batches uncompressed, whatever
its configuration says. It never uses that version; a client that does gets UNSUPPORTED_VERSION."""

_FEATURE, _LEVEL = "transaction.version", 2
_FEATURES_EPOCH = 0
"""The features are fixed by the software and never change while it runs."""

_ranges: dict[int, tuple[Any, ...]] = {}
"""The supported versions of all APIs, in each version of the response: every new connection asks for them."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


async def handle(ctx: Context, request: ApiVersionsRequest) -> object:
    """Returns the supported versions of every API, and remembers the name and version of the client software."""
    if ctx.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return reply(ctx, error_code=ErrorCode.invalid_request, api_keys=())
        ctx.connection.client_software_name = name
        ctx.connection.client_software_version = version
    ranges = _ranges.get(ctx.version)
    if ranges is None:
        ranges = _ranges[ctx.version] = tuple(_range(ctx, api) for api in _apis())
    return reply(ctx, error_code=ErrorCode.none, api_keys=ranges, **(_features(ctx) if ctx.version >= 3 else {}))


def _features(ctx: Context) -> dict[str, Any]:
    """Returns the feature fields. A v3 client rejects a supported feature whose minimum is 0, so it is told of none, as
    in Kafka."""
    supported = part(ctx, "SupportedFeatureKey", name=_FEATURE, min_version=0, max_version=_LEVEL)
    level = part(ctx, "FinalizedFeatureKey", name=_FEATURE, min_version_level=_LEVEL, max_version_level=_LEVEL)
    return {
        "supported_features": (supported,) if ctx.version >= 4 else (),
        "finalized_features_epoch": _FEATURES_EPOCH,
        "finalized_features": (level,),
    }


def _apis() -> list[Api]:
    from ottla.broker.api.registry import APIS  # the registry imports this module

    return APIS


def _range(ctx: Context, api: Api) -> Any:
    first = 0 if api.key == PRODUCE_KEY else api.versions[0]
    return part(ctx, "ApiVersion", api_key=api.key, min_version=first, max_version=api.versions[1])


def unsupported_version_body() -> bytes:
    """Returns the body in v0, which every client can read."""
    low, high = API.versions
    writer = Writer()
    writer.i16(ErrorCode.unsupported_version)
    writer.array_length(1)
    writer.i16(API.key)
    writer.i16(low)
    writer.i16(high)
    return bytes(writer.out)
