"""Replies are gathered and written together, and a client that is gone does no harm."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import cast

from ottla.broker.server.limits import WRITE_HIGH_WATER_BYTES
from ottla.broker.server.reply_writer import JOINED_BYTES_MAX, ReplyWriter


class RecordingTransport:
    """Notes each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.is_gone = False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        if self.is_gone:
            raise RuntimeError("the handler is closed")
        self.calls.append(("write", data))

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.calls.append(("writelines", b"".join(pieces)))

    def close(self) -> None:
        self.calls.append(("close", b""))

    def abort(self) -> None:
        self.calls.append(("abort", b""))


def new_writer() -> tuple[ReplyWriter, RecordingTransport]:
    transport = RecordingTransport()
    loop = asyncio.get_running_loop()
    return ReplyWriter(cast(asyncio.Transport, transport), loop, "peer"), transport


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


async def test_replies_of_a_turn_are_one_write() -> None:
    writer, transport = new_writer()
    writer.put_reply([b"head", b"body"])
    writer.put_replies(sized(b"a") + sized(b"b"))
    writer.flush_soon()
    writer.flush_soon()
    assert transport.calls == []
    await asyncio.sleep(0)
    assert transport.calls == [("write", sized(b"headbody") + sized(b"a") + sized(b"b"))]
    writer.flush()
    assert len(transport.calls) == 1


async def test_large_replies_are_not_joined() -> None:
    writer, transport = new_writer()
    large = bytes(JOINED_BYTES_MAX + 1)
    writer.put_reply([large])
    writer.flush()
    assert transport.calls == [("writelines", sized(large))]


async def test_a_long_queue_is_written_at_once() -> None:
    writer, transport = new_writer()
    writer.put_reply([bytes(WRITE_HIGH_WATER_BYTES + 1)])
    assert [name for name, _ in transport.calls] == ["writelines"]
    writer.put_replies(bytes(WRITE_HIGH_WATER_BYTES + 1))
    assert [name for name, _ in transport.calls] == ["writelines", "writelines"]


async def test_replies_are_sent_before_the_end() -> None:
    writer, transport = new_writer()
    writer.put_reply([b"last"])
    writer.close()
    assert transport.calls == [("write", sized(b"last")), ("close", b"")]
    assert writer.is_closed


async def test_nothing_is_sent_after_an_abort() -> None:
    writer, transport = new_writer()
    writer.put_reply([b"late"])
    writer.flush_soon()
    writer.abort()
    await asyncio.sleep(0)
    assert transport.calls == [("abort", b"")]
    writer.on_lost()
    assert writer.unsent == []


async def test_a_write_to_a_client_that_is_gone_does_not_raise() -> None:
    writer, transport = new_writer()
    transport.is_gone = True
    writer.put_reply([b"reply"])
    writer.flush()
    assert writer.is_closed
    assert transport.calls == [("abort", b"")]
