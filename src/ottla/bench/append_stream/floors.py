"""The floors: a round trip of one message over grpcio, and one durable write of a block, both from the same run."""

from __future__ import annotations

import asyncio
import mmap
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BLOCK_BYTES = 4096
METHOD = "/floor.Echo/Echo"


def same(message: bytes) -> bytes:
    """Returns the message: the serializer of the echo server, which does nothing."""
    return message


@contextmanager
def echo_server() -> Iterator[str]:
    """Runs grpcio's own asyncio server in a separate process, which echoes every message."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()


def _serve(pipe: Connection) -> None:
    asyncio.run(_serve_echo(pipe))


async def _serve_echo(pipe: Connection) -> None:
    import grpc

    async def echo(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            yield message

    handler = grpc.stream_stream_rpc_method_handler(echo, same, same)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floor.Echo", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    await server.wait_for_termination()


async def echo_latencies_s(address: str, size_bytes: int, count: int) -> list[float]:
    """Measures round trips of a message, one at a time."""
    import grpc

    message = bytes(size_bytes)
    found: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(METHOD, same, same)()
        for _ in range(count):
            began_s = time.perf_counter()
            await call.write(message)
            await call.read()
            found.append(time.perf_counter() - began_s)
        call.cancel()
    return found


def sync_latencies_s(directory: Path, count: int) -> list[float]:
    """Measures writes of one block into a written file, as the journal's: with direct I/O if the file system allows."""
    path = directory / "floor"
    blocks = 1024
    path.write_bytes(bytes(BLOCK_BYTES * blocks))
    flags = os.O_WRONLY | os.O_DSYNC
    try:
        file = os.open(path, flags | getattr(os, "O_DIRECT", 0))
    except OSError:
        file = os.open(path, flags)
    block = mmap.mmap(-1, BLOCK_BYTES)
    found: list[float] = []
    try:
        os.fsync(file)
        for number in range(count):
            began_s = time.perf_counter()
            os.pwrite(file, block, number % blocks * BLOCK_BYTES)
            found.append(time.perf_counter() - began_s)
    finally:
        os.close(file)
        path.unlink()
    return found
