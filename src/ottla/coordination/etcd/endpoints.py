"""The members of an etcd cluster: one is in use, and the next one takes over when it fails.

It is important to know when a failed request cannot have been executed. That is the case if there was no connection
before the request was sent, or if the member itself reported that it has no leader. Every other outcome is unknown.
gRPC's own retries are off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import grpc.aio

from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.protocol.wire.protobuf_messages import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")
Call = Callable[[grpc.aio.Channel, float], Awaitable[T]]

METADATA = (("hasleader", "true"),)
"""Makes a member without a leader reject requests and end its watches at once instead of waiting for a leader."""
NO_LEADER = "etcdserver: no leader"
CONNECT_S_MAX = 1.0
ATTEMPT_S_MAX = 2.0
"""Timeout of one attempt of a request that may be retried: an isolated member must not use up all the time."""
PAUSE_S = 0.05
_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),  # limits the handshake of one attempt, despite its name
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd accepts one every 5 s
    ("grpc.keepalive_timeout_ms", 3000),
)
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)


class RefusedError(UnavailableError):
    """etcd replied, and will give the same reply again."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"etcd rejected the request: {details}")
        self.code = code
        self.details = details


class Deadline:
    """The time limit of one request, over all its attempts."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._at_s = asyncio.get_running_loop().time() + timeout_s

    def left_s(self) -> float:
        """Returns the remaining time. Raises UnavailableError if there is none."""
        left_s = self._at_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise UnavailableError(f"etcd could not be reached within {self._timeout_s} s")
        return left_s


class Endpoints:
    """The connections to the members of an etcd cluster."""

    def __init__(
        self, addresses: Sequence[str], credentials: grpc.ChannelCredentials | None, request_timeout_s: float
    ) -> None:
        self._addresses = addresses
        self._channels = [_channel(address, credentials) for address in addresses]
        self._current = 0
        self._timeout_s = request_timeout_s
        self._streams: dict[Any, grpc.aio.Channel] = {}

    async def close(self) -> None:
        """Closes the connections to all members; calls and streams in flight fail."""
        for channel in self._channels:
            await channel.close()

    async def send_once(self, call: Call[T]) -> T:
        """Sends a request that must not be repeated. Raises UnavailableError if it certainly was not executed, else
        OutcomeUnknownError."""
        deadline = Deadline(self._timeout_s)
        while True:
            channel = await self.connected(deadline)
            try:
                return await call(channel, deadline.left_s())
            except grpc.aio.AioRpcError as error:
                refused = _refusal(error)
                if refused is not None:
                    raise refused from error
                self.leave(channel)
                if error.details() != NO_LEADER:
                    raise OutcomeUnknownError(f"no response from etcd: {error.details()}") from error
            await asyncio.sleep(PAUSE_S)

    async def send(self, call: Call[T]) -> T:
        """Sends an idempotent request, retrying as needed. Raises UnavailableError."""
        deadline = Deadline(self._timeout_s)
        while True:
            channel = await self.connected(deadline)
            try:
                return await call(channel, min(deadline.left_s(), ATTEMPT_S_MAX))
            except grpc.aio.AioRpcError as error:
                refused = _refusal(error)
                if refused is not None:
                    raise refused from error
                self.leave(channel)
            await asyncio.sleep(PAUSE_S)

    async def connected(self, deadline: Deadline | None = None) -> grpc.aio.Channel:
        """Returns the current channel once it is connected. Raises UnavailableError."""
        deadline = deadline or Deadline(self._timeout_s)
        while True:
            channel = self._channels[self._current]
            if await _connects(channel, min(deadline.left_s(), CONNECT_S_MAX)):
                return channel
            self.leave(channel)
            if channel is self._channels[-1]:
                await asyncio.sleep(PAUSE_S)

    def leave(self, channel: grpc.aio.Channel) -> None:
        """Switches to the next member after this channel failed, and cancels the channel's streams."""
        if channel is not self._channels[self._current]:
            return
        self._current = (self._current + 1) % len(self._channels)
        for stream, its_channel in list(self._streams.items()):
            if its_channel is channel:
                stream.cancel()

    def track(self, stream: Any, channel: grpc.aio.Channel) -> None:
        """Registers a stream to be cancelled when its endpoint is left."""
        self._streams[stream] = channel

    def forget(self, stream: Any) -> None:
        """Stops tracking a stream that has ended, so that a change of the member does not cancel it."""
        self._streams.pop(stream, None)

    def cancel_streams(self) -> None:
        """Cancels all open streams. Their readers see a cancelled call."""
        for stream in list(self._streams):
            stream.cancel()


def unary(method: str, request: Message, response: type[M]) -> Call[M]:
    """Returns a call of a unary method."""

    def call(channel: grpc.aio.Channel, timeout_s: float) -> Awaitable[M]:
        send = channel.unary_unary(method, request_serializer=Message.encode, response_deserializer=response.decode)
        answer: Awaitable[M] = send(request, timeout=timeout_s, metadata=METADATA)
        return answer

    return call


def stream(channel: grpc.aio.Channel, method: str, response: type[Message], timeout_s: float | None = None) -> Any:
    """Opens a bidirectional stream."""
    send = channel.stream_stream(method, request_serializer=Message.encode, response_deserializer=response.decode)
    return send(timeout=timeout_s, metadata=METADATA)


async def write(call: Any, request: Message) -> None:
    """Writes the first message of a stream. If the stream is already broken, reading from it will report that."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(request)


def _channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


async def _connects(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    return False
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
            return True
    except TimeoutError:
        return False


def _refusal(error: grpc.aio.AioRpcError) -> RefusedError | None:
    details = error.details() or ""
    overloaded = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and details.startswith("etcdserver:")
    if error.code() in _REFUSALS or overloaded:
        return RefusedError(error.code(), details)
    return None
