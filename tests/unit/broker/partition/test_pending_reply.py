"""A pending reply ends once, and its connection hears of it at once."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.partition.pending_reply import PendingReply, PlainPendingReply

BOTH = pytest.mark.parametrize("pending_type", [PendingReply, PlainPendingReply])
PendingType = type[PlainPendingReply[bytes]]


@BOTH
def test_the_connection_hears_of_the_reply_before_complete_returns(pending_type: PendingType) -> None:
    heard: list[str] = []
    pending = pending_type(lambda: heard.append("end"))
    pending.when_ready(lambda reply: heard.append(f"ready {reply.result()!r}"))
    assert not pending.done()
    pending.complete(b"one")
    pending.complete(b"two")
    pending.fail(OSError())
    pending.cancel()
    assert heard == ["end", "ready b'one'"]
    assert pending.done()
    assert pending.result() == b"one"


@BOTH
def test_nobody_is_told_of_a_reply_that_comes_after_the_connection_has_gone(pending_type: PendingType) -> None:
    heard: list[str] = []
    pending = pending_type(lambda: heard.append("end"))
    pending.when_ready(lambda _: heard.append("ready"))
    pending.cancel()
    pending.complete(b"late")
    assert heard == ["end"]
    with pytest.raises(asyncio.CancelledError):
        pending.result()


@BOTH
def test_a_failure_reaches_the_connection(pending_type: PendingType) -> None:
    heard: list[bool] = []
    pending = pending_type()
    pending.when_ready(lambda reply: heard.append(reply.done()))
    pending.fail(ValueError("a bug"))
    assert heard == [True]
    with pytest.raises(ValueError, match="a bug"):
        pending.result()


@BOTH
def test_a_reply_that_is_not_ready_has_no_result(pending_type: PendingType) -> None:
    with pytest.raises(asyncio.InvalidStateError):
        pending_type().result()


@BOTH
def test_coroutines_can_wait_for_it(pending_type: PendingType) -> None:
    async def wait() -> bytes:
        pending = pending_type()
        asyncio.get_running_loop().call_soon(pending.complete, b"reply")
        first = await pending
        assert await pending == first
        return first

    assert asyncio.run(wait()) == b"reply"
