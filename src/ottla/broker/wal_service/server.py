"""Starts the append stream at the address that `ottla.wal.host` and `ottla.wal.port` configure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.wal_service.health import SERVICE as HEALTH
from ottla.broker.wal_service.health import Health
from ottla.broker.wal_service.reflection import Reflection
from ottla.broker.wal_service.service import SERVICE, WalService
from ottla.net.grpc.server import RpcServer

if TYPE_CHECKING:
    from ottla.broker.broker import Broker


class AppendStreamServer:
    """The gRPC server of one broker: the WAL service, health and reflection."""

    def __init__(self, broker: Broker) -> None:
        self._service = WalService(broker)
        health = Health(broker, (SERVICE,))
        reflection = Reflection((SERVICE, HEALTH))
        self._server = RpcServer({**self._service.methods(), **health.methods(), **reflection.methods()})

        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Starts listening. Raises OSError if the address cannot be used."""
        self.port = await self._server.start(host, port)

    async def stop(self, grace_s: float) -> None:
        """Stops gracefully: accepted records get their replies, and writers and followers are told to go elsewhere."""
        self._service.stop()
        await self._server.stop(grace_s)

    async def kill(self) -> None:
        """Stops abruptly, as the death of the process would."""
        await self._server.abort()
