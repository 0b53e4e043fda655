"""From two settings to a service that is served: `ottla.wal.host` and `ottla.wal.port`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.append_stream.health import SERVICE as HEALTH
from ottla.append_stream.health import Health
from ottla.append_stream.reflection import Reflection
from ottla.append_stream.service import SERVICE, WalService
from ottla.rpc.server import RpcServer

if TYPE_CHECKING:
    from ottla.broker.broker import Broker


class AppendStreamServer:
    def __init__(self, broker: Broker) -> None:
        self._service = WalService(broker)
        health = Health(broker, (SERVICE,))
        reflection = Reflection((SERVICE, HEALTH))
        self._server = RpcServer({**self._service.methods(), **health.methods(), **reflection.methods()})

        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """OSError if that address cannot be had."""
        self.port = await self._server.start(host, port)

    async def stop(self, grace_s: float) -> None:
        """Answers what was accepted; whoever writes or follows is told to go elsewhere."""
        self._service.stop()
        await self._server.stop(grace_s)

    async def kill(self) -> None:
        """As the death of the process would."""
        await self._server.abort()
