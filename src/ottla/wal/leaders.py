"""Finds the leader of a log and keeps a connection to it, trying other brokers until the time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ottla.net.backoff import Backoff
from ottla.net.grpc.channel import Channel
from ottla.net.grpc.status import RpcError
from ottla.protocol.model.addresses import split_address
from ottla.protocol.wire.wal_append import Code, WalFailure
from ottla.protocol.wire.wal_calls import LogName, OpenReply, OpenRequest, decode_open_reply, encode_open_request
from ottla.wal.errors import UnavailableError, WalError, error_of

SERVICE = "/ottla.wal.v1.Wal"
BACKOFF_S_MIN = 0.02
BACKOFF_S_MAX = 1.0
CALL_PATIENCE_S = 10.0
PASSING = frozenset({Code.NOT_LEADER, Code.UNAVAILABLE, Code.NOT_FOUND})
"""Failures for which a retry may succeed. A leader that does not find a log may not know of it yet; `Open` does."""

T = TypeVar("T")


def new_backoff() -> Backoff:
    """Returns the backoff of one sequence of attempts, with jitter."""
    return Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, jitter=(0.5, 1.0))


class Leaders:
    """The connection of one handle to the leader of its log."""

    def __init__(self, servers: str, log: LogName, patience_s: float) -> None:
        self._given = [address.strip() for address in servers.split(",") if address.strip()]
        for address in self._given:
            split_address(address)
        if not self._given:
            raise ValueError("no server was given; write host:port[,host:port...]")
        self._known = list(self._given)
        self._log = log
        self._patience_s = patience_s
        self._leader = ""
        self._channel: Channel | None = None
        self._connecting = asyncio.Lock()
        self._turn = 0

    @property
    def servers(self) -> str:
        """The servers as they were given to the constructor."""
        return ",".join(self._given)

    def point_to(self, leader: str) -> None:
        """Sets the leader that somebody reported; empty means unknown."""
        if leader != self._leader:
            self._leader = leader

    def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def channel(self) -> Channel:
        """Returns a connection to the presumed leader. Makes one attempt; raises RpcError or WalError if it fails."""
        async with self._connecting:
            if not self._leader:
                await self._ask()
            channel = self._channel
            if channel is not None and channel.lost is None and channel.address == self._leader:
                return channel
            if channel is not None:
                channel.close()
            self._channel = None
            try:
                self._channel = await Channel.connect(self._leader)
            except RpcError:
                self._leader = ""
                raise
            return self._channel

    async def _ask(self) -> None:
        reply = await self.open(OpenRequest(self._log))
        if not reply.leader:
            raise UnavailableError(f"{self._log.topic}-{self._log.partition} has no leader at the moment")
        self._leader = reply.leader

    async def open(self, request: OpenRequest) -> OpenReply:
        """Asks one broker to open the log. Any broker can reply; they are asked in turn. Makes one attempt."""
        address = self._known[self._turn % len(self._known)]
        self._turn += 1
        is_leader = self._channel is not None and self._channel.lost is None and self._channel.address == address
        channel = self._channel if is_leader and self._channel is not None else await Channel.connect(address)
        try:
            answer = await channel.unary(f"{SERVICE}/Open", bytes(encode_open_request(request)), CALL_PATIENCE_S)
        finally:
            if channel is not self._channel:
                channel.close()
        reply = decode_open_reply(answer)
        if reply.failure is not None:
            raise error_of(reply.failure)
        self._known = list(dict.fromkeys([*reply.servers, *self._given]))
        return reply

    async def open_patiently(self, request: OpenRequest) -> OpenReply:
        """Opens the log and waits until it has a leader."""

        async def attempt() -> OpenReply:
            reply = await self.open(request)
            if not reply.leader:
                raise UnavailableError(f"{self._log.topic}-{self._log.partition} has no leader yet")
            self._leader = reply.leader
            return reply

        return await self._patiently(attempt)

    async def call(
        self, method: str, request: bytes, decode: Callable[[bytes], T], failure_of: Callable[[T], WalFailure | None]
    ) -> T:
        """Calls a method on the current leader, following it as it moves. Raises WalError."""

        async def attempt() -> T:
            channel = await self.channel()
            try:
                reply = decode(await channel.unary(f"{SERVICE}/{method}", request, CALL_PATIENCE_S))
            except RpcError:
                self._leader = ""
                raise
            failure = failure_of(reply)
            if failure is None:
                return reply
            if failure.code in PASSING:
                self.point_to(failure.leader)
                raise UnavailableError(failure.message)
            raise error_of(failure)

        return await self._patiently(attempt)

    async def _patiently(self, attempt: Callable[[], asyncio.Future[T] | object]) -> T:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        backoff = new_backoff()
        while True:
            try:
                return await attempt()  # type: ignore[misc,no-any-return] # a coroutine function of T
            except (RpcError, UnavailableError) as error:
                if loop.time() >= until:
                    raise unavailable(error, self._patience_s) from error
            await asyncio.sleep(backoff.next_s())


def unavailable(error: Exception, patience_s: float) -> WalError:
    """Returns the error for a call that found no leader within its time limit."""
    return UnavailableError(f"no leader responded within {patience_s:g} s: {error}")
