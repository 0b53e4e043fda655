"""Queries to other brokers for a page, made like any client's through the broker's own listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.client import Admin

ASKING_TIMEOUT_S = 3.0


@asynccontextmanager
async def asking(broker: Broker) -> AsyncIterator[Admin]:
    """Opens an admin client. Raises ClientError, or TimeoutError if a query takes too long for a page."""
    from ottla.client import Admin  # most pages need no other broker

    endpoint = broker.context.endpoints.for_brokers
    address = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    async with (
        asyncio.timeout(ASKING_TIMEOUT_S),
        Admin(f"{address}:{endpoint.port}", client_id="ottla-metrics", security=broker.context.peer_security) as admin,
    ):
        yield admin
