"""The grpc.health.v1 service: whether the append stream is serving, for load balancers and operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.net.grpc.server import Call, Method, unary
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import Receiver
from ottla.protocol.wire.protobuf import fields, put_int, text

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Health:
    """Serves grpc.health.v1."""

    def __init__(self, broker: Broker, services: tuple[str, ...]) -> None:
        self._broker = broker
        self._services = ("", *services)

    def methods(self) -> dict[str, Method]:
        """Returns the handlers of Check and Watch, by path."""
        return {
            f"/{SERVICE}/Check": unary("Check", self._check),
            f"/{SERVICE}/Watch": lambda call: _Watch(self, call),
        }

    async def _check(self, message: bytes) -> bytes:
        status = self.status_of(message)
        if status == SERVICE_UNKNOWN:
            raise RpcError(Status.NOT_FOUND, "there is no such service")
        return encode_status(status)

    def status_of(self, message: bytes) -> int:
        """Returns the status of the service that an encoded HealthCheckRequest names; the empty name stands for the
        whole server. Raises ValueError if the message is malformed."""
        asked = dict(fields(message)).get(1, b"")
        if text(asked) not in self._services:
            return SERVICE_UNKNOWN
        return NOT_SERVING if self._broker.stopping else SERVING


class _Watch(Receiver):
    """A Watch call. Reports the status only once, because a broker that stops closes its connections."""

    def __init__(self, health: Health, call: Call) -> None:
        self._health = health
        self._call = call

    def on_message(self, message: bytes) -> None:
        self._call.stream.credit(len(message))
        try:
            self._call.send(encode_status(self._health.status_of(message)))
        except ValueError as error:
            self._call.finish(Status.INVALID_ARGUMENT, str(error))


def encode_status(status: int) -> bytes:
    """Encodes a HealthCheckResponse."""
    out = bytearray()
    put_int(out, 1, status)
    return bytes(out)
