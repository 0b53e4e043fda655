"""`SyncLog` from threads: wrong input fails at once, and every future gets an outcome."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ottla.testing import Cluster
from ottla.wal import Limits, LogClosedError, LogSettings, SyncLog

WAIT_S = 30.0


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster(wal=True, storage="memory") as cluster:
        yield cluster.wal_servers


def opened(servers: str, name: str, limits: Limits | None = None) -> SyncLog:
    return SyncLog.open(servers, name, create=LogSettings(), fence=True, limits=limits)


@pytest.mark.timeout(60)
def test_wrong_types_are_refused_at_once_and_later_appends_work(servers: str) -> None:
    with opened(servers, "types") as log:
        with pytest.raises(TypeError):
            log.append("text")  # type: ignore[arg-type] # wrong type on purpose
        with pytest.raises(TypeError):
            log.append_many([b"first", "text"])  # type: ignore[list-item] # wrong type on purpose
        with pytest.raises(ValueError, match="nothing to append"):
            log.append_many([])
        offset = log.append(b"after").result(WAIT_S)
        assert [entry.data for entry in log.read(offset)] == [b"after"]


@pytest.mark.timeout(60)
def test_every_append_after_the_close_is_refused(servers: str) -> None:
    log = opened(servers, "closed")
    log.close()
    for _ in range(3):
        with pytest.raises(LogClosedError):
            log.append(b"late")
        with pytest.raises(LogClosedError):
            log.append_many([b"late"])


@pytest.mark.timeout(60)
def test_appends_that_wait_at_the_close_fail(servers: str) -> None:
    """With one byte in flight at a time, most of them are still in the queue of the threads."""
    log = opened(servers, "waiting", Limits(in_flight_bytes_max=1))
    futures = [log.append(b"%d" % number) for number in range(2_000)]
    log.close()
    outcomes = [future.exception(WAIT_S) for future in futures]
    assert isinstance(outcomes[-1], LogClosedError)


@pytest.mark.timeout(60)
def test_a_thread_sees_its_order_whichever_method_it_calls(servers: str) -> None:
    with opened(servers, "order", Limits(in_flight_bytes_max=1)) as log:
        futures: list[Future[int]] = []
        offsets: list[int] = []
        for number in range(0, 60, 3):
            futures.append(log.append(b"%d" % number))
            offsets.extend(log.append_many([b"%d" % (number + 1), b"%d" % (number + 2)]))
        first = futures[0].result(WAIT_S)
        assert [int(entry.data) for entry in log.read(first)] == list(range(60))
        assert sorted([*offsets, *(future.result(WAIT_S) for future in futures)]) == list(range(first, first + 60))


@pytest.mark.timeout(60)
def test_a_buffer_that_is_used_again_is_not_what_is_logged(servers: str) -> None:
    with opened(servers, "buffers") as log:
        buffer = bytearray(1)
        futures = []
        for number in range(200):
            buffer[0] = number
            futures.append(log.append(buffer))  # type: ignore[arg-type] # a buffer works, and callers use them
        first = futures[0].result(WAIT_S)
        log.flush()
        assert [entry.data[0] for entry in log.read(first)] == list(range(200))


@pytest.mark.timeout(60)
def test_cancelled_futures_disturb_nobody(servers: str) -> None:
    with opened(servers, "cancelled", Limits(in_flight_bytes_max=1)) as log, ThreadPoolExecutor(4) as threads:
        futures = [log.append(b"%d" % number) for number in range(500)]
        cancelled = {number for number in range(0, 500, 2) if futures[number].cancel()}
        kept = [number for number in range(500) if number not in cancelled]
        offsets = list(threads.map(lambda number: futures[number].result(WAIT_S), kept))
        assert offsets == sorted(offsets)
        assert [int(entry.data) for entry in log.read(offsets[0])] == kept, "a cancelled append is not sent"
