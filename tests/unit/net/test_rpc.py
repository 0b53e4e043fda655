"""gRPC over h2: arbitrarily split frames, flow-control windows, peers that violate the protocol."""

from __future__ import annotations

import asyncio
import contextlib

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.net.grpc.channel import Channel
from ottla.net.grpc.frames import FrameSplitter, data_header, window_update
from ottla.net.grpc.messages import PREFIX_BYTES, MessageSplitter, framed
from ottla.net.grpc.receive_windows import STREAM_WINDOW_BYTES
from ottla.net.grpc.server import Call, RpcServer, unary
from ottla.net.grpc.status import RpcError, Status
from ottla.net.grpc.stream import Receiver

FRAMES = st.lists(
    st.tuples(st.sampled_from([0, 1, 4, 8]), st.sampled_from([0, 1, 8]), st.integers(1, 9), st.binary(max_size=40)),
    max_size=12,
)


@given(FRAMES, st.integers(1, 50), st.booleans())
def test_frames_come_in_order_however_they_are_cut(
    frames: list[tuple[int, int, int, bytes]], step: int, has_preface: bool
) -> None:
    preface = b"P" * 24 if has_preface else b""
    sent = preface + b"".join(
        len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body for kind, flags, stream, body in frames
    )
    splitter = FrameSplitter(100, has_preface=has_preface)
    parts = [part for at in range(0, len(sent), step) for part in splitter.feed(sent[at : at + step])]
    plain = [(stream, body) for kind, flags, stream, body in frames if (kind, flags) == (0, 0)]
    assert joined(parts) == joined(
        [(0, preface)]
        + [
            (stream, body)
            if (kind, flags) == (0, 0)
            else (0, len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body)
            for kind, flags, stream, body in frames
        ]
    )
    if step >= len(sent):
        assert [part for part in parts if part[0]] == plain


def joined(parts: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Drops empty parts and joins adjacent ones of a stream, since a DATA frame may arrive in several."""
    found: list[tuple[int, bytes]] = []
    for stream, body in parts:
        if body and found and found[-1][0] == stream:
            found[-1] = stream, found[-1][1] + body
        elif body:
            found.append((stream, body))
    return found


def test_the_bytes_of_a_data_frame_are_passed_on_as_they_arrive() -> None:
    splitter = FrameSplitter(100, has_preface=False)
    sent = data_header(1, 6) + b"abcdef" + data_header(3, 2) + b"gh" + window_update(1, 9)
    assert splitter.feed(sent[:9]) == []
    assert splitter.feed(sent[9:12]) == [(1, b"abc")]
    assert splitter.feed(sent[12:-1]) == [(1, b"def"), (3, b"gh")]
    assert splitter.feed(sent[-1:]) == [(0, window_update(1, 9))]


@given(st.lists(st.binary(max_size=9000), max_size=6), st.integers(1, 12_000))
def test_messages_come_in_order_however_they_are_cut(messages: list[bytes], step: int) -> None:
    sent = b"".join(map(framed, messages))
    splitter = MessageSplitter(9000)
    found: list[bytes] = []
    for at in range(0, len(sent), step):
        found += splitter.feed(sent[at : at + step])
        whole = sum(PREFIX_BYTES + len(each) for each in found)
        assert splitter.buffered_bytes == min(at + step, len(sent)) - whole
    assert found == messages


def test_a_message_in_tiny_parts_takes_no_more_memory_than_its_size() -> None:
    splitter = MessageSplitter(1 << 20)
    splitter.feed(framed(bytes(100_000))[:PREFIX_BYTES])
    for _ in range(49_999):
        assert splitter.feed(b"ab") == []
    assert len(splitter._parts) == 1
    assert splitter.feed(b"ab") == [b"ab" * 50_000]
    assert splitter.buffered_bytes == 0


def test_a_frame_that_is_too_large_is_refused_when_it_says_so() -> None:
    with pytest.raises(RpcError, match="1048576 bytes"):
        FrameSplitter(100, has_preface=False).feed((1 << 20).to_bytes(3) + b"\x00\x00" + (1).to_bytes(4))
    assert window_update(3, 70000) == b"\x00\x00\x04\x08\x00\x00\x00\x00\x03\x00\x01\x11\x70"


class Holding(Receiver):
    """Receives messages and returns credit when the test says so."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.held: list[bytes] = []

    def on_message(self, message: bytes) -> None:
        self.held.append(message)

    def on_end(self, trailers: dict[str, str]) -> None:
        self.call.finish()


async def test_a_receiver_that_holds_back_stops_its_sender_and_no_other() -> None:
    streams: list[Holding] = []

    def hold(call: Call) -> Receiver:
        streams.append(Holding(call))
        return streams[-1]

    async def echo(message: bytes) -> bytes:
        return message

    server = RpcServer({"/t/Hold": hold, "/t/Echo": unary("Echo", echo)})
    channel = await Channel.connect(f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
    stream = channel.call("/t/Hold", Receiver())
    message = bytes(100_000)
    for _ in range(100):
        stream.send(message)
    for _ in range(200):
        assert await channel.unary("/t/Echo", b"still here", 20) == b"still here"
        if streams and len(streams[0].held) * len(message) > STREAM_WINDOW_BYTES - 2 * len(message):
            break
    taken = len(streams[0].held)
    assert taken * len(message) <= STREAM_WINDOW_BYTES + len(message), "what is whole is held, a part of one is not"
    assert stream.unsent_bytes > 5_000_000
    for _ in range(2000):
        for held in streams[0].held[:taken]:
            streams[0].call.stream.credit(len(held))
        del streams[0].held[:taken]
        await asyncio.sleep(0.001)
        taken = len(streams[0].held)
        if not stream.unsent_bytes:
            break
    assert not stream.unsent_bytes
    assert await channel.unary("/t/Echo", bytes(3_000_000), 20) == bytes(3_000_000)
    with pytest.raises(RpcError, match="there is no method") as unknown:
        await channel.unary("/t/Nothing", b"", 20)
    assert unknown.value.status == Status.UNIMPLEMENTED
    channel.close()
    await server.stop(0)


@pytest.mark.parametrize("size_bytes", [300_000, 1_000_000, 5_000_000])
async def test_a_receiver_slower_than_its_sender_holds_little(size_bytes: int) -> None:
    """It processes one message at a time. Large messages arrive in parts, some of which are credited early."""
    streams: list[Holding] = []

    def hold(call: Call) -> Receiver:
        streams.append(Holding(call))
        return streams[-1]

    async def echo(message: bytes) -> bytes:
        return message

    server = RpcServer({"/t/Hold": hold, "/t/Echo": unary("Echo", echo)})
    channel = await Channel.connect(f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
    stream = channel.call("/t/Hold", Receiver())
    count = 60_000_000 // size_bytes
    for _ in range(count):
        stream.send(bytes(size_bytes))
    for number in range(count):
        for _ in range(2000):
            await channel.unary("/t/Echo", b"", 20)
            if streams[0].held:
                break
        for _ in range(5):
            await channel.unary("/t/Echo", b"", 20)
        assert sum(map(len, streams[0].held)) <= STREAM_WINDOW_BYTES + 2 * size_bytes, number
        streams[0].call.stream.credit(len(streams[0].held.pop(0)))
    held = streams[0].call.stream
    assert (held.window.early_credit_bytes, held.window.uncredited_bytes, held.buffered_bytes) == (0, 0, 0)
    channel.close()
    await server.stop(0)


async def raw(port: int, data: bytes) -> None:
    """Sends bytes and reads until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    with contextlib.suppress(ConnectionError):  # it does not read the rest
        await asyncio.wait_for(reader.read(-1), 20)
    writer.close()


async def test_peers_that_break_the_rules_are_left_and_others_are_served() -> None:
    async def echo(message: bytes) -> bytes:
        return message

    server = RpcServer({"/t/Echo": unary("Echo", echo), "/t/Hold": Holding})
    port = await server.start("127.0.0.1", 0)
    await raw(port, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + bytes(100))
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    peer.initiate_connection()
    preface = peer.data_to_send()
    await raw(port, preface + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")  # a frame of 16 MB
    headers = [
        (":method", "POST"),
        (":path", "/t/Hold"),
        (":scheme", "http"),
        (":authority", "here"),
        ("content-type", "application/grpc"),
    ]
    peer.send_headers(1, headers)
    opened = preface + peer.data_to_send()
    message = framed(bytes(199_995))
    flood = b"".join(data_header(1, len(message)) + message for _ in range(25))
    await raw(port, opened + flood)  # more than the window, with no credit returned
    channel = await Channel.connect(f"127.0.0.1:{port}")
    assert await channel.unary("/t/Echo", b"well", 20) == b"well"
    assert server.buffered_bytes == 0
    channel.close()
    await server.stop(0)


class Ending(Receiver):
    """A client's receiver that waits for the status of its call."""

    def __init__(self) -> None:
        self.status: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.begun = asyncio.Event()

    def on_headers(self, headers: dict[str, str]) -> None:
        self._note(headers)

    def on_message(self, message: bytes) -> None:
        self.begun.set()

    def on_end(self, trailers: dict[str, str]) -> None:
        self._note(trailers)

    def _note(self, headers: dict[str, str]) -> None:
        if "grpc-status" in headers and not self.status.done():
            self.status.set_result(headers["grpc-status"])


COMPRESSED = b"\x01\x00\x00\x00\x01x"
TOO_LARGE = b"\x00\xff\xff\xff\xff"


@pytest.mark.parametrize("begins", [True, False], ids=["after a reply", "before any reply"])
@pytest.mark.parametrize("bad", [COMPRESSED, TOO_LARGE, framed(b"whole")[:-2] + b"le" + TOO_LARGE])
async def test_a_bad_message_ends_its_call_with_a_status(bad: bytes, begins: bool) -> None:
    """The client gets the status within a stream too, later data is discarded, and no memory stays accounted."""
    received: list[bytes] = []

    class Serving(Receiver):
        def __init__(self, call: Call) -> None:
            if begins:
                call.send(b"welcome")

        def on_message(self, message: bytes) -> None:
            received.append(message)

    server = RpcServer({"/t/Stream": Serving})
    channel = await Channel.connect(f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
    ending = Ending()
    stream = channel.call("/t/Stream", ending)
    if begins:
        await asyncio.wait_for(ending.begun.wait(), 20)
    half = framed(bytes(20_000))[:10_000]
    stream._out.append(half)  # an incomplete message
    channel.output.pump_soon(stream)
    await asyncio.sleep(0.05)
    assert server.buffered_bytes == len(half)
    stream._out.append(bytes(10_005) + bad + framed(b"later"))
    channel.output.pump_soon(stream)
    assert int(await asyncio.wait_for(ending.status, 20)) in (Status.UNIMPLEMENTED, Status.RESOURCE_EXHAUSTED)
    assert b"later" not in received
    assert server.buffered_bytes == 0
    channel.close()
    await server.stop(0)
