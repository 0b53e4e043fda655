"""The size of the tail cache: as much as its readers need."""

from __future__ import annotations

from ottla.broker.storage.batches import BatchList
from ottla.broker.storage.tail_cache import ENTRY_BYTES, TailCache

BATCH_BYTES = 10_000
ENTRY = BATCH_BYTES + ENTRY_BYTES
MAX = 100 * ENTRY
LEAST = 10 * ENTRY


class Log:
    """A log whose batches are in its segment at once."""

    def __init__(self) -> None:
        self.tail = BatchList()
        self.end = 0

    @property
    def written_end(self) -> int:
        return self.end


def new_cache() -> TailCache:
    return TailCache(MAX, least_bytes=LEAST, window=1)


def append(cache: TailCache, log: Log, count: int, *, reader_behind: int | None = None) -> None:
    """Appends with a reader that is always that many batches behind."""
    for _ in range(count):
        log.end += 1
        cache.add(log, log.end - 1, log.end, memoryview(bytes(BATCH_BYTES)))
        if reader_behind is not None:
            read(cache, log, log.end - 1 - reader_behind)


def read(cache: TailCache, log: Log, offset: int) -> None:
    if log.tail.covers(offset):
        assert cache.read(log, offset, 1, log.end).next_offset == offset + 1
    else:
        cache.on_missed()


def test_what_nobody_reads_is_given_up_early() -> None:
    cache, log = new_cache(), Log()
    append(cache, log, 100)
    assert cache.size_bytes == MAX, "whoever comes now may want it"
    append(cache, log, 100)
    assert cache.bound_bytes == LEAST
    append(cache, log, 1)
    assert cache.size_bytes == LEAST


def test_a_reader_at_the_end_needs_little() -> None:
    cache, log = new_cache(), Log()
    append(cache, log, 400, reader_behind=0)
    assert cache.bound_bytes == LEAST


def test_a_reader_who_lags_keeps_what_it_needs_and_as_much_again() -> None:
    cache, log = new_cache(), Log()
    append(cache, log, 100)
    append(cache, log, 400, reader_behind=19)
    assert cache.bound_bytes == 40 * ENTRY
    assert log.tail.covers(log.end - 40)


def test_it_grows_before_a_reader_falls_out_of_it() -> None:
    cache, log = new_cache(), Log()
    append(cache, log, 300)
    assert cache.bound_bytes == LEAST
    behind = 0
    while behind < 45:
        offset = log.end - 1 - behind
        assert log.tail.covers(offset), f"a reader who falls behind by one in two has lost its place, {behind} behind"
        read(cache, log, offset)
        append(cache, log, 2)
        behind += 1
    assert cache.bound_bytes >= 90 * ENTRY


def test_a_reader_of_the_segments_makes_it_as_large_as_it_may_be() -> None:
    cache, log = new_cache(), Log()
    append(cache, log, 300)
    read(cache, log, 0)
    assert cache.bound_bytes == MAX
    append(cache, log, 90)
    assert len(log.tail) == 100
    append(cache, log, 100)
    assert cache.bound_bytes == MAX, "it was there since the last look"
    append(cache, log, 100)
    assert cache.bound_bytes == LEAST


def test_the_place_of_a_reader_counts_in_all_logs() -> None:
    """The oldest batch of the broker is evicted first, whichever log it belongs to."""
    cache, busy, quiet = new_cache(), Log(), Log()
    append(cache, busy, 300)
    append(cache, quiet, 1)
    append(cache, busy, 5)
    read(cache, quiet, 0)
    assert cache.bound_bytes == 2 * cache.size_bytes
    append(cache, busy, 10)
    assert quiet.tail.covers(0)


def test_it_takes_its_time_to_become_smaller() -> None:
    cache, log = TailCache(MAX, least_bytes=LEAST, window=3), Log()
    append(cache, log, 399)
    assert cache.bound_bytes == MAX
    append(cache, log, 1)
    assert cache.bound_bytes == LEAST


def test_a_small_cache_has_no_smaller_bound() -> None:
    cache, log = TailCache(ENTRY, least_bytes=LEAST), Log()
    append(cache, log, 5)
    assert (cache.bound_bytes, cache.size_bytes) == (ENTRY, ENTRY)
