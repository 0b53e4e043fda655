"""The disk queue, with the compiled thread and its Python twin: same order, same errors, no accepted write is lost."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from ottla.broker.adapters._disk_py import DiskThread as DiskThreadInPython
from ottla.broker.adapters.disk import DiskThreadType, RealDiskQueue, best_disk_thread
from ottla.broker.adapters.files import RealFile, RealFileSystem
from ottla.ports import Completion, DiskQueue, ReadOnlyBuffer

FILES = RealFileSystem()
THREADS: dict[str, DiskThreadType] = {"python": DiskThreadInPython}
if best_disk_thread() is not DiskThreadInPython:
    THREADS["compiled"] = best_disk_thread()


@pytest.fixture(params=sorted(THREADS))
def thread_type(request: pytest.FixtureRequest) -> DiskThreadType:
    return THREADS[request.param]


@pytest.fixture
async def queue(thread_type: DiskThreadType) -> AsyncIterator[DiskQueue]:
    queue = RealDiskQueue(asyncio.get_running_loop(), "test", thread_type=thread_type)
    yield queue
    queue.close()


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    return FILES.open(str(tmp_path / "file"), create=True)


def durable_file(tmp_path: Path, size: int = 1 << 20) -> RealFile:
    path = str(tmp_path / "journal")
    with open(path, "wb") as plain:
        plain.write(bytes(size))
        os.fsync(plain.fileno())
    return FILES.open_durable(path)


async def written(queue: DiskQueue, file: RealFile, offset: int, data: Sequence[ReadOnlyBuffer]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.write(file, offset, data, lambda error: future.set_exception(error) if error else future.set_result(None))
    await future


def noted(seen: list[int], number: int) -> Completion:
    return lambda error: seen.append(number)


async def settled(queue: DiskQueue) -> None:
    while queue.pending():  # noqa: ASYNC110 - the queue has no event for it, and needs none
        await asyncio.sleep(0.001)


async def test_a_gathered_write(queue: DiskQueue, file: RealFile) -> None:
    view = memoryview(b"0123456789")[3:6]
    await written(queue, file, 2, [b"ab", bytearray(b"cd"), view, b"", memoryview(b"")])
    assert file.read_at(0, 100) == b"\0\0abcd345"


async def test_more_buffers_than_one_call_takes(queue: DiskQueue, file: RealFile) -> None:
    parts = [bytes([number % 251]) * (number % 7) for number in range(5000)]
    await written(queue, file, 0, parts)
    assert file.read_at(0, 1 << 20) == b"".join(parts)


async def test_nothing_to_write(queue: DiskQueue, file: RealFile) -> None:
    await written(queue, file, 0, [])
    await written(queue, file, 0, [b""])
    assert file.size() == 0


async def test_a_direct_write_from_any_memory(queue: DiskQueue, tmp_path: Path) -> None:
    file = durable_file(tmp_path)
    payload = os.urandom(3 * 4096)
    assert file.alignment >= 4096
    await written(queue, file, 4096, [payload[:5], memoryview(payload)[5:7000], bytearray(payload[7000:])])
    assert file.read_at(4096, len(payload)) == payload
    assert file.read_at(0, 4096) == bytes(4096)


async def test_a_direct_write_larger_than_the_bounce_buffer(queue: DiskQueue, tmp_path: Path) -> None:
    file = durable_file(tmp_path, 20 << 20)
    parts = [os.urandom(4096), os.urandom(17 << 20), b"x", b"y" * 4095]
    await written(queue, file, 0, parts)
    assert file.read_at(0, 18 << 20)[: sum(map(len, parts))] == b"".join(parts)


async def test_a_direct_write_that_is_not_aligned_is_refused(queue: DiskQueue, tmp_path: Path) -> None:
    file = durable_file(tmp_path)
    with pytest.raises(OSError, match="Invalid") as failure:
        await written(queue, file, 4096, [b"short"])
    assert failure.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="Invalid"):
        await written(queue, file, 5, [bytes(4096)])


async def test_the_fallback_where_direct_writes_are_refused(queue: DiskQueue, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "buffered", os.O_RDWR | os.O_CREAT)
    file = RealFile(str(tmp_path / "buffered"), fd, alignment=4096, durable=True)
    assert file.syncs_after_write
    await written(queue, file, 0, [b"a" * 4000, b"b" * 96])
    assert file.read_at(0, 5000) == b"a" * 4000 + b"b" * 96
    with pytest.raises(OSError, match="Invalid"):
        await written(queue, file, 0, [b"short"])
    with pytest.raises(OSError, match="Invalid"):
        await written(queue, file, 5, [bytes(4096)])


async def test_completions_come_in_the_order_of_their_requests(queue: DiskQueue, file: RealFile) -> None:
    seen: list[int] = []
    for number in range(300):
        if number % 50 == 0:
            queue.sync(file, noted(seen, number))
        else:
            queue.write(file, number, [b"x"], noted(seen, number))
    assert seen == [], "never inside the request"
    assert queue.pending() == 300
    await settled(queue)
    assert seen == list(range(300))
    assert file.size() == 300


async def test_a_full_device(queue: DiskQueue) -> None:
    full = RealFile("/dev/full", os.open("/dev/full", os.O_RDWR))
    with pytest.raises(OSError, match="No space") as failure:
        await written(queue, full, 0, [b"x" * 100])
    assert failure.value.errno == errno.ENOSPC
    assert failure.value.filename == "/dev/full"


async def test_a_short_write_is_a_failure(queue: DiskQueue, file: RealFile) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as failure:
            await written(queue, file, 900, [b"x" * 100, b"y" * 100])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failure.value.errno == errno.EFBIG
    assert file.size() == 1000, "the part that fitted is there; the caller was told that the whole is not"


async def test_after_a_failure_the_queue_goes_on(queue: DiskQueue, file: RealFile, tmp_path: Path) -> None:
    read_only = RealFile(str(file.path), os.open(file.path, os.O_RDONLY))
    with pytest.raises(OSError, match="Bad file"):
        await written(queue, read_only, 0, [b"x"])
    await written(queue, file, 0, [b"x"])


async def test_a_queue_that_ends_with_a_failure(thread_type: DiskThreadType, file: RealFile) -> None:
    """Writes queued before the failure is reported must not reach the disk after it."""
    queue = RealDiskQueue(asyncio.get_running_loop(), "test", thread_type=thread_type, ends_with_failure=True)
    read_only = RealFile(str(file.path), os.open(file.path, os.O_RDONLY))
    heard: list[int | None] = []
    for number, target in enumerate((file, read_only, file, file)):
        queue.write(target, number, [b"x"], lambda error: heard.append(error.errno if error else None))
    await settled(queue)
    assert heard == [None, errno.EBADF, errno.EBADF, errno.EBADF]
    with pytest.raises(OSError, match="Bad file"):
        await written(queue, file, 0, [b"later"])
    assert file.read_at(0, 10) == b"x"
    queue.close()


async def test_a_closed_file_is_refused_through_the_completion(queue: DiskQueue, file: RealFile) -> None:
    file.close()
    with pytest.raises(OSError, match="Bad file") as failure:
        await written(queue, file, 0, [b"x"])
    assert failure.value.errno == errno.EBADF


async def test_closing_a_file_waits_for_its_requests(queue: DiskQueue, tmp_path: Path) -> None:
    errors: list[OSError | None] = []
    for number in range(50):
        file = FILES.open(str(tmp_path / f"f{number}"), create=True)
        queue.write(file, 0, [b"x" * 1000], errors.append)
        file.close()
    await settled(queue)
    assert errors == [None] * 50
    assert {(tmp_path / f"f{number}").stat().st_size for number in range(50)} == {1000}


async def test_a_file_closed_by_another_thread(tmp_path: Path) -> None:
    """A reader never sees the bytes of another file that reuses a closed descriptor's number."""
    wrong: list[bytes] = []
    for _ in range(40):
        file = FILES.open(str(tmp_path / "right"), create=True)
        file.write_at(0, [b"right"])

        def read(file: RealFile = file) -> None:
            with suppress(OSError):
                while True:
                    data = file.read_at(0, 5)
                    if data != b"right":
                        wrong.append(data)

        reader = threading.Thread(target=read)
        reader.start()
        file.close()
        other = FILES.open(str(tmp_path / "other"), create=True)
        reader.join()
        other.close()
    assert wrong == []


async def test_buffers_are_held_until_done(queue: DiskQueue, file: RealFile) -> None:
    buffer = bytearray(b"abc")
    resized: list[bool] = []

    def done(error: OSError | None) -> None:
        buffer.append(0)  # raises BufferError if the queue still holds it
        resized.append(True)

    queue.write(file, 0, [buffer], done)
    with pytest.raises(BufferError):
        buffer.append(0)
    await settled(queue)
    assert resized


async def test_a_failing_completion_does_not_stop_the_others(
    queue: DiskQueue, file: RealFile, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def broken(error: OSError | None) -> None:
        raise ValueError("a bug in a completion")

    with caplog.at_level(logging.ERROR, "ottla.disk"):
        queue.write(file, 0, [b"x"], broken)
        queue.sync(file, broken)
        queue.write(file, 0, [b"x"], lambda error: seen.append("after"))
        await settled(queue)
    assert seen == ["after"]
    assert len(caplog.records) == 2
    assert "a bug in a completion" in caplog.text


async def test_a_completion_may_close_its_file(queue: DiskQueue, file: RealFile) -> None:
    """The queue holds it no longer, even if the completion fails afterwards."""
    open_files: list[set[str]] = []

    def done(error: OSError | None) -> None:
        file.close()
        handles = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        open_files.append({os.readlink(handle) for handle in handles if os.path.lexists(handle)})

    queue.write(file, 0, [b"x"], done)
    await settled(queue)
    (seen,) = open_files
    assert file.path not in seen


async def test_requests_made_by_completions(queue: DiskQueue, file: RealFile) -> None:
    seen: list[int] = []

    def go_on(error: OSError | None) -> None:
        seen.append(len(seen))
        if len(seen) < 100:
            queue.write(file, len(seen), [b"x"], go_on)

    queue.write(file, 0, [b"x"], go_on)
    await settled(queue)
    assert seen == list(range(100))


async def test_something_that_is_no_buffer_is_refused_at_once(queue: DiskQueue, file: RealFile) -> None:
    with pytest.raises(TypeError):
        queue.write(file, 0, cast("list[bytes]", [b"x", "text"]), lambda error: None)
    assert queue.pending() == 0
    await written(queue, file, 0, [b"x"])


async def test_close_finishes_what_was_accepted(thread_type: DiskThreadType, file: RealFile) -> None:
    queue = RealDiskQueue(asyncio.get_running_loop(), "test", thread_type=thread_type)
    seen: list[object] = []
    for number in range(100):
        queue.write(file, number, [b"x"], seen.append)
    queue.sync(file, seen.append)
    queue.call(lambda: time.sleep(0.01), lambda result, error: seen.append("job"))
    queue.close()
    assert seen == [None] * 101 + ["job"]
    assert queue.pending() == 0
    assert file.size() == 100
    with pytest.raises(RuntimeError, match="closed"):
        queue.write(file, 0, [b"x"], seen.append)
    with pytest.raises(RuntimeError, match="closed"):
        queue.call(lambda: None, lambda result, error: None)
    queue.close()


async def test_close_inside_a_completion_keeps_the_order(thread_type: DiskThreadType, file: RealFile) -> None:
    queue = RealDiskQueue(asyncio.get_running_loop(), "test", thread_type=thread_type)
    seen: list[int] = []
    ended = asyncio.Event()

    def end(error: OSError | None) -> None:
        seen.append(0)
        queue.close()
        ended.set()

    queue.write(file, 0, [b"x"], end)
    for number in range(1, 20):
        queue.write(file, 0, [b"x"], noted(seen, number))
    await ended.wait()
    assert seen == list(range(20))


def test_close_after_the_loop(thread_type: DiskThreadType, file: RealFile) -> None:
    loop = asyncio.new_event_loop()
    queue = RealDiskQueue(loop, "test", thread_type=thread_type)
    seen: list[OSError | None] = []
    queue.write(file, 0, [b"x"], seen.append)
    loop.close()
    queue.close()
    assert seen == [None]


async def test_jobs_run_in_order_and_report(queue: DiskQueue) -> None:
    seen: list[object] = []

    def fail() -> None:
        raise FileNotFoundError("missing")

    queue.call(lambda: 1, lambda result, error: seen.append((result, error)))
    queue.call(fail, lambda result, error: seen.append(type(error)))
    queue.call(lambda: 3, lambda result, error: seen.append((result, error)))
    await settled(queue)
    assert seen == [(1, None), FileNotFoundError, (3, None)]


def test_on_uvloop(thread_type: DiskThreadType, file: RealFile) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use() -> None:
        queue = RealDiskQueue(asyncio.get_running_loop(), "test", thread_type=thread_type)
        for number in range(200):
            await written(queue, file, number, [b"x"])
        queue.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use())
    assert file.size() == 200


@pytest.mark.skipif("compiled" not in THREADS, reason="the extension is not built")
async def test_the_compiled_thread_needs_no_interpreter_lock(file: RealFile) -> None:
    """This thread spins without releasing the GIL: only a thread that does not need it can finish."""
    thread = THREADS["compiled"](asyncio.get_running_loop(), "test")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        for number in range(20):
            thread.write(file, number * 4096, [b"x" * 4096], lambda error: None)
            thread.sync(file, lambda error: None)
        give_up_at = time.monotonic() + 60
        while thread.finished_count() < 40 and time.monotonic() < give_up_at:
            pass
        finished = thread.finished_count()
    finally:
        sys.setswitchinterval(interval)
    assert finished == 40
    assert thread.pending() == 40, "finished, and not delivered yet: the loop did not run"
    thread.close()
