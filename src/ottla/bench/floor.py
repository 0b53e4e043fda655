"""The floor of the benchmarks: the limit that a socket, one Python process and the page cache set.

A bare reader takes what the socket has, writes it to a file (over and over to the same written file, so that no fresh
page is touched) and answers each frame with a few bytes. That is one read, one write and one reply per turn, without
parsing and without an event loop. For fetches it writes nothing, and answers each frame from memory with as many bytes
as a broker would. A broker's figures are shares of this floor. A second floor also computes the CRC of what it reads
and keeps the data in memory for a while, as any broker must; it shows how much of the gap to the bare floor is work
that no broker can avoid.

    python benchmarks/floor.py [--seconds 2] [--dir DIR] [--server] [--kept-mb 2 8 32] [--repetitions 5]

`--kept-mb` sets the amount of memory through which the kept data rotates; it shows the cost of memory that has dropped
out of the processor's caches. `--server` also runs Ottla's own server with a handler that discards each request; it
shows the cost of the frames, the order of replies and the event loop.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import select
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from crc32c import crc32c

from ottla.bench.latencies import Percentiles, percentiles
from ottla.bench.pipeline import Load, LoadResult, drive
from ottla.bench.processes import end_process, leave_interrupts_to_the_parent
from ottla.bench.quotients import per

REPLY_BYTES = 12
READ_BYTES = 512 * 1024
FILE_BYTES = 256 * 1024 * 1024
KEPT_BYTES = 32 * 1024 * 1024
"""The size of a broker's tail cache."""
FRAME_SIZES = (100, 1024, 10 * 1024, 128 * 1024)
WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class FloorResult:
    """One measurement of the floor."""

    frame_bytes: int
    inflight: int
    measured: LoadResult

    @property
    def mb_per_s(self) -> float:
        """The rate of bytes that the floor received, in units of 10^6 bytes."""
        return self.measured.requests_per_s * self.frame_bytes / 1e6

    @property
    def cpu_s_per_gb(self) -> float:
        """The floor's CPU seconds for each gigabyte received."""
        return per(self.measured.server_cpu_s, self.measured.requests * self.frame_bytes / 1e9)

    @property
    def latency(self) -> Percentiles:
        """The percentiles of the round trips."""
        return percentiles(self.measured.latencies)


@dataclass(frozen=True, slots=True)
class Exchange:
    """How the floor handles each frame of the next connection."""

    frame_bytes: int
    reply_bytes: int = REPLY_BYTES
    writes: bool = True
    kept_bytes: int = 0
    """If not 0, computes the CRC of what is read, and rotates the read buffer through this much memory."""


class FloorProcess:
    """Serves one connection after another. `directory` is on the disk to be measured."""

    def __init__(self, directory: str) -> None:
        self._directory = tempfile.TemporaryDirectory(dir=directory, prefix="floor-")
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        path = os.path.join(self._directory.name, "floor")
        self._process = context.Process(target=serve_floor, args=(theirs, path), daemon=True)
        self._process.start()
        theirs.close()
        self.port: int = self._pipe.recv()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def expect(self, exchange: Exchange) -> None:
        """Sets how the next connection is handled. Call it before each connection."""
        self._pipe.send(exchange)

    def close(self) -> None:
        """Ends the process and removes its files."""
        self._pipe.close()
        end_process(self._process)
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_floor(
    frame_bytes: int, inflight: int, seconds: float, directory: str | None = None, *, kept_bytes: int = 0
) -> FloorResult:
    """Measures one client connection with `inflight` frames in flight, driven from this process."""
    with FloorProcess(directory or tempfile.gettempdir()) as floor:
        floor.expect(Exchange(frame_bytes, kept_bytes=kept_bytes))
        return FloorResult(frame_bytes, inflight, drive(_load(floor.port, floor.pid, frame_bytes, inflight, seconds)))


def _load(port: int, pid: int, frame_bytes: int, inflight: int, seconds: float) -> Load:
    frame = (frame_bytes - 4).to_bytes(4, "big") + bytes(frame_bytes - 4)
    return Load(port, frame, frame_bytes, REPLY_BYTES, inflight, WARM_UP_S, seconds, (pid,))


def serve_floor(pipe: Connection, path: str) -> None:
    """Runs in the process of the floor."""
    leave_interrupts_to_the_parent()
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    _write_once(file)
    gc.disable()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        while True:
            try:
                exchange: Exchange = pipe.recv()
            except EOFError:
                return
            client, _ = listener.accept()
            with client:
                _serve_connection(client, file, exchange)


def _serve_connection(client: socket.socket, file: int, exchange: Exchange) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setblocking(False)
    poll = select.epoll()
    poll.register(client, select.EPOLLIN)
    views = cycle([memoryview(bytearray(READ_BYTES)) for _ in range(max(exchange.kept_bytes // READ_BYTES, 1))])
    reply = (exchange.reply_bytes - 4).to_bytes(4, "big") + bytes(exchange.reply_bytes - 4)
    position = rest = 0
    with poll:
        while True:
            poll.poll()
            view = next(views)
            try:
                byte_count = client.recv_into(view)
            except ConnectionResetError:
                return
            if not byte_count:
                return
            if exchange.kept_bytes:
                crc32c(view[:byte_count])
            if exchange.writes:
                if position + byte_count > FILE_BYTES:
                    position = 0
                position += os.pwrite(file, view[:byte_count], position)
            frames, rest = divmod(rest + byte_count, exchange.frame_bytes)
            if frames and len(reply) < READ_BYTES // 8:
                client.send(reply * frames)
            elif frames:
                _send_large(client, reply, frames)


def _send_large(client: socket.socket, reply: bytes, count: int) -> None:
    """Sends more than the socket takes at once, and blocks meanwhile, as a bare writer does."""
    client.setblocking(True)
    for _ in range(count):
        client.sendall(reply)
    client.setblocking(False)


def _write_once(file: int) -> None:
    block = bytes(4 * 1024 * 1024)
    for position in range(0, FILE_BYTES, len(block)):
        os.pwrite(file, block, position)


def run_server(frame_bytes: int, inflight: int, seconds: float) -> FloorResult:
    """Measures Ottla's server with a handler that replies at once and keeps nothing."""
    return _run_child(serve_ottla_server, frame_bytes, inflight, seconds)


def _run_child(serve: Callable[[Connection], None], frame_bytes: int, inflight: int, seconds: float) -> FloorResult:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        port = ours.recv()
        assert process.pid is not None
        return FloorResult(frame_bytes, inflight, drive(_load(port, process.pid, frame_bytes, inflight, seconds)))
    finally:
        ours.close()
        end_process(process)


def serve_ottla_server(pipe: Connection) -> None:
    """Runs Ottla's server with a handler that discards every request. Sends its port through the pipe."""
    import asyncio

    import uvloop

    from ottla.broker.endpoints import ClientAddress
    from ottla.broker.server.port import Outcome
    from ottla.broker.server.server import Server
    from ottla.protocol.model.broker_config import BrokerConfig, parse_broker_config

    class Discard:
        """Replies to every request at once and keeps nothing."""

        is_of_broker = False

        def connect(self, client: ClientAddress) -> Discard:
            return self

        def begin(self, transport: asyncio.BaseTransport, rebind: Callable[[bool], None]) -> bool:
            return True

        def end(self) -> None: ...

        def handle(self, frame: memoryview) -> Outcome:
            return [bytes(REPLY_BYTES - 4)]

        def handle_run(self, frames: Sequence[memoryview], at: int, count_max: int) -> tuple[None, int]:
            return None, 0

        def begin_shutdown(self) -> None: ...

    async def serve() -> None:
        config = parse_broker_config({})
        assert isinstance(config, BrokerConfig)
        server = Server(Discard(), config)
        _, port = await server.start("127.0.0.1", 0)
        pipe.send(port)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.add_reader(pipe.fileno(), ended.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await ended
        loop.remove_reader(pipe.fileno())
        await server.stop(0)

    leave_interrupts_to_the_parent()
    gc.freeze()
    uvloop.run(serve())


def print_row(name: str, result: FloorResult) -> None:
    """Prints one line of the table."""
    latency = result.latency
    print(
        f"{name:<14} {result.frame_bytes:>8} {result.inflight:>9}"
        f" {result.mb_per_s:>9.1f} {result.measured.requests_per_s:>11.0f}"
        f" {latency.p50_us:>8.0f} {latency.p99_us:>8.0f} {latency.p999_us:>8.0f} {result.cpu_s_per_gb:>10.2f}"
    )


def main() -> None:
    """Measures the floor with each frame size and number of requests in flight, and prints the table."""
    parser = argparse.ArgumentParser(description="The floor: a bare socket reader that writes to a file.")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--dir", default=None, help="a directory on the disk to measure (default: the temporary one)")
    parser.add_argument(
        "--server", action="store_true", help="also measure Ottla's server with a handler that stores nothing"
    )
    parser.add_argument("--inflight", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--frame-bytes", type=int, nargs="+", default=list(FRAME_SIZES))
    parser.add_argument("--repetitions", type=int, default=1, help="number of rounds; the median is printed")
    parser.add_argument("--kept-mb", type=int, nargs="+", default=[KEPT_BYTES >> 20])
    options = parser.parse_args()
    print(
        f"{'':<14} {'frame B':>8} {'in flight':>9} {'MB/s':>9} {'requests/s':>11}"
        f" {'p50 us':>8} {'p99 us':>8} {'p99.9 us':>8} {'CPU s/GB':>10}"
    )
    for frame_bytes in options.frame_bytes:
        for inflight in options.inflight:
            run = partial(run_floor, frame_bytes, inflight, options.seconds, options.dir)
            subjects: dict[str, Callable[[], FloorResult]] = {"floor": run}
            for kept_mb in options.kept_mb:
                subjects[f"+CRC, {kept_mb} MB"] = partial(run, kept_bytes=kept_mb << 20)
            if options.server:
                subjects["server"] = partial(run_server, frame_bytes, inflight, options.seconds)
            found: dict[str, list[FloorResult]] = {name: [] for name in subjects}
            for _ in range(options.repetitions):
                for name, measure in subjects.items():
                    found[name].append(measure())
            for name, results in found.items():
                print_row(name, sorted(results, key=lambda each: each.measured.requests_per_s)[len(results) // 2])
