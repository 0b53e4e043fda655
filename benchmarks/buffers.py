"""The cost of a receive buffer: a new bytearray for each frame, against reused memory.

    python benchmarks/buffers.py [--seconds 2]

A child process sends continuously over a loopback socket. This process reads frame by frame, each into its own buffer,
and holds the last few, as a broker does until a frame is written. CPU time is that of this process only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import time
from collections import deque
from collections.abc import Callable

from ottla.bench.quotients import per, rate
from ottla.broker.adapters.buffers import AnyBuffer, BufferPool

SOCKET_BUFFER_BYTES = 4 << 20


def send_forever(port: int) -> None:
    block = bytes(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        try:
            while True:
                connection.sendall(block)
        except ConnectionError:
            return


def receive(
    connection: socket.socket, allocate: Callable[[int], AnyBuffer], frame_bytes: int, held: int, seconds: float
) -> tuple[float, float]:
    """Returns MB/s and CPU seconds per GB."""
    frames: deque[memoryview] = deque(maxlen=held)
    received = 0
    start, cpu_start = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        view = memoryview(allocate(frame_bytes))
        at = 0
        while at < frame_bytes:
            at += connection.recv_into(view[at:])
        frames.append(view)
        received += frame_bytes
    cpu_s = time.process_time() - cpu_start
    return rate(received / 1e6, time.perf_counter() - start), per(cpu_s, received / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="per line")
    seconds = parser.parse_args().seconds
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = multiprocessing.get_context("spawn").Process(
            target=send_forever, args=(server.getsockname()[1],), daemon=True
        )
        sender.start()
        connection, _ = server.accept()
    allocators: dict[str, Callable[[int], AnyBuffer]] = {"bytearray": bytearray, "pool": BufferPool(64 << 20).allocate}
    with connection:
        for frame_bytes in (128 << 10, 1 << 20):
            for held in (1, 32):
                for name, allocate in allocators.items():
                    mb_per_s, cpu_s_per_gb = receive(connection, allocate, frame_bytes, held, seconds)
                    row = {
                        "benchmark": "buffers",
                        "buffer": name,
                        "frame_bytes": frame_bytes,
                        "frames_held": held,
                        "mb_per_s": round(mb_per_s),
                        "cpu_s_per_gb": round(cpu_s_per_gb, 3),
                    }
                    print(json.dumps(row), flush=True)
    sender.terminate()
    sender.join()


if __name__ == "__main__":
    main()
