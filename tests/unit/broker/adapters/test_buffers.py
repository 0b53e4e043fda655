"""Receive buffers: writable memory that is reused only when no reference to it is left."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import socket
from collections.abc import Callable

import pytest

from ottla.broker.adapters.buffers import AnyBuffer, AnyBufferPool, BufferPool, BytearrayPool
from ottla.broker.adapters.disk import RealDiskQueue
from ottla.broker.adapters.files import RealFile

COMPILED = BufferPool is not BytearrayPool
needs_extension = pytest.mark.skipif(not COMPILED, reason="the extension is not built")

PoolType = Callable[[int], AnyBufferPool]


@pytest.fixture(params=["best", "python"])
def pool_type(request: pytest.FixtureRequest) -> PoolType:
    return BufferPool if request.param == "best" else BytearrayPool


def address_of(buffer: AnyBuffer) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def test_a_buffer_is_writable_memory_of_its_size(pool_type: PoolType) -> None:
    pool = pool_type(1 << 20)
    for size in (0, 1, 65536, 65537, 300_000):
        buffer = pool.allocate(size)
        assert len(buffer) == size
        view = memoryview(buffer)
        assert (view.nbytes, view.readonly, view.format) == (size, False, "B")
        if size:
            view[0] = view[size - 1] = 7
            assert view[0] == 7
        assert len(bytes(buffer)) == size
    with pytest.raises(ValueError, match="negative"):
        pool.allocate(-1)


def test_a_socket_reads_into_it(pool_type: PoolType) -> None:
    pool = pool_type(1 << 20)
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"hello")
        buffer = pool.allocate(100)
        assert right.recv_into(memoryview(buffer)[10:]) == 5
    assert bytes(memoryview(buffer)[10:15]) == b"hello"


@needs_extension
def test_memory_comes_back_when_nobody_sees_it() -> None:
    pool = BufferPool(1 << 20)
    buffer = pool.allocate(100_000)
    assert (pool.used_bytes, pool.free_bytes) == (131_072, 0)
    view = memoryview(buffer)[10:20]
    view[:] = b"0123456789"
    del buffer
    gc.collect()
    assert pool.free_bytes == 0, "a view still sees it"
    others = [pool.allocate(100_000) for _ in range(10)]
    for other in others:
        memoryview(other)[:] = bytes(100_000)
    assert bytes(view) == b"0123456789"
    del view, other, others
    assert pool.used_bytes == 0
    assert pool.free_bytes == 8 * 131_072, "no more than 1 MiB is kept"


@needs_extension
def test_the_same_memory_is_used_again() -> None:
    pool = BufferPool(1 << 20)
    buffer = pool.allocate(100_000)
    first = address_of(buffer)
    assert first % 4096 == 0
    del buffer
    buffer = pool.allocate(131_072)
    assert address_of(buffer) == first, "another size of the same class"
    assert pool.free_bytes == 0
    del buffer
    assert pool.allocate(200_000) is not None
    pool.trim()
    assert pool.free_bytes == 0


@needs_extension
def test_a_very_large_buffer_is_not_kept() -> None:
    pool = BufferPool(1 << 40)
    buffer = pool.allocate((128 << 20) + 1)
    assert pool.used_bytes == (128 << 20) + 1
    del buffer
    assert (pool.used_bytes, pool.free_bytes) == (0, 0)


@needs_extension
def test_a_buffer_outlives_its_pool() -> None:
    pool = BufferPool(1 << 20)
    view = memoryview(pool.allocate(65536))
    del pool
    gc.collect()
    view[:] = b"x" * 65536
    assert view[65535] == ord("x")


@needs_extension
def test_buffers_come_from_pools_alone() -> None:
    with pytest.raises(TypeError):
        type(BufferPool(0).allocate(1))()


@needs_extension
def test_a_disk_write_keeps_it(tmp_path: os.PathLike[str]) -> None:
    pool = BufferPool(1 << 20)
    path = os.path.join(tmp_path, "f")

    async def write() -> int:
        queue = RealDiskQueue(asyncio.get_running_loop(), "test")
        file = RealFile(path, os.open(path, os.O_RDWR | os.O_CREAT))
        queue.write(file, 0, [memoryview(pool.allocate(65536))], lambda error: None)
        used = pool.used_bytes
        queue.close()
        file.close()
        return used

    assert asyncio.run(write()) == 65536
    assert (pool.used_bytes, pool.free_bytes) == (0, 65536)
