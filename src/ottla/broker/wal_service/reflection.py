"""The grpc.reflection service, which describes this server so that tools such as grpcurl need no proto file.

`wal.pb` is the descriptor that protoc generates from `wal.proto`; `scripts/generate_wal_descriptor.py` writes it.
"""

from __future__ import annotations

from importlib.resources import files

from ottla.net.grpc.server import Call, Method
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import Receiver
from ottla.protocol.wire.protobuf import content, fields, put_bytes, put_int, put_text, text

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
FILE_NAME = "ottla/wal/v1/wal.proto"
PACKAGE = "ottla.wal.v1."
_BY_NAME, _BY_SYMBOL, _LIST = 3, 4, 7


class Reflection:
    """Serves grpc.reflection, v1 and v1alpha."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = (*services, *SERVICES)
        self._descriptor: bytes | None = None

    def methods(self) -> dict[str, Method]:
        """Returns the handler of ServerReflectionInfo, by its paths in v1 and v1alpha."""
        return {f"/{name}/ServerReflectionInfo": lambda call: _Info(self, call) for name in SERVICES}

    def answer(self, request: bytes) -> bytes:
        """Returns the reply to one request. Raises ValueError."""
        asked = dict(fields(request))
        out = bytearray()
        put_bytes(out, 1, content(asked.get(1, b"")))
        put_bytes(out, 2, request, always=True)
        if _LIST in asked:
            listed = bytearray()
            for name in self._services:
                service = bytearray()
                put_text(service, 1, name)
                put_bytes(listed, 1, service)
            put_bytes(out, 6, listed, always=True)
        elif text(asked.get(_BY_NAME, b"")) == FILE_NAME or text(asked.get(_BY_SYMBOL, b"")).startswith(PACKAGE):
            described = bytearray()
            put_bytes(described, 1, self._file())
            put_bytes(out, 4, described)
        else:
            error = bytearray()
            put_int(error, 1, Status.NOT_FOUND)
            put_text(error, 2, "not served here")
            put_bytes(out, 7, error)
        return bytes(out)

    def _file(self) -> bytes:
        if self._descriptor is None:
            described = files("ottla.broker.wal_service").joinpath("wal.pb").read_bytes()
            self._descriptor = content(dict(fields(described))[1])  # the only file of a FileDescriptorSet
        return self._descriptor


class _Info(Receiver):
    def __init__(self, reflection: Reflection, call: Call) -> None:
        self._reflection = reflection
        self._call = call

    def on_message(self, message: bytes) -> None:
        self._call.stream.credit(len(message))
        try:
            self._call.send(self._reflection.answer(message))
        except ValueError as error:
            self._call.finish(Status.INVALID_ARGUMENT, str(error))

    def on_end(self, trailers: dict[str, str]) -> None:
        self._call.finish()

    def on_lost(self, error: RpcError) -> None: ...
