"""Pings: a peer that does not answer is given up, and one that does is asked again."""

from __future__ import annotations

import asyncio

import h2.connection

from ottla.net.grpc.output import Output
from ottla.net.grpc.pings import Pings, PingTimes


class CountingHttp2(h2.connection.H2Connection):
    """Counts the pings instead of sending them."""

    pings = 0

    def ping(self, opaque_data: bytes | str) -> None:
        self.pings += 1


class Bench:
    def __init__(self, times: PingTimes) -> None:
        self.http2 = CountingHttp2()
        self.unanswered = 0
        self.pings = Pings(times, Output(self.http2), self._on_unanswered)

    def _on_unanswered(self) -> None:
        self.unanswered += 1

    async def until_pings(self, count: int) -> None:
        while self.http2.pings < count:  # noqa: ASYNC110 - what is waited for is a plain attribute
            await asyncio.sleep(0.001)


async def test_a_peer_that_answers_is_asked_again() -> None:
    bench = Bench(PingTimes(every_s=0.001, patience_s=60.0))
    bench.pings.start()
    for count in range(1, 4):
        await bench.until_pings(count)
        bench.pings.on_answered()
    bench.pings.stop()
    assert bench.unanswered == 0


async def test_a_peer_that_does_not_answer_is_given_up() -> None:
    bench = Bench(PingTimes(every_s=0.001, patience_s=0.001))
    bench.pings.start()
    while not bench.unanswered:  # noqa: ASYNC110 - what is waited for is a plain attribute
        await asyncio.sleep(0.001)
    assert bench.http2.pings == 1


async def test_an_answer_after_the_end_starts_nothing() -> None:
    bench = Bench(PingTimes(every_s=0.001, patience_s=0.001))
    bench.pings.start()
    await bench.until_pings(1)
    bench.pings.stop()
    bench.pings.on_answered()
    await asyncio.sleep(0.02)
    assert (bench.http2.pings, bench.unanswered) == (1, 0)
