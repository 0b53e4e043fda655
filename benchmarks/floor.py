"""The floor of the benchmarks: what a socket, one Python process and the page cache give at all.

A bare reader takes what the socket has, writes it to a file (an already written one, over and over, so that no fresh
page is touched) and answers each frame with twelve bytes: one read, one write and one answer a turn, no parsing, no
event loop. Whatever a broker does is measured as a share of this.

    python benchmarks/floor.py [--seconds 2] [--dir DIR] [--server]

`--server` also runs Ottla's own server with a handler that throws each request away: what the frames, the order of
replies and the event loop cost.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import select
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

REPLY = b"\x00\x00\x00\x08" + bytes(8)
READ_BYTES = 512 * 1024
FILE_BYTES = 256 * 1024 * 1024
FRAME_SIZES = (100, 1024, 10 * 1024, 128 * 1024)
WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class FloorResult:
    frame_bytes: int
    inflight: int
    seconds: float
    requests: int
    server_cpu_s: float
    p50_us: float
    p99_us: float
    p999_us: float

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def mb_per_s(self) -> float:
        return self.requests * self.frame_bytes / self.seconds / 1e6

    @property
    def cpu_s_per_gb(self) -> float:
        return self.server_cpu_s / (self.requests * self.frame_bytes / 1e9) if self.requests else 0.0


def run_floor(frame_bytes: int, inflight: int, seconds: float, directory: str | None = None) -> FloorResult:
    """One client connection with `inflight` frames under way; `directory` lies on the disk to be measured."""
    with tempfile.TemporaryDirectory(dir=directory) as data_dir:
        return measure(serve_floor, (data_dir, frame_bytes), frame_bytes, inflight, seconds)


def measure(
    serve: Callable[..., None], arguments: tuple[object, ...], frame_bytes: int, inflight: int, seconds: float
) -> FloorResult:
    """Runs `serve(pipe, *arguments)` as a process of its own and drives it from this one.

    It sends its port, then its CPU seconds so far each time it is asked, and ends when the pipe is closed.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        port = ours.recv()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return drive(client, ours, frame_bytes, inflight, seconds)
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()


def drive(client: socket.socket, pipe: Connection, frame_bytes: int, inflight: int, seconds: float) -> FloorResult:
    """Keeps `inflight` frames of `frame_bytes` (all counted, the size field included) on their way."""
    frame = (frame_bytes - 4).to_bytes(4, "big") + bytes(frame_bytes - 4)
    window = memoryview(frame * inflight)
    received = bytearray(64 * 1024)
    under_way: deque[tuple[float, int]] = deque()
    latencies: dict[int, int] = {}
    clock = time.perf_counter
    begin = clock() + WARM_UP_S
    measuring = False
    requests = rest = 0
    cpu_before = 0.0
    gc.disable()
    try:
        under_way.append((clock(), inflight))
        client.sendall(window)
        while True:
            byte_count = client.recv_into(received)
            if not byte_count:
                raise ConnectionError("the server closed the connection")
            now = clock()
            replies, rest = divmod(rest + byte_count, len(REPLY))
            if measuring:
                requests += replies
                if now - begin >= seconds:
                    break
            elif now >= begin:
                cpu_before = _cpu_of(pipe)
                begin, measuring = clock(), True
            _note(latencies if measuring else {}, under_way, now, replies)
            if replies:
                under_way.append((clock(), replies))
                client.sendall(window[: replies * frame_bytes])
    finally:
        gc.enable()
    cpu_s = _cpu_of(pipe) - cpu_before
    p50, p99, p999 = (_percentile(latencies, share) for share in (0.5, 0.99, 0.999))
    return FloorResult(frame_bytes, inflight, now - begin, requests, cpu_s, p50, p99, p999)


def _cpu_of(pipe: Connection) -> float:
    pipe.send("cpu")
    return float(pipe.recv())


def _note(latencies: dict[int, int], under_way: deque[tuple[float, int]], now: float, replies: int) -> None:
    """Answers come in the order of requests, so the oldest ones under way are the ones answered."""
    while replies:
        sent_at, count = under_way.popleft()
        answered = min(count, replies)
        if answered < count:
            under_way.appendleft((sent_at, count - answered))
        replies -= answered
        microseconds = int((now - sent_at) * 1e6)
        latencies[microseconds] = latencies.get(microseconds, 0) + answered


def _percentile(latencies: dict[int, int], share: float) -> float:
    left = share * sum(latencies.values())
    for microseconds in sorted(latencies):
        left -= latencies[microseconds]
        if left <= 0:
            return float(microseconds)
    return 0.0


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve_floor(pipe: Connection, data_dir: str, frame_bytes: int) -> None:
    file = os.open(os.path.join(data_dir, "floor"), os.O_RDWR | os.O_CREAT, 0o600)
    _write_once(file)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        client, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setblocking(False)
    poll = select.epoll()
    poll.register(client, select.EPOLLIN)
    poll.register(pipe, select.EPOLLIN)
    view = memoryview(bytearray(READ_BYTES))
    position = rest = 0
    gc.disable()
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == pipe.fileno():
                if not _answer(pipe):
                    return
                continue
            try:
                byte_count = client.recv_into(view)
            except ConnectionResetError:
                byte_count = 0
            if not byte_count:
                poll.unregister(client)
                continue
            if position + byte_count > FILE_BYTES:
                position = 0
            position += os.pwrite(file, view[:byte_count], position)
            frames, rest = divmod(rest + byte_count, frame_bytes)
            if frames:
                client.send(REPLY * frames)


def _answer(pipe: Connection) -> bool:
    try:
        pipe.recv()
    except EOFError:
        return False
    pipe.send(cpu_seconds())
    return True


def _write_once(file: int) -> None:
    block = bytes(4 * 1024 * 1024)
    for position in range(0, FILE_BYTES, len(block)):
        os.pwrite(file, block, position)


def serve_ottla_server(pipe: Connection, shared_bytes: int = 0) -> None:
    """Ottla's server with a handler that answers at once and keeps nothing."""
    import asyncio

    import uvloop

    from ottla.model.broker_config import BrokerConfig, parse_broker_config
    from ottla.server.server import Server

    def discard(broker: object, connection: object, frame: memoryview) -> list[bytes]:
        return [REPLY[4:]]

    async def serve() -> None:
        config = parse_broker_config({})
        assert isinstance(config, BrokerConfig)
        server = Server(None, config, discard)
        _, port = await server.start("127.0.0.1", 0)
        pipe.send(port)
        ended = asyncio.get_running_loop().create_future()

        def on_pipe() -> None:
            if not _answer(pipe) and not ended.done():
                ended.set_result(None)

        asyncio.get_running_loop().add_reader(pipe.fileno(), on_pipe)
        await ended
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        await server.stop(0)

    gc.freeze()
    uvloop.run(serve())


def print_row(name: str, result: FloorResult) -> None:
    print(
        f"{name:<14} {result.frame_bytes:>8} {result.inflight:>9}"
        f" {result.mb_per_s:>9.1f} {result.requests_per_s:>11.0f}"
        f" {result.p50_us:>8.0f} {result.p99_us:>8.0f} {result.p999_us:>8.0f} {result.cpu_s_per_gb:>10.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The floor: a bare socket reader that writes to a file.")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--dir", default=None, help="a directory on the disk to measure (default: the temporary one)")
    parser.add_argument("--server", action="store_true", help="also Ottla's server with a handler that keeps nothing")
    parser.add_argument("--inflight", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--frame-bytes", type=int, nargs="+", default=list(FRAME_SIZES))
    options = parser.parse_args()
    print(
        f"{'':<14} {'frame B':>8} {'in flight':>9} {'MB/s':>9} {'requests/s':>11}"
        f" {'p50 us':>8} {'p99 us':>8} {'p99.9 us':>8} {'CPU s/GB':>10}"
    )
    for frame_bytes in options.frame_bytes:
        for inflight in options.inflight:
            print_row("floor", run_floor(frame_bytes, inflight, options.seconds, options.dir))
            if options.server:
                print_row("server", measure(serve_ottla_server, (), frame_bytes, inflight, options.seconds))


if __name__ == "__main__":
    main()
